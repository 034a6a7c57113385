// Rows of every matrix of a family, each with its bias, to its own output. Needs `rows_times`.
template <class W, long K, int COUNT, class A, class In>
__device__ inline void family_rows(const A& a, const long (&rows_of)[COUNT], const In& in) {
    rows_times<W, K, 1>(
        rows_of, in, [&](int, int matrix) { return item(a.w, matrix); },
        [&](int matrix, long row) { return has_b ? to_float(item(a.b, matrix)[row]) : 0.0f; },
        [&](int matrix, long row, const float (&v)[1], float bias) { put(item(a.y, matrix) + row, v[0] + bias); });
}
