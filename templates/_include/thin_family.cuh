// Rows of every matrix of a family for all tokens, each with its bias, to its own output. Needs `thin_times`.
template <class W, long K, int COUNT, class A, class In>
__device__ inline void thin_family(const A& a, const long (&rows_of)[COUNT], const In& in) {
    thin_times<W, K, 1>(
        rows_of, in, [&](int, int matrix) { return pick(a.w, matrix); },
        [&](int matrix, long row, int) { return has_b ? to_float(pick(a.b, matrix)[row]) : 0.0f; },
        [&](int matrix, long row, int token, const float (&v)[1], float bias) {
            put(pick(a.y, matrix) + token * pick(rows_of, matrix) + row, v[0] + bias);
        });
}
