#include "silu.cuh"

extern "C" __global__ void apply(const __grid_constant__ apply_args a) {
    let_successor_start();
    wait_for_inputs();
    const long i = long(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < width) put(a.y + i, silu(to_float(a.g[i])) * to_float(a.u[i]));
}
