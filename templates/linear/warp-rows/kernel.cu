#include "linear_family.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    const auto staged = [&](float* room) { return stage<hidden, w_t>(a.x, room); };
    family_rows<w_t, hidden>(a, w_rows, staged);
}
