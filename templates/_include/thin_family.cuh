// Epilogue of a linear layer, or of several on the same inputs (q, k and v), for all tokens: y_i[token][row] = sum +
// bias_i[row], rounded once.
//
// The thread that holds the sum of a row and a token adds the bias, which it loaded before the sums were there, and
// stores one element; neighbouring threads have neighbouring rows. Matrices of a family are one range of units
// (vector.cuh): one launch for all. Needs a `thin_times`: thin.cuh or thin_fma.cuh.
template <class W, long K, int COUNT, class A, class In>
__device__ inline void thin_family(const A& a, const long (&rows_of)[COUNT], const In& in) {
    thin_times<W, K, 1>(
        rows_of, in, [&](int, int matrix) { return pick(a.w, matrix); },
        [&](int matrix, long row, int) { return has_b ? to_float(pick(a.b, matrix)[row]) : 0.0f; },
        [&](int matrix, long row, int token, const float (&v)[1], float bias) {
            put(pick(a.y, matrix) + token * pick(rows_of, matrix) + row, v[0] + bias);
        });
}
