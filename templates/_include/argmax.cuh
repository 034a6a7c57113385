// Argmax over all rows of all blocks: a NaN comes before every number, the first of equal values before the others.
//
// Value and index make one 64-bit key, and the greatest key is the answer:
//   | 32 bits: the float mapped to unsigned so that order is kept; NaN all ones | 32 bits: ~index |
//     lanes --shuffles--> warp --shared memory--> block --atomicMax--> `best` in memory --last block--> token
// Maxima of keys that are all different do not depend on their order, so the atomics give the same answer every time.
// The last block is found by a counter of blocks, which saves a second kernel; it resets `best` and the counter to zero
// for the next launch.
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
// Merges the block's greatest key into `best`; the last block to arrive writes the answer and leaves both words as they
// were, zero. All threads call it, with WARPS_HERE warps.
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
