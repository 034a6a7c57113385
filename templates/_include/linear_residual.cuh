// Rows with their bias and the residual, rounded once. Needs `rows_times`.
template <class W, long K, int COUNT, class A, class In>
__device__ inline void residual_rows(const A& a, const long (&rows_of)[COUNT], const In& in) {
    rows_times<W, K, 1>(
        rows_of, in, [&](int, int) { return a.w; },
        [&](int, long row) { return to_float(a.r[row]) + (has_b ? to_float(a.b[row]) : 0.0f); },
        [&](int, long row, const float (&v)[1], float more) { put(a.y + row, v[0] + more); });
}
