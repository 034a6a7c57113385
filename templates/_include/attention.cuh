// What the decode attention kernels share: the query heads of one key-value head of one sequence over a block's part of
// the context. Every warp keeps running softmaxes of its own (Milakov and Gimelshein 2018), and nothing is exchanged
// between warps before the end; they are merged in a fixed order: parts of a warp, warps, blocks.
#include "device.cuh"

constexpr int THREADS = WARP * WARPS;
constexpr int GROUP = q_heads / kv_heads;
constexpr int PER_LANE = PER_LOAD<k_cache_t>;
constexpr int USED_LANES = head_dim / PER_LANE;  // lanes that hold a part of a slot
constexpr int SLOT_LANES = USED_LANES <= 4 ? 4 : USED_LANES <= 8 ? 8 : USED_LANES <= 16 ? 16 : 32;
constexpr int ELEMENTS = GROUP * head_dim;  // of the results of a key-value head
constexpr int RECORD = head_dim + 4;        // weighted values, maximum, sum of weights, and room to keep 16 bytes apart
constexpr float LOG2E = 1.4426950408889634f;
static_assert(long(context) * head_dim < 1l << 31);

// Weights below 2^-126 of the largest are 0.
__device__ inline float power_of_two(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

// What some slots come to: weights are powers of two above `top`, so scores are scaled by log2(e).
struct Running {
    float top = -INFINITY, total = 0, sum[PER_LANE] = {};
};
// What to take from scores below `top`: -inf from -inf would make a masked slot NaN.
__device__ inline float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// Old slots [begin, end).
struct Span {
    int begin, end;
};
// A block's share of them, in whole rounds of SIZE slots: no two blocks differ by more than a round.
template <int SIZE> __device__ inline Span share_of(Span old, int rank) {
    const unsigned rounds = unsigned(old.end - old.begin + SIZE - 1) / SIZE;
    const int begin = old.begin + int(rank * rounds / unsigned(SPLITS)) * SIZE;
    const int end = old.begin + int((rank + 1) * rounds / unsigned(SPLITS)) * SIZE;
    return {begin, end < old.end ? end : old.end};
}

// One element of the merge of `count` records: those at(n, field), fields 0 maximum, 1 total, 2 the element's own.
template <class F> __device__ inline void merged(int count, F at, float& top, float& total, float& sum) {
    top = -INFINITY, total = 0, sum = 0;
#pragma unroll
    for (int n = 0; n < count; ++n) top = fmaxf(top, at(n, 0));
    const float shift = shift_of(top);
#pragma unroll
    for (int n = 0; n < count; ++n) {
        const float gain = power_of_two(at(n, 0) - shift);
        total = fmaf(at(n, 1), gain, total);
        sum = fmaf(at(n, 2), gain, sum);
    }
}

// What a block's slots come to, by put(g, i, top, total, sum) for element i of head g, in one thread each; `room` holds
// the records of its warps, those of a head one behind another. All threads call it.
template <class F> __device__ inline void merge_records(const float* room, F put) {
    __syncthreads();
    for (int at = threadIdx.x; at < ELEMENTS; at += THREADS) {
        const int g = at / head_dim, i = at % head_dim;
        const float* records = room + g * WARPS * RECORD;
        float top, total, sum;
        const auto field_of = [&](int n, int field) { return records[n * RECORD + (field == 2 ? i : head_dim + field)]; };
        merged(WARPS, field_of, top, total, sum);
        put(g, i, top, total, sum);
    }
}
