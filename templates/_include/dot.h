// Dot products of weight rows with one activation vector, for bf16 and float weights, with sums in float.
//
//   row-major    row r   | k, k + 1, ... |          lane = column; STREAMS rows side by side, UNROLL accumulators each,
//                                                   and 16 rows' sums over lanes at once (transposed_sum)
//   packed       step k  | row 0 | ... | row 15 |   lane = row; a step is the next 2 bf16 (rows16-k2) or 1 float
//                                                   (rows16-k1) of 16 rows, 64 bytes; no sum over lanes
//
// A tile of 16 packed rows is one ascending stream, and a step multiplies it by a broadcast of the activation. STREAMS
// * UNROLL (TILES * UNROLL) independent accumulators in registers hide the latency of multiply-adds; loads are
// prefetched AHEAD bytes ahead, into cache level INTO. With vdpbf16ps (AVX-512 BF16) the activation stays bf16 and a
// lane adds two products per instruction. Elsewhere a vector of bf16 weights is widened by a shift and a mask, which
// gives its even and its odd elements, so the activation is stored in that order (Order::split) beforehand.
#include "simd.h"

constexpr bool native_bf16 = ISA_AVX512_BF16 && LANES == 16;

template <class W> constexpr bool is_bf16 = std::is_same_v<W, bf16>;
// The type of the activation.
template <class W> using operand_t = std::conditional_t<is_bf16<W> && native_bf16, bf16, float>;
// Weight elements of one vector load.
template <class W> constexpr long step_of = is_bf16<W> ? 2 * LANES : LANES;
template <long K> constexpr long operand_room = (K + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);

enum class Order { natural, split };
template <class W> constexpr Order row_order = is_bf16<W> && !native_bf16 ? Order::split : Order::natural;

template <int... I> inline vf alternate(vf a, vf b, int first, std::integer_sequence<int, I...>) {
    return first ? shuffle(a, b, std::integer_sequence<int, (2 * I + 1)...>{})
                 : shuffle(a, b, std::integer_sequence<int, (2 * I)...>{});
}

// Fills `out` with value(as, i) for i in [0, K), in order O, and its padding with zeros.
template <class W, Order O, long K, class F> inline const operand_t<W>* make_operand(operand_t<W>* out, F value) {
    constexpr long whole = K / (2 * LANES) * (2 * LANES);
    for (long i = 0; i < whole; i += 2 * LANES) {
        vf a = value(wide{}, i), b = value(wide{}, i + LANES);
        if constexpr (O == Order::split) {
            constexpr std::make_integer_sequence<int, LANES> lanes{};
            wide::store(out + i, alternate(a, b, 0, lanes));
            wide::store(out + i + LANES, alternate(a, b, 1, lanes));
        } else {
            wide::store(out + i, a);
            wide::store(out + i + LANES, b);
        }
    }
    for (long i = whole; i < K; ++i) one::store(out + i, value(one{}, i));
    for (long i = K; i < operand_room<K>; ++i) one::store(out + i, 0.0f);
    return out;
}

// The activation itself where it can be read in place, else a copy in `room`.
template <class W, Order O, long K, class X> inline const operand_t<W>* operand(const X* x, operand_t<W>* room) {
    if constexpr (std::is_same_v<X, operand_t<W>> && O == Order::natural && K % 2 == 0) return x;
    else return make_operand<W, O, K>(room, [&](auto as, long i) { return as.load(x + i); });
}

inline vf low_half(vu pairs) { return (vf)(pairs << 16); }
inline vf high_half(vu pairs) { return (vf)(pairs & 0xffff0000u); }
template <class T> inline vu load_pairs(const T* p) {
    vu v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline vf row_step(vf acc, const float* w, const float* x) { return acc + wide::load(w) * wide::load(x); }
inline vf row_step(vf acc, const bf16* w, const float* x) {
    vu pairs = load_pairs(w);
    acc = acc + low_half(pairs) * wide::load(x);
    return acc + high_half(pairs) * wide::load(x + LANES);
}
#if ISA_AVX512_BF16 && LANES == 16
inline vf row_step(vf acc, const bf16* w, const bf16* x) {
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_loadu_si512(x));
}
#endif

// The compiler counts a prefetch's locality down from 3, the first cache; 0 is used once.
template <long AHEAD> inline void fetch(const void* p) {
    if constexpr (AHEAD > 0) __builtin_prefetch(static_cast<const char*>(p) + AHEAD, 0, (4 - INTO) % 4);
}

// Sums by lane of STREAMS rows that lie K apart, read side by side. UNROLL accumulators per row hide the latency of the
// additions.
template <class W, long K, int STREAMS, int UNROLL, long AHEAD>
inline void row_sums(const W* w, const operand_t<W>* x, vf* sums) {
    constexpr long step = step_of<W>, main = K / step * step, turns = main / (step * UNROLL) * (step * UNROLL);
    vf acc[STREAMS][UNROLL] = {};
    for (long k = 0; k < turns; k += step * UNROLL) {
#pragma GCC unroll 8
        for (int u = 0; u < UNROLL; ++u) {
#pragma GCC unroll 8
            for (int s = 0; s < STREAMS; ++s) {
                const W* p = w + s * K + k + u * step;
                if (u * step * sizeof(W) % 64 == 0) fetch<AHEAD>(p);
                acc[s][u] = row_step(acc[s][u], p, x + k + u * step);
            }
        }
    }
    for (long k = turns; k < main; k += step)
        for (int s = 0; s < STREAMS; ++s) acc[s][0] = row_step(acc[s][0], w + s * K + k, x + k);
    for (int s = 0; s < STREAMS; ++s) {
        vf total = acc[s][0];
        for (int u = 1; u < UNROLL; ++u) total += acc[s][u];
        if constexpr (K % step != 0) {
            vf tail = {};
            for (long i = main; i < K; ++i) tail[0] += to_float(w[s * K + i]) * to_float(x[i]);
            total += tail;
        }
        sums[s] = total;
    }
}

// The tile of every kernel here: 16 rows, as in the packed layouts, so that results leave as whole vectors.
constexpr int TILE = 16;

// sums[0, n) of n <= 16 row-major rows.
template <class W, long K, int STREAMS, int UNROLL, long AHEAD>
inline void row_tile(const W* w, const operand_t<W>* x, int n, float* sums) {
    if (n == TILE) {
        vf partial[TILE];
        for (int i = 0; i < TILE; i += STREAMS) row_sums<W, K, STREAMS, UNROLL, AHEAD>(w + i * K, x, partial + i);
        for (int i = 0; i < TILE; i += LANES) wide::store(sums + i, transposed_sum<LANES>(partial + i));
    } else {
        for (int i = 0; i < n; ++i) {
            vf partial;
            row_sums<W, K, 1, UNROLL, AHEAD>(w + i * K, x, &partial);
            sums[i] = sum(partial);
        }
    }
}

constexpr int PARTS = TILE / LANES;

inline void packed_step(vf* acc, const float* w, const float* x) {
    for (int part = 0; part < PARTS; ++part) acc[part] = acc[part] + wide::load(w + part * LANES) * splat(*x);
}
inline void packed_step(vf* acc, const bf16* w, const float* x) {
    for (int part = 0; part < PARTS; ++part) {
        vu pairs = load_pairs(w + part * 2 * LANES);
        acc[part] = acc[part] + low_half(pairs) * splat(x[0]);
        acc[part] = acc[part] + high_half(pairs) * splat(x[1]);
    }
}
#if ISA_AVX512_BF16 && LANES == 16
inline void packed_step(vf* acc, const bf16* w, const bf16* x) {
    int32_t pair;
    std::memcpy(&pair, x, 4);
    acc[0] = (vf)_mm512_dpbf16_ps((__m512)acc[0], (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_set1_epi32(pair));
}
#endif

// Elements of the packed dimension that one step takes: rows16-k2 for bf16, rows16-k1 for float.
template <class W> constexpr long group_of = is_bf16<W> ? 2 : 1;
template <class W, long K> constexpr long packed_tile = (K + group_of<W> - 1) / group_of<W> * group_of<W> * TILE;

// sums[0, 16 * TILES) of TILES packed tiles, read side by side: lane = row, so there is no sum over lanes.
template <class W, long K, int TILES, int UNROLL, long AHEAD>
inline void packed_tiles(const W* w, const operand_t<W>* x, float* sums) {
    constexpr long group = group_of<W>, steps = (K + group - 1) / group, width = group * TILE;
    constexpr long turns = steps / UNROLL * UNROLL;
    vf acc[TILES][UNROLL][PARTS] = {};
    for (long k = 0; k < turns; k += UNROLL) {
#pragma GCC unroll 8
        for (int u = 0; u < UNROLL; ++u) {
#pragma GCC unroll 4
            for (int t = 0; t < TILES; ++t) {
                const W* p = w + t * steps * width + (k + u) * width;
                fetch<AHEAD>(p);
                packed_step(acc[t][u], p, x + (k + u) * group);
            }
        }
    }
    for (long k = turns; k < steps; ++k)
        for (int t = 0; t < TILES; ++t) packed_step(acc[t][0], w + (t * steps + k) * width, x + k * group);
    for (int t = 0; t < TILES; ++t) {
        for (int u = 1; u < UNROLL; ++u)
            for (int part = 0; part < PARTS; ++part) acc[t][0][part] += acc[t][u][part];
        for (int part = 0; part < PARTS; ++part) wide::store(sums + t * TILE + part * LANES, acc[t][0][part]);
    }
}
