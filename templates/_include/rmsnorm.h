// RMS norm (Zhang and Sennrich 2019) in float: x / sqrt(mean(x^2) + eps) * (offset + weight), rounded once at the end.
// Here is its factor 1 / sqrt(mean(x^2) + eps).
//
// One CPU thread sums the whole vector: lane l of accumulator u has elements l +
// LANES * u of every 4 * LANES. Four accumulators hide the latency of the additions,
// which one would wait for. The order of the sum is fixed by K and LANES.
#include "simd.h"

template <long K, class X> inline float inverse_rms(const X* x, float eps) {
    vf acc[4] = {};
    float tail = 0;
    constexpr long whole = K / (4 * LANES) * (4 * LANES);
    for (long i = 0; i < whole; i += 4 * LANES)
        for (int u = 0; u < 4; ++u) {
            vf v = wide::load(x + i + u * LANES);
            acc[u] += v * v;
        }
    for (long i = whole; i < K; ++i) tail += to_float(x[i]) * to_float(x[i]);
    float total = sum((acc[0] + acc[1]) + (acc[2] + acc[3])) + tail;
    return 1.0f / std::sqrt(total / float(K) + eps);
}
