constexpr long HOLD = 1;  // vectors of the model's width fit in shared memory
#include "thin_plain.cuh"
#include "thin.cuh"
#include "thin_gated.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm(const __grid_constant__ gemm_args a) {
    thin_gated<wg_t, hidden>(a, wg_rows, Plain<x_t>{a.x});
}
