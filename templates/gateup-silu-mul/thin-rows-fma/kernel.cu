#include "thin_fma.cuh"
#include "thin_gated.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm(const __grid_constant__ gemm_args a) {
    thin_gated<wg_t, hidden>(a, wg_rows, Plain<x_t>{a.x});
}
