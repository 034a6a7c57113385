#include "bulk.cuh"
#include "linear_argmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    choose_row<w_t, hidden, logits_t>(a, w_rows, Plain<x_t>{a.x});
}
