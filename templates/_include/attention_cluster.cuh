// A cluster of SPLITS blocks for each key-value head: queries are normalised and rotated in the registers that multiply
// them, the newest slot is attended to by the last block straight from the inputs, and the blocks join their parts
// through shared memory.
#include "attention.cuh"
#include "cluster.cuh"

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

// grid (SPLITS, kv_heads), clusters of SPLITS.
template <bool NORM, class A, class N>
__device__ inline void attend_cluster(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    __shared__ float record[GROUP][RECORD];
    let_successor_start();
    Eight<N> of_q{}, of_k{};
    const int rank = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int part = lane % SLOT_LANES;  // of the slot or head that the lane's group reads
    const bool used = part < USED_LANES;
    if (NORM) of_q.load(norm_q + part * PER_LANE, used), of_k.load(norm_k + part * PER_LANE, used);
    // Whoever wrote the position and the old slots has ended before this kernel may start: the manifest says `early`.
    const long position = a.positions[0], low = window && position >= window ? position - window + 1 : 0;
    const long share = (position - low + SPLITS - 1) / SPLITS, begin = low + rank * share;
    const long end = begin + share < position ? begin + share : position;
    const long base = long(head) * context * head_dim;
    Sweep<k_cache_t, v_cache_t> sweep(a.k_cache + base, a.v_cache + base, begin, end);
    Eight<cos_t> cos, sin;
    cos.load(a.cos + part * PER_LANE, used), sin.load(a.sin + part * PER_LANE, used);
    const bool newest = rank == SPLITS - 1 && warp == 0;
    wait_for_inputs();
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
            for (int i = 0; i < 4; ++i) rounded.word[i] = bits(key[2 * i]) | bits(key[2 * i + 1]) << 16;
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
    sweep.run(run, q);
    merge_block(run, [&](int g, int field, float v) { record[g][field] = v; });
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
