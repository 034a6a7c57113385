// A cluster of SPLITS blocks for each key-value head of a sequence: slots wait in registers for the queries, and the
// blocks join their parts through shared memory. Made for short contexts, where every exchange counts.
#include "attention_lanes.cuh"
#include "attention_joined.cuh"

// A block's slots, those of the next turn in flight while one is multiplied.
template <class K, class V> struct Sweep {
    const K* keys;
    const V* values;
    Span span;
    Slots<K, V> next;

    // Asks for the first slots.
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
    // All lanes of a warp take part in every shuffle, so the count of turns is the block's, not the group's.
    __device__ void run(Running (&run)[GROUP], const float (&q)[GROUP][PER_LANE]) {
        for (int from = span.begin; from < span.end; from += STEP) {
            const Slots<K, V> now = next;
            if (from + STEP < span.end) load(from + STEP);
            now.add(run, q, from + group_of_lanes(), span.end);
        }
    }
};

// grid (SPLITS, kv_heads, tokens), clusters of SPLITS; shared memory for GROUP * (WARPS + 1) records.
template <bool NORM, class A, class N>
__device__ inline void attend_cluster(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    extern __shared__ __align__(16) float room[];
    let_successor_start();
    const int rank = blockIdx.x;
    // Whoever wrote the position and the old slots has ended before this kernel may start: the manifest says `early`.
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
