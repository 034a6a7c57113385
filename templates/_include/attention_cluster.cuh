// Decode attention of the query heads that share one key-value head, by a cluster of SPLITS blocks.
//
// SLOT_LANES lanes read a slot, 16 bytes each of its key and value, and hold the same elements of the queries, so that
// nothing is exchanged between warps before the end; each such group keeps its own running softmax (Milakov and
// Gimelshein 2018). They are merged in a fixed order: sides of a warp, warps, blocks. The newest slot is attended to by
// the last block, straight from the inputs.
#include "device.cuh"
#include "cluster.cuh"

constexpr int THREADS = WARP * WARPS;
constexpr int GROUP = q_heads / kv_heads;
constexpr int PER_LANE = 8;
constexpr int USED_LANES = head_dim / PER_LANE;
constexpr int SLOT_LANES = USED_LANES <= 4 ? 4 : USED_LANES <= 8 ? 8 : USED_LANES <= 16 ? 16 : 32;
constexpr int SIDE = WARP / SLOT_LANES;
constexpr int GROUPS = SIDE * WARPS;
constexpr int RECORD = head_dim + 2;
constexpr float LOG2E = 1.4426950408889634f;

template <class T> struct Eight {
    Words words[sizeof(T) / 2];
    __device__ void load(const T* at, bool there) {
#pragma unroll
        for (int i = 0; i < int(sizeof(T) / 2); ++i) words[i] = there ? load16(at + i * PER_LOAD<T>) : Words{};
    }
    __device__ float operator[](int i) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(words[i / 4].word[i % 4]);
        const unsigned word = words[0].word[i / 2];
        return to_float(T{(unsigned short)(i % 2 ? word >> 16 : word & 0xffffu)});
    }
};

struct Running {
    float top, total, sum[PER_LANE];
};
__device__ inline float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// A head normalised (when it is) and rotated by halves, in place; groups of lanes hold PER_LANE elements each.
template <bool NORM, class N, class C>
__device__ inline void rotate(
    float (&x)[PER_LANE], const Eight<N>& norm, const Eight<C>& cos, const Eight<C>& sin, float eps, float offset) {
    const int lane = threadIdx.x % WARP, part = lane % SLOT_LANES;
    if (NORM) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) squares = fmaf(x[i], x[i], squares);
        const float inverse = rsqrtf(sum_over<SLOT_LANES>(squares) / float(head_dim) + eps);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) x[i] *= inverse * (norm[i] + offset);
    }
    const bool near = part < USED_LANES / 2;
    const int other = lane - part + (near ? part + USED_LANES / 2 : part - USED_LANES / 2);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const float far = __shfl_sync(ALL, x[i], other);
        x[i] = x[i] * cos[i] + (near ? -far : far) * sin[i];
    }
}

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
    // Scores are scaled by log2(e), so that exp2 makes weights of them.
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

// grid (SPLITS, kv_heads), clusters of SPLITS.
template <bool NORM, class A, class N>
__device__ inline void attend_cluster(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    __shared__ float room[GROUP][WARPS][RECORD];
    __shared__ float record[GROUP][RECORD];
    let_successor_start();
    Eight<N> of_q{}, of_k{};
    const int rank = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int part = lane % SLOT_LANES;  // of the slot or head that the lane's group reads
    const bool used = part < USED_LANES;
    if (NORM) of_q.load(norm_q + part * PER_LANE, used), of_k.load(norm_k + part * PER_LANE, used);
    wait_for_inputs();
    const long position = a.positions[0], low = window && position >= window ? position - window + 1 : 0;
    const long share = (position - low + SPLITS - 1) / SPLITS, begin = low + rank * share;
    const long end = begin + share < position ? begin + share : position;
    const long base = long(head) * context * head_dim;
    const auto* keys = a.k_cache + base;
    const auto* values = a.v_cache + base;
    const long mine = begin + warp * SIDE + lane / SLOT_LANES;
    Slots<k_cache_t, v_cache_t> slots;
    slots.load(keys, values, mine, end, part);
    Eight<cos_t> cos, sin;
    cos.load(a.cos + part * PER_LANE, used), sin.load(a.sin + part * PER_LANE, used);
    const bool newest = rank == SPLITS - 1 && warp == 0;
    Eight<q_t> raw[GROUP];
    Eight<k_t> new_key{};
    Eight<v_t> new_value{};
#pragma unroll
    for (int g = 0; g < GROUP; ++g) raw[g].load(a.q + (long(head) * GROUP + g) * head_dim + part * PER_LANE, used);
    if (newest) {
        new_key.load(a.k + long(head) * head_dim + part * PER_LANE, used);
        new_value.load(a.v + long(head) * head_dim + part * PER_LANE, used);
    }
    float q[GROUP][PER_LANE];
    Running run[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) q[g][i] = raw[g][i];
        rotate<NORM>(q[g], of_q, cos, sin, eps, offset);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) q[g][i] *= scale * LOG2E;
        run[g] = {-INFINITY, 0, {}};
    }
    if (newest) {
        const auto bits = [](float v) { return unsigned(Rounded<k_cache_t>::of(v).bits); };
        float key[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) key[i] = new_key[i];
        rotate<NORM>(key, of_k, cos, sin, eps, offset);
        if (lane < USED_LANES) {
            Words rounded;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                rounded.word[i] = bits(key[2 * i]) | bits(key[2 * i + 1]) << 16;
            *reinterpret_cast<Words*>(a.k_cache + base + position * head_dim + part * PER_LANE) = rounded;
            *reinterpret_cast<Words*>(a.v_cache + base + position * head_dim + part * PER_LANE) = new_value.words[0];
            unpack<k_cache_t>(rounded, key);
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) dot = fmaf(q[g][i], key[i], dot);
            dot = sum_over<SLOT_LANES>(dot);
            if (lane < SLOT_LANES) {
                run[g].top = dot, run[g].total = 1;
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) run[g].sum[i] = new_value[i];
            }
        }
    }
    const long turns = end > begin ? (end - begin + long(GROUPS) * SLOTS - 1) / (long(GROUPS) * SLOTS) : 0;
    for (long turn = 0; turn < turns; ++turn) {
        const long here = mine + turn * GROUPS * SLOTS;
        const Slots<k_cache_t, v_cache_t> now = slots;
        if (turn + 1 < turns) slots.load(keys, values, here + GROUPS * SLOTS, end, part);
        now.add(run, q, here, end);
    }
    // Sides of a warp, then warps, then blocks.
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
            for (int i = 0; i < PER_LANE; ++i) room[g][warp][2 + part * PER_LANE + i] = run[g].sum[i];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < GROUP * head_dim; at += THREADS) {
        const int g = at / head_dim, i = at % head_dim;
        float top, total, sum;
        merged(WARPS, [&](int n, int field) { return room[g][n][field == 2 ? 2 + i : field]; }, top, total, sum);
        if (i == 0) record[g][0] = top, record[g][1] = total;
        record[g][2 + i] = sum;
    }
    cluster_arrive();
    cluster_wait();
    constexpr int CHUNK = (GROUP * head_dim + SPLITS - 1) / SPLITS;
    const int until = (rank + 1) * CHUNK < GROUP * head_dim ? (rank + 1) * CHUNK : GROUP * head_dim;
    for (int at = rank * CHUNK + int(threadIdx.x); at < until; at += THREADS) {
        const int g = at / head_dim, i = at % head_dim;
        float tops[SPLITS], totals[SPLITS], sums[SPLITS], top, total, sum;
#pragma unroll
        for (int n = 0; n < SPLITS; ++n) {
            tops[n] = read_from(&record[g][0], n);
            totals[n] = read_from(&record[g][1], n);
            sums[n] = read_from(&record[g][2 + i], n);
        }
        const auto record_of = [&](int n, int field) { return field == 0 ? tops[n] : field == 1 ? totals[n] : sums[n]; };
        merged(SPLITS, record_of, top, total, sum);
        put(a.y + long(head) * GROUP * head_dim + at, sum / total);
    }
    cluster_arrive();  // a block's shared memory is there until all have read it
    cluster_wait();
}
