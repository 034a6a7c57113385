// Split decode attention without tensor cores: blocks whose slots come through a ring of copies in shared memory, and that
// leave records in memory which the last of them joins. Slots on their way take no registers, so that these do not bound
// the bytes in flight.
#include "attention_lanes.cuh"
#include "attention_parts.cuh"

// grid (kv_heads, SPLITS, tokens). A ring R asks for its first slots when it is made, and shares are whole rounds of ROUND
// slots. Shared memory for the ring, GROUP * WARPS records, or what `join` needs, whichever is most.
template <bool NORM, class R, int ROUND, class A, class N>
__device__ inline void attend_split(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    extern __shared__ __align__(16) Words words[];
    float* room = reinterpret_cast<float*>(words);
    let_successor_start();
    const int split = blockIdx.y;
    // Whoever wrote the position and the old slots has ended before this kernel may start: the manifest says `early`.
    const Place place = place_of(a, blockIdx.x);
    const Prologue<NORM, A, N> prologue(a, place, norm_q, norm_k, split == SPLITS - 1 && threadIdx.x < WARP);
    R ring(a.k_cache + place.cache(), a.v_cache + place.cache(), share_of<ROUND>(place.old(), split), words);
    wait_for_inputs();
    float q[GROUP][PER_LANE];
    Running run[GROUP];
    prologue.begin(a, place, eps, offset, q, run);
    ring.run(run, q);
    __syncthreads();  // all warps are through with the ring, where the records go
    put_records(run, room);
    finish(a, place, split, room);
}
