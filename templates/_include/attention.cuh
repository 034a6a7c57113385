// What all kernels of decode attention share. For each key/value head of a sequence, the GROUP query heads of its GQA
// group attend to the head's cache slots,
//     y[g] = sum_s softmax_s(scale * q[g] . k[s]) * v[s]
// by the online softmax (Milakov and Gimelshein 2018): a running maximum `top`, sum of weights `total` and weighted sum
// of values `sum`. Results of disjoint sets of slots merge exactly, as in FlashDecoding's split-KV (Dao et al. 2023):
//     top = max_n top_n,   total = sum_n total_n * 2^(top_n - top),   sum likewise,   y = sum / total
//
//   lanes, or groups of lanes --shuffles--> warp --record in shared memory--> block --cluster or memory--> results
//   record    | sum[head_dim] | top | total | 2 floats of padding: records stay aligned to 16 bytes |
//
// A block has GROUP * WARPS records, one for each query head and warp. Warps exchange no scores and no sums before they
// have read all their slots, each slot is read once for all query heads of its group, and every merge has a fixed
// order. Scores are scaled by log2(e), so that a weight is one ex2.approx.
#include "softmax.cuh"

constexpr int THREADS = WARP * WARPS;
constexpr int GROUP = q_heads / kv_heads;
constexpr int PER_LANE = PER_LOAD<k_cache_t>;
constexpr int USED_LANES = head_dim / PER_LANE;  // lanes that hold a part of a cache slot
constexpr int SLOT_LANES = USED_LANES <= 4 ? 4 : USED_LANES <= 8 ? 8 : USED_LANES <= 16 ? 16 : 32;
constexpr int ELEMENTS = GROUP * head_dim;  // of the results of a key/value head
constexpr int RECORD = head_dim + 4;        // floats: weighted values, maximum, sum of weights, padding to 16 bytes
static_assert(long(context) * head_dim < 1l << 31);

// The running softmax of one query head over some slots; a lane holds PER_LANE elements of the sum. A slot's weight is
// 2^(score - top): scores are scaled by log2(e).
struct Running {
    float top = -INFINITY, total = 0, sum[PER_LANE] = {};
};

// Old slots [begin, end): those that are in the cache before this step.
struct Span {
    int begin, end;
};
// The share of them of split `rank`, in whole rounds of SIZE slots: no two splits differ by more than one round.
template <int SIZE> __device__ inline Span share_of(Span old, int rank) {
    const unsigned rounds = unsigned(old.end - old.begin + SIZE - 1) / SIZE;
    const int begin = old.begin + int(rank * rounds / unsigned(SPLITS)) * SIZE;
    const int end = old.begin + int((rank + 1) * rounds / unsigned(SPLITS)) * SIZE;
    return {begin, end < old.end ? end : old.end};
}

// Merges one element of `count` records: at(n, field) reads record n, field 0 the maximum, 1 the total, 2 the element.
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

// Merges the records of a block's warps: one thread calls put(g, i, top, total, sum) for element i of query head g. In
// `room` the WARPS records of a head follow one another. All threads call it; its barrier orders their records before.
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
