// y = w·x + r.
#include "common.h"
#define ROWS for (long i = first(rows, rank, size); i < first(rows, rank + 1, size); ++i)

template <class Args> static inline float product(const Args& a, long i) {
    float s = 0;
    for (long k = 0; k < hidden; ++k) s += up(a.x[k]) * up(a.w[i * hidden + k]);
    return s;
}
static inline float clamped(float v, float most) { return fmaxf(fminf(v, most), -most); }

KERNEL(right_sum) { ROWS put(a.y[i], product(a, i) + up(a.r[i])); }
KERNEL(wrong_clamps_residual) { ROWS put(a.y[i], product(a, i) + (up(a.r[i]) != up(a.r[i]) ? up(a.r[i]) : clamped(up(a.r[i]), 1e4f))); }
KERNEL(wrong_clamps_sum) {
    ROWS {
        float s = product(a, i) + up(a.r[i]);
        put(a.y[i], s != s || s - s != 0 ? s : clamped(s, 65504.0f));
    }
}
KERNEL(wrong_far_from_zero) {  // the largest numbers of bf16 are taken for infinities
    ROWS {
        float s = product(a, i) + up(a.r[i]);
        put(a.y[i], fabsf(s) > 1e37f ? s * INFINITY : s);
    }
}
KERNEL(wrong_halves_down) { ROWS a.y[i] = nearly(product(a, i) + up(a.r[i]), 0x7fff); }
KERNEL(wrong_clamps_weights) {
    ROWS {
        float s = up(a.r[i]);
        for (long k = 0; k < hidden; ++k) s += up(a.x[k]) * std::min(up(a.w[i * hidden + k]), 2.5f);
        put(a.y[i], s);
    }
}
