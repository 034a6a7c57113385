// Decode attention of short contexts: a cluster of SPLITS blocks per key/value head of a sequence (compute capability
// 9.0), with slots in flight in registers.
//
//   grid (SPLITS, kv_heads, tokens), clusters of SPLITS: block `rank` owns split `rank` of the head's old slots
//   lane    16 bytes of the keys and values of SLOTS slots in flight (`next`), beside the SLOTS that it multiplies
//     launch --> load first slots --> wait for inputs --> prologue --> turns --> records --> cluster merge
//
// Short contexts leave little to hide latency behind, so every exchange counts: the first slots wait in registers for
// the queries, and partial results go through distributed shared memory (attention_joined.cuh), which saves the way
// through memory and the counter of attention_parts.cuh. Registers bound the bytes in flight, so long contexts want
// attention_split.cuh.
#include "attention_lanes.cuh"
#include "attention_joined.cuh"

// A block's slots: double buffering in registers, the next turn's loads in flight while one turn is multiplied.
template <class K, class V> struct Sweep {
    const K* keys;
    const V* values;
    Span span;
    Slots<K, V> next;

    // Issues the loads of the first turn.
    __device__ Sweep(const K* keys, const V* values, Span span) : keys(keys), values(values), span(span) {
        load(span.begin);
    }
    __device__ void load(int from) {
        const int part = threadIdx.x % SLOT_LANES * PER_LANE;
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            const int slot = from + group_of_lanes() + s * GROUPS;
            const bool there = part < head_dim && slot < span.end;
            next.k[s] = there ? load16(keys + slot * head_dim + part) : Words{};
            next.v[s] = there ? load16(values + slot * head_dim + part) : Words{};
        }
    }
    // The count of turns is the block's, not the group's: all lanes of a warp take part in every shuffle.
    __device__ void run(Running (&run)[GROUP], const float (&q)[GROUP][PER_LANE]) {
        for (int from = span.begin; from < span.end; from += STEP) {
            const Slots<K, V> now = next;
            if (from + STEP < span.end) load(from + STEP);
            now.add(run, q, from + group_of_lanes(), span.end);
        }
    }
};

// Dynamic shared memory: GROUP * (WARPS + 1) records.
template <bool NORM, class A, class N>
__device__ inline void attend_cluster(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    extern __shared__ __align__(16) float room[];
    let_successor_start();
    const int rank = blockIdx.x;
    // The kernels that wrote the position and the old slots ended before this one may launch: the manifest names both
    // `early`, so they may be read before the wait.
    const Place place = place_of(a, blockIdx.y);
    const Prologue<NORM, A, N> prologue(a, place, norm_q, norm_k, rank == SPLITS - 1 && threadIdx.x < WARP);
    Sweep<k_cache_t, v_cache_t> sweep(
        a.k_cache + place.cache(), a.v_cache + place.cache(), share_of<GROUPS>(place.old(), rank));
    wait_for_inputs();
    float q[GROUP][PER_LANE];
    Running run[GROUP];
    prologue.begin(a, place, eps, offset, q, run);
    sweep.run(run, q);
    put_records(run, room);
    join_cluster(a, place, rank, room);
}
