// Products of a chunk in AMX tiles: bf16 tokens times tiles of rows16-k2, which are the instruction's second operand
// as they are: 16 pairs of columns x 16 rows are 16 lines, one after another.
//
//                    weights of tile s     of tile s + 1
//   tokens  0 - 15   sums [16][16]         sums [16][16]       all four in tile registers for KBLOCK columns:
//   tokens 16 - 31   sums [16][16]         sums [16][16]       4 loads for 4 products
//
// A whole chunk's tokens lie row after row with a stride, which a tile load takes. The last tokens, fewer than 16, are
// tiles of fewer rows. Columns beyond a multiple of 32 are zeros in the operand; the weights' tile ends there, and is
// copied with zeros behind it.
#include "gemm.h"
#include "tiles.h"

template <class W> struct Tiles {
    static_assert(is_bf16<W>);
    using operand = bf16;
    using weight = bf16;
    static constexpr int tokens = 32, least = 16;
    static constexpr bool direct = false;
    static constexpr long columns = 32;  // of one product
    template <long K> static constexpr long size = (K + 1) / 2 * 2 * TILE;
    template <long K, long KBLOCK> static constexpr long room = K % columns ? KBLOCK * TILE : 1;
    TileUnit unit;

    template <long K> static const weight* weights(const W* tile, int, long first, long depth, weight* copy) {
        const W* w = tile + first * TILE;
        if (depth % columns == 0) return w;
        const long there = (depth + 1) / 2 * 2 * TILE, whole = (depth + columns - 1) / columns * columns * TILE;
        std::memcpy((void*)copy, w, there * sizeof(bf16));
        std::memset((void*)(copy + there), 0, (whole - there) * sizeof(bf16));
        return copy;
    }

    template <int M, long WIDTH, long STRIDE>
    void product(
        const weight* const* w, int count, const operand* x, long depth, bool first, float* sums, int kept,
        long /* ahead */, int /* pass */) {
        if (kept < TILE) unit.shape(kept);
        int s = 0;
        for (; s + 2 <= count; s += 2) block<M / TILE, 2, WIDTH, STRIDE>(w + s, x, depth, first, sums + s * TILE);
        if (s < count) block<M / TILE, 1, WIDTH, STRIDE>(w + s, x, depth, first, sums + s * TILE);
        if (kept < TILE) unit.shape(TILE);
    }

    // A tiles of tokens and B of weights.
    template <int A, int B, long WIDTH, long STRIDE>
    void block(const weight* const* w, const operand* x, long depth, bool first, float* sums) {
        constexpr long pitch = WIDTH * sizeof(float), row = STRIDE * sizeof(bf16);
        float *upper = sums, *lower = sums + TILE * WIDTH;
        if (first) {
            unit.template zero<0>();
            if constexpr (B > 1) unit.template zero<1>();
            if constexpr (A > 1) unit.template zero<2>();
            if constexpr (A * B > 2) unit.template zero<3>();
        } else {
            unit.template load<0>(upper, pitch);
            if constexpr (B > 1) unit.template load<1>(upper + TILE, pitch);
            if constexpr (A > 1) unit.template load<2>(lower, pitch);
            if constexpr (A * B > 2) unit.template load<3>(lower + TILE, pitch);
        }
        for (long k = 0; k < depth; k += columns) {
            unit.template load<4>(x + k, row);
            unit.template load<6>(w[0] + k * TILE, 64);
            unit.template multiply<0, 0>();
            if constexpr (B > 1) {
                unit.template load<7>(w[B - 1] + k * TILE, 64);
                unit.template multiply<0, 1>();
            }
            unit.template zero<4>();
            if constexpr (A > 1) {
                unit.template load<5>(x + TILE * STRIDE + k, row);
                unit.template multiply<1, 0>();
            }
            unit.template zero<6>();
            if constexpr (A * B > 2) unit.template multiply<1, 1>();
            unit.template zero<5>(), unit.template zero<7>();
        }
        unit.template store<0>(upper, pitch);
        if constexpr (B > 1) unit.template store<1>(upper + TILE, pitch);
        if constexpr (A > 1) unit.template store<2>(lower, pitch);
        if constexpr (A * B > 2) unit.template store<3>(lower + TILE, pitch);
    }
};
