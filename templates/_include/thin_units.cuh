// Choosing one of a family's values (pointers, numbers of rows) by an index that is not a constant.
//
// One value per thread, in registers, by comparisons that are unrolled over the family. An index into the array would
// put it into local memory, or make it a load from the kernel's parameters: latency before the first weight load, whose
// address depends on it.
#include "vector.cuh"

// Element i of an array, by selects; of a family of one, its pointer.
template <class T, unsigned long N> __device__ inline T pick(T const (&p)[N], int i) {
    T one = p[0];
#pragma unroll
    for (int n = 1; n < N; ++n) one = i == n ? p[n] : one;
    return one;
}
template <class T> __device__ inline T* pick(T* const& p, int) { return p; }
