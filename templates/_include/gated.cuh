// silu(gate) * up. Needs `rows_times`.
#include "silu.cuh"

template <class W, long K, int COUNT, class A, class In>
__device__ inline void gated_rows(const A& a, const long (&rows_of)[COUNT], const In& in) {
    rows_times<W, K, 2>(
        rows_of, in, [&](int side, int) { return side ? a.wu : a.wg; }, [](int, long) { return 0.0f; },
        [&](int, long row, const float (&v)[2], float) { put(a.y + row, silu(v[0]) * v[1]); });
}
