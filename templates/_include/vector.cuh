// What both matrix-vector kernels stand on: the vector, as it is or normalised on the way in, and where rows lie.
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
// What sums of weights times x times norm are multiplied by, from the sum of all squares of x.
template <class X, class N> __device__ inline float inverse_of(const Normalised<X, N>& in, float squares, long length) {
    return rsqrtf(squares / float(length) + in.eps);
}

// Rows of all matrices of a family, one matrix after the other, in units of SIZE rows, none of which straddles two.
struct Unit {
    int matrix;
    long row;
    long left;  // rows of the matrix from `row` on; 0: there is no such unit
};
// Every extent is a constant: an index into the list would be a load, before the first weight is asked for.
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
