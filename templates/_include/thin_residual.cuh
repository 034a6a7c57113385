// Epilogue of a linear layer with a residual, for all tokens: y[token][row] = sum + residual[token][row] (+ bias[row]),
// added in float, rounded once.
//
// The thread that holds the sum of a row and a token adds what it loaded before the sums were there (that latency hides
// behind the weights) and stores one element. So the addition needs no kernel and no pass over memory of its own. Needs
// a `thin_times`: thin.cuh or thin_fma.cuh.
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
