#include "device.cuh"

extern "C" __global__ void __launch_bounds__(WARP * WARPS) normalise(const __grid_constant__ normalise_args a) {
    __shared__ float partial[WARPS];
    let_successor_start();
    wait_for_inputs();
    const x_t* x = a.x + long(blockIdx.x) * hidden;
    y_t* y = a.y + long(blockIdx.x) * hidden;
    float squares = 0;
    for (long i = threadIdx.x; i < hidden; i += WARP * WARPS) squares += to_float(x[i]) * to_float(x[i]);
    const float inverse = rsqrtf(sum_over_block<WARPS>(squares, partial) / float(hidden) + eps);
    for (long i = threadIdx.x; i < hidden; i += WARP * WARPS)
        put(y + i, to_float(x[i]) * inverse * (to_float(a.norm[i]) + offset));
}
