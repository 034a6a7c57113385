// The vector of a matrix-vector product: as it is, or normalised by its root mean square on the way in.
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
