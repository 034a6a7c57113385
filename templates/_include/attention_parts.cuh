// Epilogue of split-KV decode attention: blocks leave partial results in memory, and the last block of each key/value
// head merges them in the same launch (FlashDecoding, Dao et al. 2023, without its second kernel).
//
//   memory      sums[SPLITS][GROUP][head_dim] and ends[GROUP][SPLITS], the maximum and the sum of weights of each split
//   1. warp     per query head: lanes read the ends of the splits and make weights 2^(top_n - top) / total
//   2. team     of QUADS threads, 4 neighbouring elements of the result each; team t adds splits t, t + TEAMS, ...
//   3. team 0   adds the sums of the teams, in order, and stores; where QUADS threads are too many, one team loops
//
// Team t's first loads (up to 16 of 16 bytes per thread) are issued before step 1: a round
// trip to memory is long while the next kernel, already launched (PDL), fills the memory
// system with its weight loads. The last block is found by a counter of arrivals; it resets
// the counter for the next launch. Orders of addition are fixed: the same bits every time.
#include "attention_heads.cuh"

// The results of a key/value head from the partial results of its blocks. `room`, in shared memory, holds four floats
// per thread and then the weights [GROUP, SPLITS].
template <class Y> __device__ inline void join(const float* sums, const float2* ends, float* room, Y* y) {
    constexpr int QUADS = ELEMENTS / 4, TEAMS = THREADS > QUADS ? THREADS / QUADS : 1;
    constexpr int SHARE = (SPLITS + TEAMS - 1) / TEAMS, AHEAD = SHARE < 16 ? SHARE : 16;
    float4* parts = reinterpret_cast<float4*>(room);
    float* weights = room + 4 * THREADS;
    const int lane = threadIdx.x % WARP, team = threadIdx.x / QUADS, begin = TEAMS == 1 ? 0 : team;
    int quad = TEAMS == 1 ? int(threadIdx.x) : int(threadIdx.x % QUADS);
    Words raw[AHEAD];
    const auto ask = [&](int from) {
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int n = from + j * TEAMS;
            raw[j] = n < SPLITS ? load16(sums + long(n) * ELEMENTS + quad * 4) : Words{};
        }
    };
    if (begin < TEAMS && quad < QUADS) ask(begin);
    for (int g = threadIdx.x / WARP; g < GROUP; g += WARPS) {
        constexpr int EACH = (SPLITS + WARP - 1) / WARP;
        float2 end[EACH];
        float top = -INFINITY, total = 0;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int n = e * WARP + lane;
            end[e] = n < SPLITS ? ends[g * SPLITS + n] : make_float2(-INFINITY, 0);
            top = fmaxf(top, end[e].x);
        }
        const float shift = shift_of(largest_over(top));
#pragma unroll
        for (int e = 0; e < EACH; ++e) end[e].x = power_of_two(end[e].x - shift), total = fmaf(end[e].x, end[e].y, total);
        total = sum_over(total);
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (e * WARP + lane < SPLITS) weights[g * SPLITS + e * WARP + lane] = end[e].x / total;
    }
    __syncthreads();
#pragma unroll 1
    for (bool asked = true; quad < QUADS; quad += THREADS) {
        const float* weight = weights + quad * 4 / head_dim * SPLITS;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int from = begin; from < SPLITS && begin < TEAMS; from += AHEAD * TEAMS) {
            if (!asked) ask(from);
            asked = false;
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                const int n = from + j * TEAMS;
                const float w = n < SPLITS ? weight[n] : 0.0f;
                sum.x = fmaf(w, __uint_as_float(raw[j].word[0]), sum.x);
                sum.y = fmaf(w, __uint_as_float(raw[j].word[1]), sum.y);
                sum.z = fmaf(w, __uint_as_float(raw[j].word[2]), sum.z);
                sum.w = fmaf(w, __uint_as_float(raw[j].word[3]), sum.w);
            }
        }
        if (TEAMS > 1) {
            parts[threadIdx.x] = sum;
            __syncthreads();
            if (team > 0) return;
#pragma unroll
            for (int t = 1; t < TEAMS; ++t) {
                const float4 other = parts[t * QUADS + quad];
                sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
            }
        }
        put(y + quad * 4, sum.x), put(y + quad * 4 + 1, sum.y);
        put(y + quad * 4 + 2, sum.z), put(y + quad * 4 + 3, sum.w);
    }
}

// Merges the records of a block's warps, in `room`, into the block's partial result in memory, and in the last block of
// the key/value head all partial results into the output. `partial` holds all sums and then all ends. A single split
// stores its output at once. All threads call it.
template <class A> __device__ inline void finish(const A& a, const Place& place, int split, float* room) {
    __shared__ bool last;
    y_t* y = a.y + place.row * ELEMENTS;
    float* sums = a.partial + place.row * SPLITS * ELEMENTS;
    float2* ends = reinterpret_cast<float2*>(a.partial + long(tokens) * kv_heads * SPLITS * ELEMENTS) +
                   place.row * GROUP * SPLITS;
    merge_records(room, [&](int g, int i, float top, float total, float sum) {
        if (SPLITS == 1) {
            put(y + g * head_dim + i, sum / total);
        } else {
            sums[(split * GROUP + g) * head_dim + i] = sum;
            if (i == 0) ends[g * SPLITS + split] = make_float2(top, total);
        }
    });
    if (SPLITS == 1) return;
    __syncthreads();
    unsigned* arrived = reinterpret_cast<unsigned*>(a.arrived) + place.row;
    if (threadIdx.x == 0) last = counted(arrived) + 1 == SPLITS;
    __syncthreads();
    if (!last) return;
    join(sums, ends, room, y);
    if (threadIdx.x == 0) *arrived = 0;
}
