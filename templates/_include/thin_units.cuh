// Which rows a block or a warp has, without loading anything first.
#include "vector.cuh"

// One of a row, without a load: an index that is no constant would make it one, before the first weight is asked for.
template <class T, unsigned long N> __device__ inline T pick(T const (&p)[N], int i) {
    T one = p[0];
#pragma unroll
    for (int n = 1; n < N; ++n) one = i == n ? p[n] : one;
    return one;
}
template <class T> __device__ inline T* pick(T* const& p, int) { return p; }
