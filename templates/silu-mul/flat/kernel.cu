#include "pieces.cuh"
#include "silu.cuh"

extern "C" __global__ void apply(const __grid_constant__ apply_args a) {
    let_successor_start();
    const long i = (long(blockIdx.x) * blockDim.x + threadIdx.x) * PER;
    wait_for_inputs();
    if (i + PER <= width) {
        float gate[PER], up[PER];
        load_piece(a.g + i, gate);
        load_piece(a.u + i, up);
#pragma unroll
        for (int k = 0; k < PER; ++k) up[k] *= silu(gate[k]);
        store_piece(a.y + i, up);
    } else {
        for (long k = i; k < width; ++k) put(a.y + k, silu(to_float(a.g[k])) * to_float(a.u[k]));
    }
}
