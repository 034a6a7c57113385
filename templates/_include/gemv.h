// Matrix times vector (GEMV) on CPU threads: a thread's share of the rows, and its epilogues.
//
//   rows        of all matrices of a family, one after another, in units of UNIT rows: 16 (a tile), or 1 where a matrix
//               is small for the number of threads
//   threads     | rank 0 | rank 1 | ... | rank size - 1 |   consecutive units; shares differ by one unit at most
//   a thread    16 rows (or TILES packed tiles of 16) at a time: sums in registers --> its stack --> emit, the epilogue
//
// The partition is static, so the result does not depend on timing. A thread reads its weights in ascending streams,
// which hardware prefetchers follow. Shares begin at whole units: a tile's 16 results in float are a cache line of 64
// bytes (in bf16 half of one), so threads write to no common line, or to one at a border.
#include "dot.h"

template <class T> inline const T* item(const T* const& p, int) { return p; }
template <class T> inline T* item(T* const& p, int) { return p; }
template <class T, size_t N> inline T* item(T* const (&p)[N], int i) { return p[i]; }

// Calls body(i, begin, end) for the rows of matrix i in this rank's share of COUNT matrices, in units of UNIT rows.
template <long UNIT, size_t COUNT, class F>
inline void share_rows(const long (&counts)[COUNT], int rank, int size, F body) {
    long units = 0, base = 0;
    for (long count : counts) units += (count + UNIT - 1) / UNIT;
    const long begin = units * rank / size, end = units * (rank + 1) / size;
    for (size_t i = 0; i < COUNT; ++i) {
        const long here = (counts[i] + UNIT - 1) / UNIT;
        const long low = std::max(begin, base) - base, high = std::min(end, base + here) - base;
        if (low < high) body(int(i), low * UNIT, std::min(high * UNIT, counts[i]));
        base += here;
    }
}

// Tiles when every thread gets several; single rows when a matrix is small for the number of threads.
template <long ROWS, long THREADS> constexpr long row_unit = ROWS >= 2 * TILE * THREADS ? TILE : 1;

// emit(row, sums, n) for the row-major rows [begin, end).
template <class W, long K, int STREAMS, int UNROLL, long AHEAD, class F>
inline void row_gemv(const W* w, const operand_t<W>* x, long begin, long end, F emit) {
    alignas(64) float sums[TILE];
    long row = begin;
    for (; row + TILE <= end; row += TILE) {
        row_tile<W, K, STREAMS, UNROLL, AHEAD>(w + row * K, x, TILE, sums);
        emit(row, sums, TILE);
    }
    if (row < end) {
        row_tile<W, K, STREAMS, UNROLL, AHEAD>(w + row * K, x, int(end - row), sums);
        emit(row, sums, int(end - row));
    }
}

// emit(row, sums, n) for the packed rows [begin, end), `begin` a multiple of 16.
template <class W, long K, int TILES, int UNROLL, long AHEAD, class F>
inline void packed_gemv(const W* w, const operand_t<W>* x, long begin, long end, F emit) {
    constexpr long width = packed_tile<W, K>;
    alignas(64) float sums[TILES * TILE];
    long row = begin;
    for (; row + TILES * TILE <= end; row += TILES * TILE) {
        packed_tiles<W, K, TILES, UNROLL, AHEAD>(w + row / TILE * width, x, sums);
        for (int t = 0; t < TILES; ++t) emit(row + t * TILE, sums + t * TILE, TILE);
    }
    for (; row < end; row += TILE) {
        packed_tiles<W, K, 1, UNROLL, AHEAD>(w + row / TILE * width, x, sums);
        emit(row, sums, int(std::min<long>(TILE, end - row)));
    }
}

// y[i] = sums[i] (+ bias[i]); a null bias is none.
template <class Y, class B> inline void finish(Y* y, const float* sums, int n, const B* bias) {
    if (bias) each(n, [&](auto as, long i) { as.store(y + i, as.load(sums + i) + as.load(bias + i)); });
    else each(n, [&](auto as, long i) { as.store(y + i, as.load(sums + i)); });
}

// y[i] = sums[i] (+ bias[i]) + residual[i], rounded once.
template <class Y, class B, class R>
inline void finish_residual(Y* y, const float* sums, int n, const B* bias, const R* residual) {
    if (bias)
        each(n, [&](auto as, long i) {
            as.store(y + i, as.load(sums + i) + as.load(bias + i) + as.load(residual + i));
        });
    else each(n, [&](auto as, long i) { as.store(y + i, as.load(sums + i) + as.load(residual + i)); });
}
