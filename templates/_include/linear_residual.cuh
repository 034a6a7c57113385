// Epilogue of a linear layer with a residual: y[row] = sum + residual[row] (+ bias[row]), added in float, rounded once.
//
// The lane that holds a row's sum adds what it loaded before the sums were there (the latency of residual and bias
// hides behind the weights) and stores one element. So the addition needs no kernel and no pass over memory of its own.
// Needs a `rows_times`: gemv.cuh or bulk.cuh.
template <class W, long K, int COUNT, class A, class In>
__device__ inline void residual_rows(const A& a, const long (&rows_of)[COUNT], const In& in) {
    rows_times<W, K, 1>(
        rows_of, in, [&](int, int) { return a.w; },
        [&](int, long row) { return to_float(a.r[row]) + (has_b ? to_float(a.b[row]) : 0.0f); },
        [&](int, long row, const float (&v)[1], float more) { put(a.y + row, v[0] + more); });
}
