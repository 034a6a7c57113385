// Small matrix products whose operands are in cache: c[r][j] += sum_k a[r][k] * b[k][j], HIGH rows by ACROSS columns at
// a time, for the two products of blocked attention (attention_chunk.h).
//
//   c    HIGH rows x 2 vectors   in registers over all k: 12 accumulators on 16 registers, 24 on 32
//   b    panels of ACROSS = 2 * LANES columns: element k of a panel is two vectors, one ascending stream
//   a    row-major; an element is broadcast to both vectors of its row
//
// A step over k is 2 loads and HIGH broadcasts for 2 * HIGH multiply-adds, so the multiply-adds are what bounds it and
// there are enough of them to hide their latency. Every element of c is a sum of its own over ascending k: its bits do
// not depend on the rows beside it. With vdpbf16ps (AVX-512 BF16) a cell of 4 bytes is two neighbours of bf16 instead
// of one float, and a step adds two products.
#include "simd.h"

constexpr int HIGH = LANES == 16 ? 12 : 6;
constexpr long ACROSS = 2 * LANES;

template <class T> constexpr bool paired = std::is_same_v<T, bf16> && ISA_AVX512_BF16 && LANES == 16;
// Cells of a row of D elements, and the cells that a panel has room for.
template <class T, long D> constexpr long cells_of = paired<T> ? D / 2 : D;
constexpr long whole_vectors(long n) { return (n + LANES - 1) / LANES * LANES; }
constexpr long whole_panels(long n) { return (n + ACROSS - 1) / ACROSS * ACROSS; }

template <bool PAIRED> inline vf multiply_add(vf acc, vf b, const float* a) {
#if ISA_AVX512_BF16 && LANES == 16
    if constexpr (PAIRED) {
        int32_t pair;
        std::memcpy(&pair, a, 4);
        return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)b, (__m512bh)_mm512_set1_epi32(pair));
    }
#endif
    return fused(b, splat(*a), acc);
}

typedef vf Tile[HIGH][2];

// Adds a[0, HIGH)[0, depth) times b[0, depth) to a tile.
template <bool PAIRED, long STRIDE> inline void multiply(Tile& c, const float* a, const float* b, long depth) {
    for (long k = 0; k < depth; ++k) {
        const vf left = wide::load(b + k * ACROSS), right = wide::load(b + k * ACROSS + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < HIGH; ++r) {
            c[r][0] = multiply_add<PAIRED>(c[r][0], left, a + r * STRIDE + k);
            c[r][1] = multiply_add<PAIRED>(c[r][1], right, a + r * STRIDE + k);
        }
    }
}

// The same for the elements k in [begin, end) that a row has: those in [low[r], high[r]). The others are not read into
// its sums.
template <long STRIDE>
inline void multiply_some(
    Tile& c, const float* a, const float* b, long begin, long end, const long (&low)[HIGH], const long (&high)[HIGH]) {
    for (long k = begin; k < end; ++k) {
        const vf left = wide::load(b + k * ACROSS), right = wide::load(b + k * ACROSS + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < HIGH; ++r) {
            if (k < low[r] || k >= high[r]) continue;
            c[r][0] = multiply_add<false>(c[r][0], left, a + r * STRIDE + k);
            c[r][1] = multiply_add<false>(c[r][1], right, a + r * STRIDE + k);
        }
    }
}

// LANES cells of a row from cell i on; zeros beyond its `count` cells.
template <class T> inline vf row_cells(const T* row, long i, long count) {
    vf v = {};
    const long n = std::min<long>(LANES, count - i);
    if constexpr (paired<T>) {
        if (n == LANES) std::memcpy(&v, row + 2 * i, sizeof v);
        else if (n > 0) std::memcpy(&v, row + 2 * i, size_t(n) * 4);
    } else {
        if (n == LANES) return wide::load(row + i);
        for (long j = 0; j < n; ++j) v[j] = to_float(row[i + j]);
    }
    return v;
}

// Where lane j of the two results of a transposition's round over distance H comes from.
template <int H> constexpr int near_lane(int j) { return j & H ? LANES + j - H : j; }
template <int H> constexpr int far_lane(int j) { return j & H ? LANES + j : j + H; }

template <int H, int... J> inline void transposition(vf (&v)[LANES], std::integer_sequence<int, J...> lanes) {
    for (int i = 0; i < LANES; ++i) {
        if (i & H) continue;
        const vf a = v[i], b = v[i + H];
        v[i] = shuffle(a, b, std::integer_sequence<int, near_lane<H>(J)...>{});
        v[i + H] = shuffle(a, b, std::integer_sequence<int, far_lane<H>(J)...>{});
    }
    if constexpr (2 * H < LANES) transposition<2 * H>(v, lanes);
}

// Panels of `n` rows of D elements, a row a column: lane = row. A panel has whole_vectors(cells) steps.
template <class T, long D> inline void pack_rows_across(const T* rows, long n, float* out) {
    constexpr long cells = cells_of<T, D>, room = whole_vectors(cells);
    for (long row = 0; row < whole_panels(n); row += LANES) {
        float* to = out + row / ACROSS * ACROSS * room + row % ACROSS;
        for (long i = 0; i < room; i += LANES) {
            vf v[LANES];
            for (int j = 0; j < LANES; ++j) v[j] = row + j < n ? row_cells(rows + (row + j) * D, i, cells) : vf{};
            transposition<1>(v, std::make_integer_sequence<int, LANES>{});
            for (int j = 0; j < LANES; ++j) wide::store(to + (i + j) * ACROSS, v[j]);
        }
    }
}

// Panels of ACROSS columns of `n` rows of D elements, widened: step = row. A panel has ROOM steps.
template <class T, long D, long ROOM> inline void pack_columns(const T* rows, long n, float* out) {
    for (long s = 0; s < n; ++s)
        for (long i = 0; i < whole_panels(D); i += LANES) {
            vf v = {};
            if (i + LANES <= D) v = wide::load(rows + s * D + i);
            else
                for (long j = i; j < D; ++j) v[j - i] = to_float(rows[s * D + j]);
            wide::store(out + i / ACROSS * ACROSS * ROOM + s * ACROSS + i % ACROSS, v);
        }
}
