// Matrix products of a chunk of tokens (GEMM) on CPU threads: who multiplies what, in which order, and the epilogues.
//
//   y [n, rows]      tiles of 16 rows  →
//        tokens ↓    | rank 0         | rank 1         | ... |     consecutive tiles of all matrices of a family; where
//                    |                |                |     |     tiles are few for the threads, tokens are shared too
//   a thread         a panel of PANEL tiles at a time, and of it KBLOCK columns at a time:
//                      weights   [PANEL][KBLOCK x 16]   from the resident layout, or widened once   --> L1 or L2
//                      operand   [M tokens][KBLOCK]     read by every tile of the panel             --> L1
//                      sums      [n][PANEL * 16]        of the columns so far, on the stack         --> L2
//                      a block   M tokens x some rows   in registers for all KBLOCK columns
//
// A block multiplies from registers and the caches nearest to them. The panel's weights come from memory once and are
// reused by all tokens; the operand, larger than a cache of one core, is read once a panel instead of once a tile.
//
// A sum is added up in the order of its columns, whatever tokens, tiles and threads are beside it: a token has the same
// bits in every chunk. The partition is static, so the result does not depend on timing.
//
// An engine E multiplies a block: its `operand` and `weight` types, the `tokens` of its largest and its `least` block,
// the elements of a tile, `weights` (a tile's columns as it reads them) and `product`, of M tokens or of the `kept` last.
//
// Where an engine reads weights as they lie, its first passes over some columns prefetch those that come next, `ahead`
// elements on: with few tokens a panel's weights would else come from memory while nothing is multiplied.
#include "simd.h"

constexpr int TILE = 16;    // rows of a tile of the packed layouts
constexpr long SPAN = 256;  // tokens whose sums lie on the stack at a time

template <class W> constexpr bool is_bf16 = std::is_same_v<W, bf16>;
// Elements between two tokens of the operand: a few lines more than a row, as rows that lie a power of two apart would
// share the same sets of the cache. A kernel's workspace is as large.
template <long K> constexpr long stride_of = (K + 31) / 32 * 32 + 32;
template <class T> inline const T* item(const T* const& p, int) { return p; }
template <class T> inline T* item(T* const& p, int) { return p; }
template <class T, size_t N> inline T* item(T* const (&p)[N], int i) { return p[i]; }

// In how many parts the tokens are shared: with the fewest steps of the busiest thread, which handles each of its tiles
// once and multiplies it with each of its blocks of tokens.
inline int token_parts(long tiles, long blocks, int size) {
    int best = 1;
    long least = 0;
    for (int parts = 1; parts <= size; ++parts) {
        if (size % parts != 0) continue;
        const long groups = size / parts;
        const long steps = (tiles + groups - 1) / groups * ((blocks + parts - 1) / parts + 1);
        if (parts == 1 || steps < least) best = parts, least = steps;
    }
    return best;
}

// Calls body(i, first, last, begin, end) for the tiles of matrix i and the tokens of n in this rank's share of COUNT
// matrices; tokens in whole blocks of BLOCK.
template <long BLOCK, size_t COUNT, class F>
inline void share_tiles(const long (&counts)[COUNT], long n, int rank, int size, F body) {
    long tiles = 0, base = 0;
    for (long count : counts) tiles += (count + TILE - 1) / TILE;
    const long blocks = (n + BLOCK - 1) / BLOCK;
    const int parts = token_parts(tiles, blocks, size), groups = size / parts, group = rank / parts, part = rank % parts;
    const long first = tiles * group / groups, last = tiles * (group + 1) / groups;
    const long begin = blocks * part / parts * BLOCK, end = std::min(blocks * (part + 1) / parts * BLOCK, n);
    if (begin >= end) return;
    for (size_t i = 0; i < COUNT; ++i) {
        const long here = (counts[i] + TILE - 1) / TILE;
        const long low = std::max(first, base) - base, high = std::min(last, base + here) - base;
        if (low < high) body(int(i), low, high, begin, end);
        base += here;
    }
}

// Tokens [t, stop) of one block of columns: M at a time, the rest by halves of M.
template <class E, int M, long WIDTH, long STRIDE, class F>
inline void token_blocks(
    E& engine, const typename E::weight* const* weights, int count, const typename E::operand* x, long t, long stop,
    long base, long k, long depth, bool done, float* sums, F& emit, long ahead, int pass = 0) {
    const auto block = [&](int kept) {
        float* here = sums + (t - base) * WIDTH;
        engine.template product<M, WIDTH, STRIDE>(
            weights, count, x + t * STRIDE + k, depth, k == 0, here, kept, ahead, pass++);
        if (done)
            for (int m = 0; m < kept; ++m) emit(t + m, here + m * WIDTH);
    };
    for (; t + M <= stop; t += M) block(M);
    if constexpr (M > E::least)
        token_blocks<E, M / 2, WIDTH, STRIDE>(
            engine, weights, count, x, t, stop, base, k, depth, done, sums, emit, ahead, pass);
    else if (t < stop) block(int(stop - t));
}

// `count` <= PANEL tiles, and how many rows each has.
template <class W, int PANEL> struct Panel {
    const W* tiles[PANEL];
    int heights[PANEL];
    int count = 0;
    void add(const W* tile, long rows_left) {
        tiles[count] = tile;
        heights[count++] = int(std::min<long>(TILE, rows_left));
    }
};

// emit(token, sums) for tokens [begin, end): the sums of a panel's tiles, 16 of each; the next panel is STEP tiles on.
template <class E, int PANEL, int STEP, long KBLOCK, long K, class W, class F>
inline void multiply_panel(
    E& engine, const Panel<W, PANEL>& panel, const typename E::operand* x, long begin, long end, F emit) {
    constexpr long room = E::template room<K, KBLOCK>;
    alignas(64) float sums[SPAN * PANEL * TILE];
    alignas(64) typename E::weight copies[PANEL * room];
    const typename E::weight* weights[PANEL];
    for (long base = begin; base < end; base += SPAN) {
        const long stop = std::min(base + SPAN, end);
        for (long k = 0; k < K; k += KBLOCK) {
            const long depth = std::min(KBLOCK, K - k);
            for (int s = 0; s < panel.count; ++s)
                weights[s] = engine.template weights<K>(panel.tiles[s], panel.heights[s], k, depth, copies + s * room);
            const bool done = k + KBLOCK >= K;  // then the next panel comes
            const long ahead = !E::direct ? 0 : done ? STEP * E::template size<K> - k * TILE : KBLOCK * TILE;
            token_blocks<E, E::tokens, PANEL * TILE, stride_of<K>>(
                engine, weights, panel.count, x, base, stop, base, k, depth, done, sums, emit, ahead);
        }
    }
}

// emit(token, row, sums, count) for this rank's share of the products of x with the matrices of a family: `count` rows
// of matrix i from `row` on, all in one panel.
template <class E, int PANEL, long KBLOCK, long K, class W, size_t COUNT, class F>
inline void multiply_family(
    const long (&counts)[COUNT], const W& family, const typename E::operand* x, long n, int rank, int size, F emit) {
    E engine;
    share_tiles<E::tokens>(counts, n, rank, size, [&](int i, long first, long last, long begin, long end) {
        const auto* w = item(family, i);
        using element = std::remove_cv_t<std::remove_pointer_t<decltype(w)>>;
        for (long tile = first; tile < last; tile += PANEL) {
            Panel<element, PANEL> panel;
            const long row = tile * TILE, some = std::min(std::min<long>(PANEL, last - tile) * TILE, counts[i] - row);
            for (long at = 0; at < some; at += TILE) panel.add(w + (row + at) / TILE * E::template size<K>, some - at);
            multiply_panel<E, PANEL, PANEL, KBLOCK, K>(
                engine, panel, x, begin, end, [&](long token, const float* sums) { emit(i, token, row, sums, some); });
        }
    });
}

// emit(token, row, gate, up, count) for this rank's share of two matrices with as many rows, side by side in a panel.
template <class E, int PANEL, long KBLOCK, long K, class W, class F>
inline void multiply_pair(
    long rows_of_each, const W* wg, const W* wu, const typename E::operand* x, long n, int rank, int size, F emit) {
    constexpr int HALF = PANEL / 2;
    const long counts[] = {rows_of_each};
    E engine;
    share_tiles<E::tokens>(counts, n, rank, size, [&](int, long first, long last, long begin, long end) {
        for (long tile = first; tile < last; tile += HALF) {
            Panel<W, PANEL> panel;
            const long row = tile * TILE, some = std::min(std::min<long>(HALF, last - tile) * TILE, rows_of_each - row);
            for (const W* w : {wg, wu})
                for (long at = 0; at < some; at += TILE) panel.add(w + (row + at) / TILE * E::template size<K>, some - at);
            const int up = panel.count / 2 * TILE;
            multiply_panel<E, PANEL, HALF, KBLOCK, K>(
                engine, panel, x, begin, end,
                [&](long token, const float* sums) { emit(token, row, sums, sums + up, some); });
        }
    });
}

// y[i] = sums[i] (+ bias[i]); a null bias is none.
template <class Y, class B> inline void finish(Y* y, const float* sums, long count, const B* bias) {
    if (bias) each(count, [&](auto as, long i) { as.store(y + i, as.load(sums + i) + as.load(bias + i)); });
    else each(count, [&](auto as, long i) { as.store(y + i, as.load(sums + i)); });
}

// y[i] = sums[i] (+ bias[i]) + residual[i], rounded once.
template <class Y, class B, class R>
inline void finish_residual(Y* y, const float* sums, long count, const B* bias, const R* residual) {
    if (bias)
        each(count, [&](auto as, long i) {
            as.store(y + i, as.load(sums + i) + as.load(bias + i) + as.load(residual + i));
        });
    else each(count, [&](auto as, long i) { as.store(y + i, as.load(sums + i) + as.load(residual + i)); });
}
