// What the matrix-vector kernels share: the input vector, plain or RMS-normalised, and which rows a warp or block owns.
//
// RMSNorm (Zhang and Sennrich 2019) is fused into the product's prologue, with its scale taken out of the sum:
//     y[r] = sum_k W[r][k] * (x[k] * (norm[k] + offset)) * inverse,    inverse = rsqrt(mean(x^2) + eps)
// `inverse` is one factor for all rows, so it multiplies the finished sums and no product waits for the reduction over
// x (but for tensor cores, which take the normalised vector rounded: thin_normalised.cuh).
//
// Rows of all matrices of a family (q, k and v, for instance) are numbered in units of SIZE rows, matrix after matrix:
//     matrix     |        0        |      1      |
//     unit       |  0  |  1  |  2 -|  3  |  4 ---|    a matrix's last unit may be partial; none straddles two
// so a warp or block works on one matrix, and which one follows from its index by comparisons with constants alone.
#include "device.cuh"

constexpr int THREADS = WARP * WARPS;

template <class X> struct Plain {
    const X* x;
};
template <class X> __device__ inline float inverse_of(const Plain<X>&, float, long) { return 1; }

template <class X, class N> struct Normalised {
    static_assert(sizeof(X) == sizeof(N));
    const X* x;
    const N* norm;
    float eps, offset;
};
// The factor of sums of weights times x times (norm + offset), from the sum of all squares of x.
template <class X, class N> __device__ inline float inverse_of(const Normalised<X, N>& in, float squares, long length) {
    return rsqrtf(squares / float(length) + in.eps);
}

// The rows of one unit.
struct Unit {
    int matrix;
    long row;
    long left;  // rows of the matrix from `row` on; 0: there is no such unit
};
// Unrolled comparisons with constants: an index into the list at run time would be a load before the first weight load.
template <int SIZE, int COUNT> __device__ inline Unit unit_of(const long (&rows_of)[COUNT], long unit) {
    Unit found = {0, 0, 0};
    bool before = true;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const long here = (rows_of[i] + SIZE - 1) / SIZE;
        if (before && unit < here) found = {i, unit * SIZE, rows_of[i] - unit * SIZE}, before = false;
        unit -= here;
    }
    return found;
}
