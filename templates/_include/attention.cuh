// Decode attention of the query heads that share one key-value head, a part of the context a block.
//
// A slot is read by SLOT_LANES lanes, 16 bytes each of its key and of its value; every such group keeps its own running
// softmax (Milakov and Gimelshein 2018) over its slots, and they are merged at the end, groups, warps, blocks, in a
// fixed order. The block of the newest slot rotates and stores the new key and value before anyone reads them.
#include "device.cuh"

constexpr int THREADS = WARP * WARPS;
constexpr int GROUP = q_heads / kv_heads;
constexpr int PER_LANE = PER_LOAD<k_cache_t>;
constexpr int USED_LANES = head_dim / PER_LANE;  // lanes that hold a part of a slot
constexpr int SLOT_LANES = USED_LANES <= 4 ? 4 : USED_LANES <= 8 ? 8 : USED_LANES <= 16 ? 16 : 32;
constexpr int SIDE = WARP / SLOT_LANES;  // slots that a warp reads side by side
constexpr int GROUPS = SIDE * WARPS;
constexpr int HALF = head_dim / 2;
constexpr int RECORD = head_dim + 2;  // maximum, sum of weights, weighted values

// One head of x, normalised when `norm` is not null, then rotated by halves, as floats. One warp does it.
template <class X, class N, class C>
__device__ inline void rotate_head(const X* x, const N* norm, float eps, float offset, const C* cos, const C* sin, float* out) {
    const int lane = threadIdx.x % WARP;
    float inverse = 1;
    if (norm) {
        float squares = 0;
        for (int i = lane; i < head_dim; i += WARP) squares += to_float(x[i]) * to_float(x[i]);
        inverse = rsqrtf(sum_over(squares) / float(head_dim) + eps);
    }
    for (int i = lane; i < HALF; i += WARP) {
        float near = to_float(x[i]), far = to_float(x[i + HALF]);
        if (norm) {
            near *= inverse * (to_float(norm[i]) + offset);
            far *= inverse * (to_float(norm[i + HALF]) + offset);
        }
        out[i] = near * to_float(cos[i]) - far * to_float(sin[i]);
        out[i + HALF] = far * to_float(cos[i + HALF]) + near * to_float(sin[i + HALF]);
    }
}

struct Running {
    float top, total, sum[PER_LANE];
};

// Adds `other` to `run`; a total of zero marks one that has seen nothing.
__device__ inline void merge(Running& run, float top, float total, const float (&sum)[PER_LANE]) {
    if (total == 0) return;
    const float next = run.total == 0 ? top : fmaxf(run.top, top);
    const float shift = next == -INFINITY ? 0.0f : next;  // -inf - -inf would make a masked slot NaN
    const float keep = run.total == 0 ? 0.0f : __expf(run.top - shift), gain = __expf(top - shift);
    run.total = run.total * keep + total * gain;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) run.sum[i] = run.sum[i] * keep + sum[i] * gain;
    run.top = next;
}

// Slots [begin, end) of one head; `q` holds the group's rotated queries. Every group of lanes ends with its own share.
template <class K, class V>
__device__ inline void attend_slots(
    const float (*q)[head_dim], const K* keys, const V* values, long begin, long end, float scale, Running (&run)[GROUP]) {
    const int lane = threadIdx.x % WARP, part = lane % SLOT_LANES;
    const int group = threadIdx.x / WARP * SIDE + lane / SLOT_LANES;
    const bool used = part < USED_LANES;
    float mine[GROUP][PER_LANE];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        run[g] = {0, 0, {}};
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) mine[g][i] = used ? q[g][part * PER_LANE + i] : 0.0f;
    }
    // All lanes of a warp take part in every shuffle, so the count of turns is the warp's, not the group's.
    const long turns = (end - begin + long(GROUPS) * SLOTS - 1) / (long(GROUPS) * SLOTS);
    for (long turn = 0; turn < turns; ++turn) {
        Words k[SLOTS], v[SLOTS];
        long slot[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            slot[s] = begin + (turn * SLOTS + s) * GROUPS + group;
            const bool there = used && slot[s] < end;
            k[s] = there ? load16(keys + slot[s] * head_dim + part * PER_LANE) : Words{};
            v[s] = there ? load16(values + slot[s] * head_dim + part * PER_LANE) : Words{};
        }
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            float key[PER_LANE], value[PER_LANE];
            unpack<K>(k[s], key);
            unpack<V>(v[s], value);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float score = 0;
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) score = fmaf(mine[g][i], key[i], score);
                score = sum_over<SLOT_LANES>(score) * scale;
                if (slot[s] < end) merge(run[g], score, 1.0f, value);
            }
        }
    }
}
