#include "thin_normalised.cuh"
#include "thin.cuh"
#include "thin_argmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm(const __grid_constant__ gemm_args a) {
    thin_choice<w_t, hidden, logits_t>(a, w_rows, Normalised<x_t, norm_t>{a.x, a.norm, eps, offset});
}
