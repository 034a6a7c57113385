// Decode attention on tensor cores by clusters (compute capability 9.0): for contexts of some thousand slots.
//
//   grid (SPLITS, kv_heads, tokens), clusters of SPLITS: block `rank` owns split `rank` of the head's old slots
//
// attention_tiles.cuh multiplies (slots wait in shared memory, so most are in flight before the queries are there), and
// attention_joined.cuh merges the blocks through distributed shared memory: no partial result goes through memory.
#include "attention_joined.cuh"
#include "attention_tiles.cuh"

template <bool NORM, class A, class N>
__device__ inline void attend_cluster_tensor(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    const int rank = blockIdx.x;
    attend_tiles<NORM>(a, norm_q, norm_k, eps, offset, blockIdx.y, rank, [&](const Place& place, float* records) {
        join_cluster(a, place, rank, records);
    });
}
