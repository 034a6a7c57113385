// The language-model head of several tokens: logits = W x (+ bias), rounded to the type of logits, and the index of the
// largest for each token.
//
// As linear_argmax.cuh, with one key per token. A thread keeps
// the greatest key of its rows, all of one token, in registers:
//   SAME_TOKEN lanes --shuffles--> here[token] in shared memory --atomicMax--> best[token] in memory --> last block
// Maxima of keys do not depend on the order in which they come, so atomics give the same answer every time. The first
// warp does the last two steps, a lane per token, and the last block resets `best` and `arrived` to zero for the next
// launch. Needs a `thin_times`: thin.cuh or thin_fma.cuh.
#include "argmax.cuh"

// As `choose`, with one key per token in `best`; `arrived` counts blocks. All threads call it; SAME_TOKEN neighbouring
// lanes have keys of one token.
__device__ inline void choose_each(Key mine, int token, Key* best, unsigned* arrived, int64_t* chosen) {
    __shared__ Key here[tokens];
    if (threadIdx.x < tokens) here[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int step = SAME_TOKEN / 2; step > 0; step /= 2) {
        const Key other = __shfl_xor_sync(ALL, mine, step);
        mine = other > mine ? other : mine;
    }
    if (threadIdx.x % SAME_TOKEN == 0 && mine) atomicMax(here + token, mine);
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    unsigned before = 0;
    if (threadIdx.x < tokens) atomicMax(best + threadIdx.x, here[threadIdx.x]);
    __threadfence();
    __syncwarp();
    if (threadIdx.x == 0) before = atomicAdd(arrived, 1u);
    if (__shfl_sync(ALL, before, 0) + 1 != gridDim.x) return;
    __threadfence();
    if (threadIdx.x < tokens) chosen[threadIdx.x] = int64_t(ALL - unsigned(atomicExch(best + threadIdx.x, 0ull)));
    if (threadIdx.x == 0) *arrived = 0;
}

template <class W, long K, class L, int COUNT, class A, class In>
__device__ inline void thin_choice(const A& a, const long (&rows_of)[COUNT], const In& in) {
    Key key = 0;
    int mine = 0;
    thin_times<W, K, 1>(
        rows_of, in, [&](int, int) { return a.w; },
        [&](int, long row, int) { return has_b ? to_float(a.b[row]) : 0.0f; },
        [&](int, long row, int token, const float (&v)[1], float bias) {
            const L rounded = Rounded<L>::of(v[0] + bias);
            if (has_logits) a.logits[token * rows_of[0] + row] = rounded;
            const Key one = key_of(to_float(rounded), row);
            key = one > key ? one : key, mine = token;
        });
    choose_each(key, mine, reinterpret_cast<Key*>(a.best), reinterpret_cast<unsigned*>(a.arrived), a.token);
}
