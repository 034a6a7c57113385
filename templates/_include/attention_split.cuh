// Split-KV decode attention on CUDA cores (FlashDecoding, Dao et al. 2023): the frame of attention_block.cuh and
// attention_bulk.cuh.
//
//   grid (kv_heads, SPLITS, tokens): block (h, n, t) owns split n of the old slots of key/value head h of sequence t
//     launch --> issue the ring's first copies --> wait for inputs --> prologue --> all turns --> records --> finish
//                (old slots, norms, angles)        (q, k, v)           (registers)  (ring)       (shared)    (memory)
//
// Slots in flight lie in shared memory (the ring R) and take no registers, so registers do not bound the bytes in
// flight. The first copies are issued before the inputs are waited for: the latency of the cache hides behind the
// predecessor's tail and the prologue.
#include "attention_lanes.cuh"
#include "attention_parts.cuh"

// A ring R issues its first copies when it is constructed, and shares are whole rounds of ROUND slots. Dynamic shared
// memory: the ring, GROUP * WARPS records, or what `join` needs, whichever is most.
template <bool NORM, class R, int ROUND, class A, class N>
__device__ inline void attend_split(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    extern __shared__ __align__(16) Words words[];
    float* room = reinterpret_cast<float*>(words);
    let_successor_start();
    const int split = blockIdx.y;
    // The kernels that wrote the position and the old slots ended before this one may launch: the manifest names both
    // `early`, so they may be read before the wait.
    const Place place = place_of(a, blockIdx.x);
    const Prologue<NORM, A, N> prologue(a, place, norm_q, norm_k, split == SPLITS - 1 && threadIdx.x < WARP);
    R ring(a.k_cache + place.cache(), a.v_cache + place.cache(), share_of<ROUND>(place.old(), split), words);
    wait_for_inputs();
    float q[GROUP][PER_LANE];
    Running run[GROUP];
    prologue.begin(a, place, eps, offset, q, run);
    ring.run(run, q);
    __syncthreads();  // all warps have read the ring: the records overwrite it
    put_records(run, room);
    finish(a, place, split, room);
}
