// exp and SiLU of a vector of floats: silu(x) = x / (1 + exp(-x)) (Hendrycks and Gimpel 2016).
//
// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by the polynomial of Cephes' expf (Moshier); 2
// ulp. ln 2 is subtracted in two parts, so that r keeps its low bits, and 2^n is applied as two factors, as n may be
// beyond the exponents of one float. It overflows to inf and underflows to 0 as expf does, and a NaN stays one.
//
// All LANES elements of a vector register go through the same multiplications and additions: no table, no branch and no
// call of the library per element.
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
