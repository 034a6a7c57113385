// y.i = w.i·rmsnorm(x). `n` has hidden floats, `scales` 64.
#include "common.h"

static inline float scale_of(const x_t* x) {
    float s = 0;
    for (long k = 0; k < hidden; ++k) s += up(x[k]) * up(x[k]);
    return 1.0f / sqrtf(s / hidden + eps);
}
template <class Args, class N> static void rows_of(const Args& a, int rank, int size, N normed) {
    for (int i = 0; i < w_count; ++i)
        for (long r = rank; r < w_rows[i]; r += size) {
            float s = 0;
            for (long k = 0; k < hidden; ++k) s += normed(k) * up(a.w[i][r * hidden + k]);
            put(a.y[i][r], s);
        }
}
#define N(k) (up(a.x[k]) * s * (offset + up(a.norm[k])))

KERNEL(right_each_rank) {
    float s = scale_of(a.x);
    rows_of(a, rank, size, [&](long k) { return N(k); });
}
KERNEL(right_shared) {
    if (rank == 0) { float s = scale_of(a.x); for (long k = 0; k < hidden; ++k) a.n[k] = N(k); }
}
KERNEL(right_shared_then) { rows_of(a, rank, size, [&](long k) { return a.n[k]; }); }
KERNEL(right_scale_last) {
    float s = scale_of(a.x);
    for (int i = 0; i < w_count; ++i)
        for (long r = rank; r < w_rows[i]; r += size) {
            float t = 0;
            for (long k = hidden - 1; k >= 0; --k) t += up(a.x[k]) * (offset + up(a.norm[k])) * up(a.w[i][r * hidden + k]);
            put(a.y[i][r], t * s);
        }
}
KERNEL(declared_rounds_n) {  // right when n is declared to be bf16, wrong when it is not
    float s = scale_of(a.x);
    rows_of(a, rank, size, [&](long k) { return held(N(k)); });
}

KERNEL(wrong_no_barrier) {
    if (rank == 0) { float s = scale_of(a.x); for (long k = 0; k < hidden; ++k) a.n[k] = N(k); }
    rows_of(a, rank, size, [&](long k) { return a.n[k]; });
}
KERNEL(wrong_last_matrix_left) {
    float s = scale_of(a.x);
    for (int i = 0; i < w_count - 1; ++i)
        for (long r = rank; r < w_rows[i]; r += size) {
            float t = 0;
            for (long k = 0; k < hidden; ++k) t += N(k) * up(a.w[i][r * hidden + k]);
            put(a.y[i][r], t);
        }
}
KERNEL(wrong_matrices_swapped) {
    float s = scale_of(a.x);
    for (int i = 0; i < w_count; ++i)
        for (long r = rank; r < w_rows[i]; r += size) {
            int other = i == 1 ? 2 : i == 2 ? 1 : 0;
            float t = 0;
            for (long k = 0; k < hidden; ++k) t += N(k) * up(a.w[other][r * hidden + k]);
            put(a.y[i][r], t);
        }
}
KERNEL(wrong_norm_skipped) { float s = scale_of(a.x); rows_of(a, rank, size, [&](long k) { return up(a.x[k]) * s; }); }
KERNEL(wrong_x_rounded_small) {  // n in eight bits with one scale, as a quantised kernel would
    float s = scale_of(a.x), top = 0;
    for (long k = 0; k < hidden; ++k) top = std::max(top, fabsf(N(k)));
    rows_of(a, rank, size, [&](long k) { return top > 0 && top < 1e30f ? rintf(N(k) / top * 127) * top / 127 : N(k); });
}
KERNEL(wrong_partial_norm) {  // each rank's scale comes from its own share of x
    float s = 0;
    long from = first(hidden, rank, size), to = first(hidden, rank + 1, size);
    for (long k = from; k < to; ++k) s += up(a.x[k]) * up(a.x[k]);
    s = 1.0f / sqrtf(s / (to - from) + eps);
    rows_of(a, rank, size, [&](long k) { return N(k); });
}
KERNEL(wrong_clamps_gain) {
    float s = scale_of(a.x);
    rows_of(a, rank, size, [&](long k) { return up(a.x[k]) * s * std::min(offset + up(a.norm[k]), 2.0f); });
}
