// Scores and weighted values on CUDA cores: a group of SLOT_LANES lanes owns a cache slot at a time.
//
//   warp, head_dim 128, 16 bits   | lanes 0 to 15: slot s            | lanes 16 to 31: slot s + 1       |
//   lane                          | 8 elements of the slot's key and value (16 bytes each) and of every query
// A score is the sum over the group's lanes by log2(SLOT_LANES) shuffles, and every lane ends with it, as it needs the
// weight for its own elements of the value. Each group keeps GROUP running softmaxes of its own (Milakov and Gimelshein
// 2018); the groups of a warp merge once at the end, in `put_records`.
//
// A group takes SLOTS slots per turn: their SLOTS * GROUP shuffle chains are independent and hide one another's
// latency, and the sums are rescaled once per turn, not once per slot. All lanes take part in every shuffle; lanes
// without elements hold zeros.
#include "attention_heads.cuh"

constexpr int SIDE = WARP / SLOT_LANES;  // groups of lanes in a warp, a slot each
constexpr int GROUPS = SIDE * WARPS;     // groups of lanes in a block
constexpr int STEP = GROUPS * SLOTS;     // slots of a block's turn

__device__ inline int group_of_lanes() { return threadIdx.x / WARP * SIDE + threadIdx.x % WARP / SLOT_LANES; }

// A lane's 16 bytes of the keys and values of its group's slots of a turn: slots first + s * EVERY, those from `end` on
// masked.
template <class K, class V> struct Slots {
    Words k[SLOTS], v[SLOTS];
    template <int EVERY = GROUPS> __device__ void add(Running (&run)[GROUP], const float (&q)[GROUP][PER_LANE], int first, int end) const {
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
                if (first + s * EVERY >= end) score[g][s] = -INFINITY;
                top = fmaxf(top, score[g][s]);
            }
            const float shift = shift_of(top), keep = power_of_two(run[g].top - shift);
            run[g].total *= keep;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) run[g].sum[i] *= keep;
            run[g].top = top;
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) score[g][s] = power_of_two(score[g][s] - shift), run[g].total += score[g][s];
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

// Merges the groups of a warp by butterfly shuffles and stores the warp's record of every query head.
__device__ inline void put_records(Running (&run)[GROUP], float* room) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
#pragma unroll
        for (int step = SLOT_LANES; step < WARP; step *= 2) {
            const float other = __shfl_xor_sync(ALL, run[g].top, step), top = fmaxf(run[g].top, other);
            const float shift = shift_of(top);
            const float keep = power_of_two(run[g].top - shift), gain = power_of_two(other - shift);
            run[g].total = run[g].total * keep + __shfl_xor_sync(ALL, run[g].total, step) * gain;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                run[g].sum[i] = run[g].sum[i] * keep + __shfl_xor_sync(ALL, run[g].sum[i], step) * gain;
            run[g].top = top;
        }
        float* record = room + (g * WARPS + warp) * RECORD;
        if (lane == 0) record[head_dim] = run[g].top, record[head_dim + 1] = run[g].total;
        if (lane < USED_LANES)
#pragma unroll
            for (int i = 0; i < PER_LANE; i += 4)
                *reinterpret_cast<float4*>(record + lane * PER_LANE + i) =
                    make_float4(run[g].sum[i], run[g].sum[i + 1], run[g].sum[i + 2], run[g].sum[i + 3]);
    }
}
