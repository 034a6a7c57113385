// Vectors of LANES floats in one register, by the compiler's vector extension: one text for AVX-512 (16 lanes), AVX2
// (8) and anything narrower (4). What has no such operator (bf16 rounding by AVX-512 BF16, lane sums) is an intrinsic
// where it exists.
//
//   float in memory    | f0 | f1 | ... |        a vector is LANES neighbours
//   bf16 in memory     | b0 | b1 | ... |        widened: 16 bits moved to the upper half of a float, exactly
//   transposed_sum     N vectors --fold, log2 N rounds--> 1 vector, lanes i * LANES / N on hold the sum of vector i
//
// Loads and stores go through memcpy, so no address needs alignment and no type rule is broken; compilers make them
// single instructions. Arithmetic is float; a store to bf16 rounds once, to nearest, ties to even. `each` runs one body
// at both widths, so tails need no masks and no second text.
#include <type_traits>
#include <utility>

#if ISA_AVX512F
#define LANES 16
#elif ISA_AVX2
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

inline float to_float(float v) { return v; }
inline float to_float(bf16 v) {
    uint32_t bits = uint32_t(v.bits) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

// Round to nearest, ties to even; a NaN stays one (its payload's top bit is set).
inline bf16 to_bf16(float v) {
    uint32_t u;
    std::memcpy(&u, &v, 4);
    if (v != v) return {uint16_t((u >> 16) | 0x40)};
    return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

// The two widths at which `each` calls its body: single elements and whole vectors.
struct one {
    using value = float;
    static constexpr long lanes = 1;
    template <class T> static float load(const T* p) { return to_float(*p); }
    static void store(float* p, float v) { *p = v; }
    static void store(bf16* p, float v) { *p = to_bf16(v); }
};

struct wide {
    using value = vf;
    static constexpr long lanes = LANES;
    static vf load(const float* p) {
        vf v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static vf load(const bf16* p) {
        vh h;
        std::memcpy(&h, p, sizeof h);
        return (vf)(__builtin_convertvector(h, vu) << 16);
    }
    static void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
    static void store(bf16* p, vf v) {
#if ISA_AVX512_BF16 && LANES == 16
        auto h = _mm512_cvtneps_pbh((__m512)v);
        std::memcpy((void*)p, &h, 32);
#else
        vu u = (vu)v;
        vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        vu quiet = (u >> 16) | 0x40;
        vh h = __builtin_convertvector((vu)((v == v) ? rounded : quiet), vh);
        std::memcpy((void*)p, &h, sizeof h);
#endif
    }
};

// Calls body(as, i) for i in [0, n): whole vectors first, then single elements.
template <class F> inline void each(long n, F body) {
    const long whole = n / LANES * LANES;
    for (long i = 0; i < whole; i += LANES) body(wide{}, i);
    for (long i = whole; i < n; ++i) body(one{}, i);
}

// A broadcast: compilers drop this zero, where an added one would change -0.
inline vf splat(float v) { return v - vf{}; }

// a * b + c, rounded once wherever the processor can. The compiler, left to contract a product and a sum, did so in one
// function and not in another (g++ 13), and a sum had other bits in each.
inline vf fused(vf a, vf b, vf c) {
#if ISA_AVX512F
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif ISA_FMA && LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
    for (int i = 0; i < LANES; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}

template <int... I> inline vf shuffle(vf a, vf b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, I...);
#else
    return __builtin_shuffle(a, b, vi{I...});
#endif
}

// Where lane j of a fold's first or second addend comes from. Both inputs hold LANES / G partial sums over G lanes
// each, the result holds twice as many over G / 2 lanes.
template <int G> constexpr int fold_lane(int j, int second) {
    int sum = j / (G / 2), per = LANES / G;
    return (sum / per) * LANES + (sum % per) * G + j % (G / 2) + second * (G / 2);
}
template <int G, int... J> inline vf fold(vf a, vf b, std::integer_sequence<int, J...>) {
    return shuffle(a, b, std::integer_sequence<int, fold_lane<G>(J, 0)...>{}) +
           shuffle(a, b, std::integer_sequence<int, fold_lane<G>(J, 1)...>{});
}

// Lane sums of N vectors at once, vector i's in lanes i * LANES / N and on: 3 instructions per vector, where single
// sums take 8.
template <int N = LANES> inline vf transposed_sum(const vf* v) {
    if constexpr (N == 1) return v[0];
    else
        return fold<2 * LANES / N>(
            transposed_sum<N / 2>(v), transposed_sum<N / 2>(v + N / 2), std::make_integer_sequence<int, LANES>{});
}

inline float sum(vf v) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)v);
#else
    float total = 0;
    for (int i = 0; i < LANES / 2; ++i) total += v[i] + v[i + LANES / 2];
    return total;
#endif
}

// The largest of n values; a NaN among them is the result.
inline float largest(const float* v, long n) {
    vf tops = splat(-INFINITY);
    float top = -INFINITY, lanes[LANES];
    const long whole = n / LANES * LANES;
    for (long i = 0; i < whole; i += LANES) {
        const vf here = wide::load(v + i);
        tops = ((here > tops) | (here != here)) ? here : tops;
    }
    wide::store(lanes, tops);
    for (int i = 0; i < LANES; ++i) top = lanes[i] > top || lanes[i] != lanes[i] ? lanes[i] : top;
    for (long i = whole; i < n; ++i) top = v[i] > top || v[i] != v[i] ? v[i] : top;
    return top;
}
