// Epilogue of a gated MLP: y[row] = silu(gate[row]) * up[row] in float, rounded once.
//
// `rows_times` with two matrices side by side: the warp (or team) that multiplies row r of gate also multiplies row r
// of up with the same elements of the vector, so both sums end in one lane, and neither is written to memory. Needs a
// `rows_times`: gemv.cuh or bulk.cuh.
#include "silu.cuh"

template <class W, long K, int COUNT, class A, class In>
__device__ inline void gated_rows(const A& a, const long (&rows_of)[COUNT], const In& in) {
    rows_times<W, K, 2>(
        rows_of, in, [&](int side, int) { return side ? a.wu : a.wg; }, [](int, long) { return 0.0f; },
        [&](int, long row, const float (&v)[2], float) { put(a.y + row, silu(v[0]) * v[1]); });
}
