// y = x·rsqrt(mean x² + eps)·(offset + norm) over `groups` rows of `hidden`.
#include "common.h"
#define GROUPS for (long g = rank; g < groups; g += size)

static inline float mean_square(const x_t* x) {
    float s = 0;
    for (long k = 0; k < hidden; ++k) s += up(x[k]) * up(x[k]);
    return s / hidden;
}
static inline void scale_row(y_t* y, const x_t* x, const norm_t* norm, float s) {
    for (long k = 0; k < hidden; ++k) put(y[k], up(x[k]) * s * (offset + up(norm[k])));
}
#define X (a.x + g * hidden)
#define Y (a.y + g * hidden)

KERNEL(right_plain) { GROUPS scale_row(Y, X, a.norm, 1.0f / sqrtf(mean_square(X) + eps)); }
KERNEL(right_double) {
    GROUPS {
        double s = 0;
        for (long k = 0; k < hidden; ++k) s += double(up(X[k])) * up(X[k]);
        scale_row(Y, X, a.norm, float(1.0 / sqrt(s / hidden + eps)));
    }
}
KERNEL(right_weight_first) {
    GROUPS {
        float s = 1.0f / sqrtf(mean_square(X) + eps);
        for (long k = hidden - 1; k >= 0; --k) put(Y[k], (offset + up(a.norm[k])) * s * up(X[k]));
    }
}

KERNEL(wrong_no_eps) { GROUPS scale_row(Y, X, a.norm, 1.0f / sqrtf(mean_square(X))); }
KERNEL(wrong_eps_outside) { GROUPS scale_row(Y, X, a.norm, 1.0f / (sqrtf(mean_square(X)) + eps)); }
KERNEL(wrong_eps_ten_times) { GROUPS scale_row(Y, X, a.norm, 1.0f / sqrtf(mean_square(X) + 10 * eps)); }
KERNEL(wrong_mean_of_one_less) { GROUPS scale_row(Y, X, a.norm, 1.0f / sqrtf(mean_square(X) * hidden / (hidden - 1) + eps)); }
KERNEL(wrong_no_offset) {
    GROUPS {
        float s = 1.0f / sqrtf(mean_square(X) + eps);
        for (long k = 0; k < hidden; ++k) put(Y[k], up(X[k]) * s * up(a.norm[k]));
    }
}
KERNEL(wrong_weight_shifted) {
    GROUPS {
        float s = 1.0f / sqrtf(mean_square(X) + eps);
        for (long k = 0; k < hidden; ++k) put(Y[k], up(X[k]) * s * (offset + up(a.norm[(k + 1) % hidden])));
    }
}
KERNEL(wrong_first_group_for_all) {
    float s = 1.0f / sqrtf(mean_square(a.x) + eps);
    GROUPS scale_row(Y, X, a.norm, s);
}
KERNEL(wrong_narrow_scale) { GROUPS scale_row(Y, X, a.norm, held(1.0f / sqrtf(mean_square(X) + eps))); }
KERNEL(wrong_estimated_root) {  // twelve bits, no Newton step
    GROUPS scale_row(Y, X, a.norm, _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(mean_square(X) + eps))));
}
KERNEL(wrong_narrow_squares) {
    GROUPS {
        float s = 0;
        for (long k = 0; k < hidden; ++k) s = held(s + up(X[k]) * up(X[k]));
        scale_row(Y, X, a.norm, 1.0f / sqrtf(s / hidden + eps));
    }
}
KERNEL(wrong_half_squares) {
    GROUPS {
        _Float16 s = 0;
        for (long k = 0; k < hidden; ++k) s += _Float16(up(X[k])) * _Float16(up(X[k]));
        scale_row(Y, X, a.norm, 1.0f / sqrtf(float(s) / hidden + eps));
    }
}
KERNEL(wrong_zero_for_nan) {
    GROUPS {
        float s = 1.0f / sqrtf(mean_square(X) + eps);
        for (long k = 0; k < hidden; ++k) {
            float v = up(X[k]) * s * (offset + up(a.norm[k]));
            put(Y[k], v == v ? v : 0.0f);
        }
    }
}
KERNEL(wrong_others_scale) {  // every group by rank 0's scale, which is not there yet
    if (rank == 0) for (long g = 0; g < groups; ++g) a.scales[g] = 1.0f / sqrtf(mean_square(X) + eps);
    GROUPS scale_row(Y, X, a.norm, a.scales[g]);
}
KERNEL(wrong_last_group_left) {
    for (long g = rank; g < groups - 1; g += size) scale_row(Y, X, a.norm, 1.0f / sqrtf(mean_square(X) + eps));
}
KERNEL(wrong_in_place) {
    GROUPS {
        x_t* x = const_cast<x_t*>(X);
        float s = 1.0f / sqrtf(mean_square(X) + eps);
        for (long k = 0; k < hidden; ++k) put(x[k], up(x[k]) * s);
        for (long k = 0; k < hidden; ++k) put(Y[k], up(x[k]) * (offset + up(a.norm[k])));
    }
}

// right for everyday magnitudes
KERNEL(wrong_mean_in_half_range) {
    GROUPS {
        float mean = mean_square(X);
        scale_row(Y, X, a.norm, 1.0f / sqrtf((mean > 65504.0f ? INFINITY : mean) + eps));
    }
}
KERNEL(wrong_squares_twice) {
    GROUPS {
        float mean = mean_square(X);
        scale_row(Y, X, a.norm, 1.0f / sqrtf(mean + eps) * (mean * mean < INFINITY ? 1.0f : 0.0f));
    }
}
KERNEL(wrong_clamps_gain) {
    GROUPS {
        float s = 1.0f / sqrtf(mean_square(X) + eps);
        for (long k = 0; k < hidden; ++k) put(Y[k], up(X[k]) * s * std::min(offset + up(a.norm[k]), 3.0f));
    }
}
KERNEL(wrong_nothing_when_tiny) {
    GROUPS scale_row(Y, X, a.norm, mean_square(X) < 1e-9f ? 0.0f : 1.0f / sqrtf(mean_square(X) + eps));
}
