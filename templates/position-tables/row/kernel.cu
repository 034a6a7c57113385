#include "device.cuh"

extern "C" __global__ void lookup(const __grid_constant__ lookup_args a) {
    let_successor_start();
    wait_for_inputs();
    const int which = blockIdx.x, sequence = blockIdx.y;
    const long length = y_numel[which] / tokens;
    const table_t* row = item(a.table, which) + long(a.positions[sequence]) * length;
    y_t* y = item(a.y, which) + sequence * length;
    for (long i = threadIdx.x; i < length; i += blockDim.x) y[i] = row[i];
}
