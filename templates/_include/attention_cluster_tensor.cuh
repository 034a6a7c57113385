// Decode attention on tensor cores by clusters: slots wait in shared memory, and no part goes through memory.
#include "attention_joined.cuh"
#include "attention_tiles.cuh"

// grid (SPLITS, kv_heads, tokens), clusters of SPLITS
template <bool NORM, class A, class N>
__device__ inline void attend_cluster_tensor(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    const int rank = blockIdx.x;
    attend_tiles<NORM>(a, norm_q, norm_k, eps, offset, blockIdx.y, rank, [&](const Place& place, float* records) {
        join_cluster(a, place, rank, records);
    });
}
