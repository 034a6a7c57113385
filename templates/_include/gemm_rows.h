// Products of a chunk with row-major weights: KBLOCK columns of 16 rows are turned into a tile as the packed layouts
// have it, once for all tokens, and multiplied as those (gemm_vectors.h).
//
//   rows in memory        r0 | k, k + 1, ... |        copy    k     | r0 | r1 | ... | r15 |     floats, or pairs of bf16
//                         r1 | k, k + 1, ... |   -->          k + 1 | r0 | r1 | ... | r15 |     for vdpbf16ps
//
// LANES rows by LANES elements are turned in registers, in log2 LANES rounds of shuffles. It costs as much as some ten
// tokens' products, so it pays for longer chunks; a layout that needs no turning is the better one for short ones.
#include "gemm_vectors.h"

// Where lane j of the first or second of two vectors comes from when blocks of S lanes change places.
template <int S> constexpr int swapped_lane(int j, int second) {
    const bool upper = j & S;
    return second ? (upper ? LANES + j : j + S) : (upper ? LANES + j - S : j);
}
template <int S, int... J> inline void swap_blocks(vf& a, vf& b, std::integer_sequence<int, J...>) {
    const vf first = shuffle(a, b, std::integer_sequence<int, swapped_lane<S>(J, 0)...>{});
    b = shuffle(a, b, std::integer_sequence<int, swapped_lane<S>(J, 1)...>{});
    a = first;
}
// The transpose of LANES vectors, bit for bit.
template <int S = LANES / 2> inline void transpose(vf* v) {
    if constexpr (S > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            if (!(i & S)) swap_blocks<S>(v[i], v[i + S], std::make_integer_sequence<int, LANES>{});
        transpose<S / 2>(v);
    }
}

template <class W, int V> struct RowVectors : Vectors<W, V> {
    using Vectors<W, V>::pairs;
    using Vectors<W, V>::parts;
    using typename Vectors<W, V>::weight;
    static constexpr bool direct = false;
    template <long K, long KBLOCK> static constexpr long room = KBLOCK * TILE;
    template <long K> static constexpr long size = K * TILE;

    // Columns [first, first + depth) of 16 rows, as a tile; the last of `height` rows stands for those that are missing.
    template <long K> static const weight* weights(const W* w, int height, long first, long depth, weight* copy) {
        constexpr long group = pairs ? 2 : 1, step = group * LANES;
        const long whole = depth / step * step;
        for (int part = 0; part < parts; ++part) {
            const W* from[LANES];
            for (int i = 0; i < LANES; ++i) from[i] = w + std::min(part * LANES + i, height - 1) * K + first;
            weight* to = copy + part * LANES * group;
            for (long k = 0; k < whole; k += step) {
                vf v[LANES];
                for (int i = 0; i < LANES; ++i)
                    if constexpr (pairs) std::memcpy(&v[i], from[i] + k, sizeof v[i]);
                    else v[i] = wide::load(from[i] + k);
                transpose(v);
                for (int i = 0; i < LANES; ++i) std::memcpy((void*)(to + (k + i * group) * TILE), &v[i], sizeof v[i]);
            }
            for (long k = whole; k < depth; k += group)
                for (int i = 0; i < LANES; ++i)
                    for (long g = 0; g < group; ++g)
                        one::store(to + k * TILE + i * group + g, k + g < depth ? to_float(from[i][k + g]) : 0.0f);
        }
        return copy;
    }
};
