// Products of a chunk by fused multiply-adds of vectors: a lane is a row, a broadcast element of the operand a token.
//
//   a block       M tokens x V vectors of rows, all M * V sums in registers: 12 of AVX2's 16, 24 of AVX-512's 32
//   a column      V loads of weights, M broadcasts, M * V multiply-adds: as many as hide their own latency
//
// Weights of rows16-k1 are floats and read as they are. Pairs of rows16-k2 are multiplied as they are by vdpbf16ps
// (AVX-512 BF16), which adds two products a lane. Elsewhere a tile's KBLOCK columns are widened once, by a shift and a
// mask, into a copy in cache that all tokens read: a widening in the block would cost as much as its multiply-adds.
#include "gemm.h"

constexpr bool native_bf16 = ISA_AVX512_BF16 && LANES == 16;

inline vf load_weights(const float* p) { return wide::load(p); }
inline vf spread(const float* x) { return splat(*x); }
inline vf add_product(vf sum, vf w, vf x) { return fused(w, x, sum); }
#if ISA_AVX512_BF16 && LANES == 16
inline __m512i load_weights(const bf16* p) { return _mm512_loadu_si512(p); }
inline __m512i spread(const bf16* x) {
    int32_t pair;
    std::memcpy(&pair, x, 4);
    return _mm512_set1_epi32(pair);
}
inline vf add_product(vf sum, __m512i w, __m512i x) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x); }
#endif

// M tokens x N vectors, the vector `at` of a panel first; each column prefetches a line from `next` on.
//
// A function of its own, so that the sums have all registers:
// inlined, constants of the code around it stayed in some, and two sums lived on the stack (half the speed, g++ 12).
template <class W, int GROUP, int M, int N, long WIDTH, long STRIDE>
[[gnu::noinline]] static void block(
    const W* const* w, int at, const W* x, long depth, bool first, float* sums, const W* next) {
    constexpr int parts = TILE / LANES;
    const W* from[N];
    for (int v = 0; v < N; ++v) from[v] = w[(at + v) / parts] + (at + v) % parts * LANES * GROUP;
    vf acc[M][N];
#pragma GCC unroll 24
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) acc[m][v] = first ? vf{} : wide::load(sums + m * WIDTH + v * LANES);
    for (long k = 0; k < depth; k += GROUP) {
        __builtin_prefetch(next + k * TILE, 0, 2);
        decltype(load_weights(from[0])) column[N];
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) column[v] = load_weights(from[v] + k * TILE);
#pragma GCC unroll 24
        for (int m = 0; m < M; ++m) {
            const auto here = spread(x + m * STRIDE + k);
#pragma GCC unroll 4
            for (int v = 0; v < N; ++v) acc[m][v] = add_product(acc[m][v], column[v], here);
        }
    }
#pragma GCC unroll 24
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) wide::store(sums + m * WIDTH + v * LANES, acc[m][v]);
}

template <class W, int V> struct Vectors {
    static constexpr bool pairs = is_bf16<W> && native_bf16, widened = is_bf16<W> && !native_bf16, direct = !widened;
    using operand = std::conditional_t<pairs, bf16, float>;
    using weight = operand;
    static constexpr int parts = TILE / LANES, group = pairs ? 2 : 1;
    static constexpr int tokens = (LANES == 16 ? 24 : 12) / V, least = 1;
    template <long K, long KBLOCK> static constexpr long room = widened ? KBLOCK * TILE : 1;
    template <long K> static constexpr long size = (is_bf16<W> ? (K + 1) / 2 * 2 : K) * TILE;

    // Columns [first, first + depth) of a packed tile, `copy` where they are not read as they are.
    template <long K> static const weight* weights(const W* tile, int, long first, long depth, weight* copy) {
        const W* w = tile + first * TILE;
        if constexpr (!widened) return w;
        else {
            for (long k = 0; k < depth; k += 2)
                for (int part = 0; part < parts; ++part) {
                    vu both;
                    std::memcpy(&both, w + k * TILE + part * 2 * LANES, sizeof both);
                    wide::store(copy + k * TILE + part * LANES, (vf)(both << 16));
                    wide::store(copy + (k + 1) * TILE + part * LANES, (vf)(both & 0xffff0000u));
                }
            return copy;
        }
    }

    // sums[m][16 * s, ...) of M tokens and `count` tiles, from zero when `first`; x is the columns' first element.
    template <int M, long WIDTH, long STRIDE>
    static void product(
        const weight* const* w, int count, const operand* x, long depth, bool first, float* sums, int /* kept */,
        long ahead, int pass) {
        some<M, V, WIDTH, STRIDE>(w, 0, count * parts, x, depth, first, sums, ahead, pass);
    }

    template <int M, int N, long WIDTH, long STRIDE>
    static void some(
        const weight* const* w, int at, int end, const operand* x, long depth, bool first, float* sums, long ahead,
        int pass) {
        for (; at + N <= end; at += N) {
            // A pass prefetches for one of a block's vectors; what was prefetched, or is a copy, costs little again.
            const weight* own = w[(at + pass % N) / parts];
            const weight* next = pass < N ? own + ahead : own;
            block<weight, group, M, N, WIDTH, STRIDE>(w, at, x, depth, first, sums + at * LANES, next);
        }
        if constexpr (N > 1) some<M, N / 2, WIDTH, STRIDE>(w, at, end, x, depth, first, sums, ahead, pass);
    }
};
