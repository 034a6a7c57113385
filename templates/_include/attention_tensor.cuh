// Decode attention on tensor cores by blocks that leave records in memory, which the last of them joins.
#include "attention_parts.cuh"
#include "attention_tiles.cuh"

// grid (kv_heads, SPLITS, tokens)
template <bool NORM, class A, class N>
__device__ inline void attend_tensor(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    const int split = blockIdx.y;
    attend_tiles<NORM>(a, norm_q, norm_k, eps, offset, blockIdx.x, split, [&](const Place& place, float* records) {
        finish(a, place, split, records);
    });
}
