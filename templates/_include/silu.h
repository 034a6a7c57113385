// exp and SiLU. exp is Cephes' expf polynomial, 2 ulp; it overflows to inf and underflows to 0 as expf does.
#include "simd.h"

inline vf exponential(vf x) {
    // The clamps keep n inside what two exponent-field scalings can express; comparisons let a NaN through.
    x = (x > 128.0f * 0.6931472f) ? splat(128.0f * 0.6931472f + 1) : x;
    x = (x < -150.0f * 0.6931472f) ? splat(-150.0f * 0.6931472f) : x;
    vf t = x * 1.44269504f;
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    vf n = (t + magic) - magic;
    vf r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vi k = __builtin_convertvector((n == n) ? n : vf{}, vi), half = k >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
}
inline float exponential(float x) { return std::exp(x); }

template <class V> inline V silu(V x) { return x / (exponential(-x) + 1.0f); }
