// A block of split decode attention, from its queries to the part's record or, for the last block of a head, the result.
#include "attention.cuh"

constexpr int HALF = head_dim / 2;

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

// The records of all parts of one query head, element i of the result.
__device__ inline float joined(const float* records, int i) {
    float top, total, sum;
    merged(SPLITS, [&](int n, int field) { return records[n * RECORD + (field == 2 ? 2 + i : field)]; }, top, total, sum);
    return sum / total;
}

// grid (kv_heads, SPLITS). `norm_q` and `norm_k` are null where heads are not normalised.
template <class A, class N>
__device__ inline void attend_block(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    __shared__ float q[GROUP][head_dim], fresh[head_dim];
    __shared__ bool last;
    let_successor_start();
    wait_for_inputs();
    const int head = blockIdx.x, split = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int share = lane % SLOT_LANES;
    const long position = a.positions[0], low = window && position >= window ? position - window + 1 : 0;
    const long length = position + 1 - low, part = (length + SPLITS - 1) / SPLITS;
    const long begin = low + split * part, end = begin + part < position + 1 ? begin + part : position + 1;
    const long base = long(head) * context * head_dim;
    if (begin < end) {
        for (int g = warp; g < GROUP; g += WARPS)
            rotate_head(a.q + (long(head) * GROUP + g) * head_dim, norm_q, eps, offset, a.cos, a.sin, q[g]);
        if (end == position + 1 && warp == WARPS - 1) {
            rotate_head(a.k + long(head) * head_dim, norm_k, eps, offset, a.cos, a.sin, fresh);
            __syncwarp();
            for (int i = lane; i < head_dim; i += WARP) {
                put(a.k_cache + base + position * head_dim + i, fresh[i]);
                put(a.v_cache + base + position * head_dim + i, to_float(a.v[long(head) * head_dim + i]));
            }
        }
    }
    __syncthreads();  // queries, and the new key and value, are there for the whole block
    Sweep<k_cache_t, v_cache_t> sweep(a.k_cache + base, a.v_cache + base, begin, end);
    float mine[GROUP][PER_LANE];
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            mine[g][i] = share < USED_LANES ? q[g][share * PER_LANE + i] * (scale * LOG2E) : 0.0f;
    Running run[GROUP];
    sweep.run(run, mine);
    float* records = a.partial + long(head) * GROUP * SPLITS * RECORD;
    merge_block(run, [&](int g, int field, float v) { records[(long(g) * SPLITS + split) * RECORD + field] = v; });
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(reinterpret_cast<unsigned*>(a.arrived) + head, 1u) + 1 == SPLITS;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int at = threadIdx.x; at < GROUP * head_dim; at += THREADS) {
        const int g = at / head_dim, i = at % head_dim;
        put(a.y + (long(head) * GROUP + g) * head_dim + i, joined(records + long(g) * SPLITS * RECORD, i));
    }
    if (threadIdx.x == 0) a.arrived[head] = 0;
}
