#include "bulk.cuh"
#include "linear_family.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    family_rows<w_t, hidden>(a, w_rows, Plain<x_t>{a.x});
}
