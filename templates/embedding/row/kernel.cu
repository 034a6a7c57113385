#include "device.cuh"

extern "C" __global__ void lookup(const __grid_constant__ lookup_args a) {
    let_successor_start();
    wait_for_inputs();
    const table_t* row = a.table + long(a.ids[blockIdx.y]) * hidden;
    y_t* y = a.y + blockIdx.y * hidden;
    for (long i = long(blockIdx.x) * blockDim.x + threadIdx.x; i < hidden; i += long(gridDim.x) * blockDim.x) y[i] = row[i];
}
