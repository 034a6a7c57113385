// What the decode attention kernels share: the query heads of one key-value head over a block's part of the context.
//
// SLOT_LANES lanes read a slot, 16 bytes each of its key and value, and hold the same elements of the queries, so that
// nothing is exchanged between warps before the end; each such group keeps its own running softmax (Milakov and
// Gimelshein 2018). They are merged in a fixed order: sides of a warp, warps, blocks.
#include "device.cuh"

constexpr int THREADS = WARP * WARPS;
constexpr int GROUP = q_heads / kv_heads;
constexpr int PER_LANE = PER_LOAD<k_cache_t>;
constexpr int USED_LANES = head_dim / PER_LANE;  // lanes that hold a part of a slot
constexpr int SLOT_LANES = USED_LANES <= 4 ? 4 : USED_LANES <= 8 ? 8 : USED_LANES <= 16 ? 16 : 32;
constexpr int SIDE = WARP / SLOT_LANES;  // slots that a warp reads side by side
constexpr int GROUPS = SIDE * WARPS;
constexpr int RECORD = head_dim + 2;  // maximum, sum of weights, weighted values
constexpr float LOG2E = 1.4426950408889634f;

// What some slots come to: weights are powers of two above `top`, so scores are scaled by log2(e).
struct Running {
    float top = -INFINITY, total = 0, sum[PER_LANE] = {};
};
// What to take from scores below `top`: -inf from -inf would make a masked slot NaN.
__device__ inline float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// The slots that a group of lanes has in flight: `first`, and every GROUPS-th after it, before `end`.
template <class K, class V> struct Slots {
    Words k[SLOTS], v[SLOTS];
    __device__ void load(const K* keys, const V* values, long first, long end, int part) {
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            const long slot = first + s * GROUPS;
            const bool there = part < USED_LANES && slot < end;
            k[s] = there ? load16(keys + slot * head_dim + part * PER_LANE) : Words{};
            v[s] = there ? load16(values + slot * head_dim + part * PER_LANE) : Words{};
        }
    }
    __device__ void add(Running (&run)[GROUP], const float (&q)[GROUP][PER_LANE], long first, long end) const {
        float score[GROUP][SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            float key[PER_LANE];
            unpack<K>(k[s], key);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float dot = 0;
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) dot = fmaf(q[g][i], key[i], dot);
                score[g][s] = dot;
            }
        }
#pragma unroll
        for (int step = SLOT_LANES / 2; step > 0; step /= 2)
#pragma unroll
            for (int s = 0; s < SLOTS; ++s)
#pragma unroll
                for (int g = 0; g < GROUP; ++g) score[g][s] += __shfl_xor_sync(ALL, score[g][s], step);
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float top = run[g].top;
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                if (first + s * GROUPS >= end) score[g][s] = -INFINITY;
                top = fmaxf(top, score[g][s]);
            }
            const float shift = shift_of(top), keep = exp2f(run[g].top - shift);
            run[g].total *= keep;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) run[g].sum[i] *= keep;
            run[g].top = top;
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) score[g][s] = exp2f(score[g][s] - shift), run[g].total += score[g][s];
        }
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            float value[PER_LANE];
            unpack<V>(v[s], value);
#pragma unroll
            for (int g = 0; g < GROUP; ++g)
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) run[g].sum[i] = fmaf(score[g][s], value[i], run[g].sum[i]);
        }
    }
};

// Slots [begin, end) by all groups of the block, those of the next turn in flight while one
// is multiplied.
template <class K, class V> struct Sweep {
    static constexpr long STEP = long(GROUPS) * SLOTS;
    const K* keys;
    const V* values;
    long begin, end;
    Slots<K, V> next;

    // Asks for the first slots; `load` asks for those of the turn that begins at `from`.
    __device__ Sweep(const K* keys, const V* values, long begin, long end)
        : keys(keys), values(values), begin(begin), end(end) {
        load(begin);
    }
    __device__ static long group() { return threadIdx.x / WARP * SIDE + threadIdx.x % WARP / SLOT_LANES; }
    __device__ void load(long from) { next.load(keys, values, from + group(), end, threadIdx.x % SLOT_LANES); }
    // All lanes of a warp take part in every shuffle, so the count of turns is the block's, not the group's.
    __device__ void run(Running (&run)[GROUP], const float (&q)[GROUP][PER_LANE]) {
        for (long from = begin; from < end; from += STEP) {
            const Slots<K, V> now = next;
            if (from + STEP < end) load(from + STEP);
            now.add(run, q, from + group(), end);
        }
    }
};

// One element of the merge of `count` records: those at(n, field), fields 0 maximum, 1 total, 2 the element's own.
template <class F> __device__ inline void merged(int count, F at, float& top, float& total, float& sum) {
    top = -INFINITY, total = 0, sum = 0;
#pragma unroll
    for (int n = 0; n < count; ++n) top = fmaxf(top, at(n, 0));
    const float shift = shift_of(top);
#pragma unroll
    for (int n = 0; n < count; ++n) {
        const float gain = exp2f(at(n, 0) - shift);
        total = fmaf(at(n, 1), gain, total);
        sum = fmaf(at(n, 2), gain, sum);
    }
}

// The block's record of every head of the group: put_record(g, field, value) in one thread for every field.
template <class F> __device__ inline void merge_block(Running (&run)[GROUP], F put_record) {
    __shared__ float room[GROUP][WARPS][RECORD];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
#pragma unroll
        for (int step = SLOT_LANES; step < WARP; step *= 2) {
            const float other = __shfl_xor_sync(ALL, run[g].top, step), top = fmaxf(run[g].top, other);
            const float shift = shift_of(top);
            const float keep = exp2f(run[g].top - shift), gain = exp2f(other - shift);
            run[g].total = run[g].total * keep + __shfl_xor_sync(ALL, run[g].total, step) * gain;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                run[g].sum[i] = run[g].sum[i] * keep + __shfl_xor_sync(ALL, run[g].sum[i], step) * gain;
            run[g].top = top;
        }
        if (lane == 0) room[g][warp][0] = run[g].top, room[g][warp][1] = run[g].total;
        if (lane < USED_LANES)
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) room[g][warp][2 + lane * PER_LANE + i] = run[g].sum[i];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < GROUP * head_dim; at += THREADS) {
        const int g = at / head_dim, i = at % head_dim;
        float top, total, sum;
        merged(WARPS, [&](int n, int field) { return room[g][n][field == 2 ? 2 + i : field]; }, top, total, sum);
        if (i == 0) put_record(g, 0, top), put_record(g, 1, total);
        put_record(g, 2 + i, sum);
    }
}
