#include "pieces.cuh"

static_assert(a_numel[0] == numel && b_numel[0] == numel, "an operand is broadcast");

extern "C" __global__ void apply(const __grid_constant__ apply_args a) {
    let_successor_start();
    const long i = (long(blockIdx.x) * blockDim.x + threadIdx.x) * PER;
    wait_for_inputs();
    if (i + PER <= numel) {
        float x[PER], other[PER];
        load_piece(a.a + i, x);
        load_piece(a.b + i, other);
#pragma unroll
        for (int k = 0; k < PER; ++k) x[k] += other[k];
        store_piece(a.y + i, x);
    } else {
        for (long k = i; k < numel; ++k) put(a.y + k, to_float(a.a[k]) + to_float(a.b[k]));
    }
}
