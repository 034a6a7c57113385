// Split decode attention: SPLITS blocks for each key-value head of a sequence, which leave records in memory that the
// last of them joins. Made for long contexts.
#include "async_copies.cuh"
#include "attention_split.cuh"

// A block's slots, DEPTH turns ahead. A lane copies what it alone reads: no warp waits for another, and it sees its own
// copies without a barrier.
template <class K, class V> struct Ring {
    const K* keys;  // of the turn to ask for next, what this lane reads of its group's first slot
    const V* values;
    Span span;
    Words* mine;  // of DEPTH turns, SLOTS keys and then SLOTS values each, every THREADS words
    int asked;

    // Asks for the first DEPTH turns.
    __device__ Ring(const K* all_keys, const V* all_values, Span span, Words* room)
        : span(span), mine(room + threadIdx.x), asked(span.begin) {
        const long at = long(span.begin + group_of_lanes()) * head_dim + threadIdx.x % SLOT_LANES * PER_LANE;
        keys = all_keys + at, values = all_values + at;
#pragma unroll
        for (int turn = 0; turn < DEPTH; ++turn) ask(turn);
    }
    // Turns past the end are asked for as nothing, so that those that are pending can be counted.
    __device__ void ask(int place) {
        if (asked < span.end) {
            Words* to = mine + place * (2 * SLOTS * THREADS);
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                const int slot = asked + group_of_lanes() + s * GROUPS;
                const bool there = threadIdx.x % SLOT_LANES < USED_LANES && slot < span.end;
                copy16(to + s * THREADS, keys + s * GROUPS * head_dim, there);
                copy16(to + (SLOTS + s) * THREADS, values + s * GROUPS * head_dim, there);
            }
        }
        copies_asked();
        asked += STEP, keys += STEP * head_dim, values += STEP * head_dim;
    }
    // As many turns for all lanes of the block: shuffles take whole warps. Afterwards nothing is on its way.
    __device__ void run(Running (&run)[GROUP], const float (&q)[GROUP][PER_LANE]) {
        int place = 0;
        for (int from = span.begin; from < span.end; from += STEP) {
            copies_there<DEPTH - 1>();
            const Words* at = mine + place * (2 * SLOTS * THREADS);
            Slots<K, V> now;
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) now.k[s] = at[s * THREADS], now.v[s] = at[(SLOTS + s) * THREADS];
            now.add(run, q, from + group_of_lanes(), span.end);
            ask(place);  // what was read has been used: the copy cannot come before the read
            place = place + 1 == DEPTH ? 0 : place + 1;
        }
    }
};

// Shared memory for the ring, or what `attend_split` needs, whichever is more.
template <bool NORM, class A, class N>
__device__ inline void attend_block(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    attend_split<NORM, Ring<k_cache_t, v_cache_t>, GROUPS>(a, norm_q, norm_k, eps, offset);
}
