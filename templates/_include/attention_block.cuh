// A block of split decode attention, from its queries to the part's record or, for the last block of a head, the result.
#include "attention.cuh"

// Merges the running softmaxes of a block's groups of lanes; the head's RECORD floats go to `record`.
__device__ inline void merge_block(const Running (&run)[GROUP], float (*room)[GROUPS][RECORD], float* record, long stride) {
    const int lane = threadIdx.x % WARP, part = lane % SLOT_LANES;
    const int group = threadIdx.x / WARP * SIDE + lane / SLOT_LANES;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        if (part == 0) room[g][group][0] = run[g].top, room[g][group][1] = run[g].total;
        if (part < USED_LANES)
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) room[g][group][2 + part * PER_LANE + i] = run[g].sum[i];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < GROUP * head_dim; at += THREADS) {
        const int g = at / head_dim, i = at % head_dim;
        float top = -INFINITY, total = 0, sum = 0;
        for (int n = 0; n < GROUPS; ++n)
            if (room[g][n][1] != 0) top = fmaxf(top, room[g][n][0]);
        for (int n = 0; n < GROUPS; ++n) {
            if (room[g][n][1] == 0) continue;
            const float gain = __expf(room[g][n][0] - top);
            total += room[g][n][1] * gain;
            sum += room[g][n][2 + i] * gain;
        }
        float* out = record + g * stride;
        if (i == 0) out[0] = top, out[1] = total;
        out[2 + i] = sum;
    }
}

// The records of all parts of one query head, element i of the result.
__device__ inline float joined(const float* records, int i) {
    float top = -INFINITY, total = 0, sum = 0;
    for (int s = 0; s < SPLITS; ++s)
        if (records[s * RECORD + 1] != 0) top = fmaxf(top, records[s * RECORD]);
    for (int s = 0; s < SPLITS; ++s) {
        const float* part = records + s * RECORD;
        if (part[1] == 0) continue;
        const float gain = __expf(part[0] - top);
        total += part[1] * gain;
        sum += part[2 + i] * gain;
    }
    return sum / total;
}

// grid (kv_heads, SPLITS). `norm_q` and `norm_k` are null where heads are not normalised.
template <class A, class N>
__device__ inline void attend_block(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    __shared__ float q[GROUP][head_dim], fresh[head_dim];
    __shared__ float room[GROUP][GROUPS][RECORD];
    __shared__ bool last;
    let_successor_start();
    wait_for_inputs();
    const int head = blockIdx.x, split = blockIdx.y, warp = threadIdx.x / WARP;
    const long position = a.positions[0], low = window && position >= window ? position - window + 1 : 0;
    const long length = position + 1 - low, part = (length + SPLITS - 1) / SPLITS;
    const long begin = low + split * part, end = begin + part < position + 1 ? begin + part : position + 1;
    const long base = long(head) * context * head_dim;
    if (begin < end) {
        for (int g = warp; g < GROUP; g += WARPS)
            rotate_head(a.q + (long(head) * GROUP + g) * head_dim, norm_q, eps, offset, a.cos, a.sin, q[g]);
        if (end == position + 1) {
            if (warp == WARPS - 1) {
                rotate_head(a.k + long(head) * head_dim, norm_k, eps, offset, a.cos, a.sin, fresh);
                __syncwarp();
                for (int i = threadIdx.x % WARP; i < head_dim; i += WARP) {
                    put(a.k_cache + base + position * head_dim + i, fresh[i]);
                    put(a.v_cache + base + position * head_dim + i, to_float(a.v[long(head) * head_dim + i]));
                }
            }
        }
    }
    __syncthreads();  // queries, and the new key and value, are there for the whole block
    Running run[GROUP];
    attend_slots(q, a.k_cache + base, a.v_cache + base, begin, begin < end ? end : begin, scale, run);
    float* records = a.partial + long(head) * GROUP * SPLITS * RECORD;
    merge_block(run, room, records + split * RECORD, long(SPLITS) * RECORD);
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
