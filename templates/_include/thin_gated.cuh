// Epilogue of a gated MLP for all tokens: y[token][row] = silu(gate) * up in float, rounded once.
//
// `thin_times` with two matrices side by side: row r of gate and row r of up meet the same vectors in the same warps,
// and both sums end in one thread, so neither is written to memory. Needs a `thin_times`: thin.cuh or thin_fma.cuh.
#include "silu.cuh"

template <class W, long K, int COUNT, class A, class In>
__device__ inline void thin_gated(const A& a, const long (&rows_of)[COUNT], const In& in) {
    thin_times<W, K, 2>(
        rows_of, in, [&](int side, int) { return side ? a.wu : a.wg; }, [](int, long, int) { return 0.0f; },
        [&](int, long row, int token, const float (&v)[2], float) {
            put(a.y + token * rows_of[0] + row, silu(v[0]) * v[1]);
        });
}
