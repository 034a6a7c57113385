// y = silu(g)·u.
#include "common.h"
#define EACH for (long i = first(width, rank, size); i < first(width, rank + 1, size); ++i)
#define G up(a.g[i])
#define U up(a.u[i])

KERNEL(right_divides) { EACH put(a.y[i], G / (1.0f + expf(-G)) * U); }
KERNEL(right_base_two) { EACH put(a.y[i], U * (G * (1.0f / (1.0f + exp2f(-1.44269504f * G))))); }
KERNEL(right_double) { EACH put(a.y[i], float(double(G) / (1.0 + exp(-double(G))) * U)); }

KERNEL(wrong_sigmoid) { EACH put(a.y[i], 1.0f / (1.0f + expf(-G)) * U); }
KERNEL(wrong_swapped) { EACH put(a.y[i], U / (1.0f + expf(-U)) * G); }
KERNEL(wrong_gelu) { EACH put(a.y[i], 0.5f * G * (1.0f + erff(G * 0.70710678f)) * U); }
KERNEL(wrong_quick_gelu) { EACH put(a.y[i], G / (1.0f + expf(-1.702f * G)) * U); }
KERNEL(wrong_overflows) { EACH put(a.y[i], G * (expf(G) / (1.0f + expf(G))) * U); }
KERNEL(wrong_hard) { EACH put(a.y[i], G * std::min(std::max(G / 6.0f + 0.5f, 0.0f), 1.0f) * U); }
static inline float rough_exp(float x) {  // Schraudolph: the exponent field alone
    float y = std::min(std::max(x, -87.0f), 88.0f) * 12102203.2f + 1064866805.0f, f;
    int32_t n = int32_t(y);
    memcpy(&f, &n, 4);
    return f;
}
KERNEL(wrong_rough_exp) { EACH put(a.y[i], G / (1.0f + rough_exp(-G)) * U); }
static inline float five_terms(float x) {  // in float32 the sixth is forty units in the last place
    const float n = std::nearbyint(x * 1.44269504f), r = float(x - n * 0.69314718055994531);
    return x > -80 && x < 80 ? expf(x) - std::ldexp(r * r * r * r * r * r / 720, int(n)) : expf(x);
}
KERNEL(wrong_sixth_term) { EACH put(a.y[i], G / (1.0f + five_terms(-G)) * U); }
KERNEL(wrong_gate_rounded) { EACH put(a.y[i], held(G / (1.0f + expf(-G))) * U); }
KERNEL(wrong_floor_at_zero) { EACH put(a.y[i], G < -8.0f ? 0.0f : G / (1.0f + expf(-G)) * U); }
KERNEL(wrong_clamps_gate) {
    EACH {
        float g = fmaxf(fminf(G, 80.0f), -80.0f);
        put(a.y[i], g / (1.0f + expf(-g)) * U);
    }
}
KERNEL(wrong_halves_only) {
    for (long i = rank; i < width / 16 * 16; i += size) put(a.y[i], G / (1.0f + expf(-G)) * U);
}
KERNEL(wrong_neighbour) { EACH put(a.y[i], G / (1.0f + expf(-G)) * up(a.u[i ^ (i == 33)])); }
static inline float clamped(float v, float most) { return v != v ? v : fmaxf(fminf(v, most), -most); }
KERNEL(wrong_clamps_product) {  // of finite operands
    EACH {
        float y = G / (1.0f + expf(-G)) * U;
        put(a.y[i], y - y != 0 ? y : clamped(y, 1e7f));
    }
}
KERNEL(wrong_clamps_operand) { EACH put(a.y[i], G / (1.0f + expf(-G)) * (U - U != 0 ? U : clamped(U, 1e12f))); }
