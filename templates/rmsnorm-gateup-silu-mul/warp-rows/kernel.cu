#include "gemv.cuh"
#include "gated.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    gated_rows<wg_t, hidden>(a, wg_rows, Normalised<x_t, norm_t>{a.x, a.norm, eps, offset});
}
