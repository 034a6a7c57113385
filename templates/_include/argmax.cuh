// The largest value's index: a NaN comes before every number, the first of equals before the others.
//
// Value and index make one 64-bit key, so that the greatest key is the answer whatever the order it was found in.
#include "device.cuh"

using Key = unsigned long long;

__device__ inline Key key_of(float v, long index) {
    const unsigned bits = __float_as_uint(v + 0.0f);  // -0 and 0 are equal
    const unsigned ordered = v != v ? ALL : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return Key(ordered) << 32 | (ALL - unsigned(index));
}
__device__ inline Key greatest_over_warp(Key key) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        const Key other = __shfl_xor_sync(ALL, key, step);
        key = other > key ? other : key;
    }
    return key;
}
// The block's greatest key meets those of the others in `best`; the block that is last gives the answer and leaves
// both words as it found them, zero. All threads call it.
template <int WARPS_HERE>
__device__ inline void choose(Key mine, Key* best, unsigned* arrived, int64_t* token) {
    __shared__ Key keys[WARPS_HERE];
    mine = greatest_over_warp(mine);
    if (threadIdx.x % WARP == 0) keys[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < WARPS_HERE; ++w) mine = keys[w] > mine ? keys[w] : mine;
    atomicMax(best, mine);
    if (counted(arrived) + 1 != gridDim.x) return;
    *token = int64_t(ALL - unsigned(atomicExch(best, 0ull)));
    *arrived = 0;
}
