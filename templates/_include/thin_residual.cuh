// Rows for all tokens with their bias and the residual, rounded once. Needs `thin_times`.
template <class W, long K, int COUNT, class A, class In>
__device__ inline void thin_residual(const A& a, const long (&rows_of)[COUNT], const In& in) {
    thin_times<W, K, 1>(
        rows_of, in, [&](int, int) { return a.w; },
        [&](int, long row, int token) {
            return to_float(a.r[token * rows_of[0] + row]) + (has_b ? to_float(a.b[row]) : 0.0f);
        },
        [&](int, long row, int token, const float (&v)[1], float more) {
            put(a.y + token * rows_of[0] + row, v[0] + more);
        });
}
