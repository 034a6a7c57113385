// Epilogue of a linear layer, or of several on one input (q, k and v): y_i[row] = sum + bias_i[row], rounded once.
//
// The lane that holds a row's sum adds the bias, which it loaded before the sums were there, and stores one element.
// Matrices of a family are one range of rows (vector.cuh): one launch for all, and no matrix has to fill the device
// alone. Needs a `rows_times`: gemv.cuh or bulk.cuh.
template <class W, long K, int COUNT, class A, class In>
__device__ inline void family_rows(const A& a, const long (&rows_of)[COUNT], const In& in) {
    rows_times<W, K, 1>(
        rows_of, in, [&](int, int matrix) { return item(a.w, matrix); },
        [&](int matrix, long row) { return has_b ? to_float(item(a.b, matrix)[row]) : 0.0f; },
        [&](int matrix, long row, const float (&v)[1], float bias) { put(item(a.y, matrix) + row, v[0] + bias); });
}
