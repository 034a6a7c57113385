#include "gated.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    const auto staged = [&](float* room) { return stage<hidden, wg_t>(a.x, room); };
    gated_rows<wg_t, hidden>(a.wg, a.wu, wg_rows, a.y, staged);
}
