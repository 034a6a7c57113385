// Split-KV decode attention on tensor cores (FlashDecoding, Dao et al. 2023): for long contexts and several queries.
//
//   grid (kv_heads, SPLITS, tokens): block (h, n, t) owns split n of the old slots of key/value head h of sequence t
//
// attention_tiles.cuh multiplies, and attention_parts.cuh merges the blocks through memory: as many blocks per head as
// fill the device, where a cluster has 16 at most.
#include "attention_parts.cuh"
#include "attention_tiles.cuh"

template <bool NORM, class A, class N>
__device__ inline void attend_tensor(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    const int split = blockIdx.y;
    attend_tiles<NORM>(a, norm_q, norm_k, eps, offset, blockIdx.x, split, [&](const Place& place, float* records) {
        finish(a, place, split, records);
    });
}
