// What sample.cu searches: keys whose unsigned order is that of the logits, and their masses as integers.
//
// Before this text stand `vocab`, `BYTES` and `EXPONENT` (bits of one) of a logit, `ROWS`, `BLOCKS` of a row (1, or those
// of a cluster) and `THREADS` of a block. A logit is its bits here.
using int64_t = long long;
using uint64_t = unsigned long long;
template <int> struct Bits { using type = unsigned; };
template <> struct Bits<2> { using type = unsigned short; };
using logit_t = Bits<BYTES>::type;

constexpr unsigned ALL = 0xffffffffu;
constexpr int KEY_BITS = 8 * BYTES, PER_LOAD = 16 / BYTES, VECTORS = (vocab + PER_LOAD - 1) / PER_LOAD;
constexpr unsigned MASK = ALL >> (32 - KEY_BITS), SIGN = 1u << (KEY_BITS - 1);
constexpr unsigned INFINITE = ((1u << EXPONENT) - 1) << (KEY_BITS - 1 - EXPONENT);
constexpr int HALF = 18;  // bits: a mass, 2^36 at most, is added as two words

// Greater numbers have greater keys; the two zeros are one, and a NaN has the least.
__device__ inline unsigned key_of(unsigned bits) {
    if ((bits & ~SIGN) > INFINITE) return 0;
    if (bits == SIGN) bits = 0;
    return (bits & SIGN ? ~bits : bits | SIGN) & MASK;
}
__device__ inline float number_of(unsigned key) {
    const unsigned bits = (key & SIGN ? key ^ SIGN : ~key) & MASK;
    if constexpr (EXPONENT == 8) return __uint_as_float(bits << (32 - KEY_BITS));
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)bits));
    return f;
}

// 16 bytes of logits or of keys.
struct alignas(16) Words { unsigned word[4]; };

__device__ inline unsigned element(const Words& v, int i) {
    return v.word[i * BYTES / 4] >> (KEY_BITS * i % 32) & MASK;
}
__device__ inline void put(Words& v, int i, unsigned one) { v.word[i * BYTES / 4] |= one << (KEY_BITS * i % 32); }

__device__ inline Words load(const logit_t* logits, int vector) {
    if constexpr (vocab % PER_LOAD == 0) {
        return reinterpret_cast<const Words*>(logits)[vector];
    } else {
        if (ROWS == 1 && vector + 1 < VECTORS) return reinterpret_cast<const Words*>(logits)[vector];
        Words v{};  // the last one, or one of a row that does not begin at 16 bytes
#pragma unroll
        for (int i = 0; i < PER_LOAD; ++i)
            if (ROWS == 1 ? i < vocab % PER_LOAD : vector * PER_LOAD + i < vocab) put(v, i, logits[vector * PER_LOAD + i]);
        return v;
    }
}

// Scores are logits over the temperature, rounded as float32 division rounds. In float32 a key is a score's, because
// two logits may share one score; in 16 bits no two do, and a key is a logit's.
struct Scale {
    float temperature, top = 0.0f;
    unsigned top_key = 0;

    __device__ explicit Scale(float temperature) : temperature(temperature) {}
    // Masses count from the largest logit, whose key this is.
    __device__ void settle(unsigned largest_logit) {
        top = over(number_of(largest_logit));
        top_key = BYTES == 4 ? key_of(__float_as_uint(top)) : largest_logit;
    }
    __device__ float over(float v) const {
        return temperature == 1.0f || temperature == 0.0f ? v : __fdiv_rn(v, temperature);
    }
    __device__ float score(unsigned key) const { return BYTES == 4 ? number_of(key) : over(number_of(key)); }
    __device__ unsigned key(unsigned bits) const {
        return key_of(BYTES == 4 ? __float_as_uint(over(__uint_as_float(bits))) : bits);
    }

    // 2^36 * 2^((score - top) * log2(e)) in two words. Every operation is one of IEEE 754: any machine finds the same.
    __device__ uint2 halves(unsigned key) const {
        if (key == top_key) return make_uint2(1u << HALF, 0);
        const float s = score(key), d = __fsub_rn(top, s);
        if (!(d < 26.0f)) return make_uint2(0, 0);  // below half a unit
        const float near = __fsub_rn(top, d);       // d + rest is the difference exactly (Knuth's two-sum)
        const float rest = __fadd_rn(__fsub_rn(top, __fadd_rn(d, near)), __fsub_rn(near, s));
        constexpr float LOG2E = 1.442695f, LOG2E_REST = 1.925963e-8f, ROUND = 12582912.0f;
        const float y = __fmul_rn(d, LOG2E);
        const float y_rest = __fmaf_rn(rest, LOG2E, __fmaf_rn(d, LOG2E_REST, __fmaf_rn(d, LOG2E, -y)));
        const float shifted = __fadd_rn(y, ROUND);
        const unsigned whole = __float_as_uint(shifted) - __float_as_uint(ROUND);
        const float f = __fadd_rn(__fsub_rn(y, __fsub_rn(shifted, ROUND)), y_rest);  // -1/2 ... 1/2
        float p = __fmaf_rn(f, 0x1.444004p-13f, -0x1.5f0896p-10f);  // 2^-f within 9e-9: Chebyshev interpolation
        p = __fmaf_rn(f, p, 0x1.3b2a1cp-7f);
        p = __fmaf_rn(f, p, -0x1.c6af6cp-5f);
        p = __fmaf_rn(f, p, 0x1.ebfbe0p-3f);
        p = __fmaf_rn(f, p, -0x1.62e430p-1f);
        p = __fmaf_rn(f, p, 1.0f);
        const float v = __fmul_rn(p, __uint_as_float((127 + HALF - whole) << 23));
        const unsigned high = __float2uint_rz(v);
        return make_uint2(high, __float2uint_rn(__fmul_rn(__fsub_rn(v, __uint2float_rn(high)), float(1 << HALF))));
    }
    __device__ uint64_t mass(unsigned key) const {
        const uint2 two = halves(key);
        return (uint64_t(two.x) << HALF) + two.y;
    }
};
