#include "gemv.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    const auto staged = [&](float* room) { return stage<hidden, w_t>(a.x, room); };
    gemv_rows<w_t, hidden>(a.w, w_rows, staged, [&](int, long row, float v) {
        v += to_float(a.r[row]);
        if (has_b) v += to_float(a.b[row]);
        put(a.y + row, v);
    });
}
