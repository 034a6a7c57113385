#include "device.cuh"

extern "C" __global__ void lookup(const __grid_constant__ lookup_args a) {
    let_successor_start();
    wait_for_inputs();
    const int which = blockIdx.x;
    const table_t* row = item(a.table, which) + long(a.positions[0]) * y_numel[which];
    for (long i = threadIdx.x; i < y_numel[which]; i += blockDim.x) item(a.y, which)[i] = row[i];
}
