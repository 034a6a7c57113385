#include "device.cuh"

extern "C" __global__ void apply(const __grid_constant__ apply_args a) {
    let_successor_start();
    wait_for_inputs();
    const long i = long(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < numel) put(a.y + i, to_float(a.a[i]) + to_float(a.b[i]));
}
