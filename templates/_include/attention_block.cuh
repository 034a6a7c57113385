// Split-KV decode attention with a ring of 16-byte copies (cp.async, compute capability 8.0): for long contexts.
//
//   ring in shared memory    [DEPTH stages][SLOTS keys, then SLOTS values][THREADS] words of 16 bytes
//   thread                   copies and later reads only its own column, [..][..][threadIdx.x]
//   turn of the block        GROUPS * SLOTS slots: group of lanes i has slots i, i + GROUPS, ... of it
//
// DEPTH turns are in flight: 1 KiB * WARPS * SLOTS * DEPTH per block. Because a thread reads what it alone copied,
// waiting for its own copies is enough: no barrier in the loop, no warp waits for another. Neighbouring threads have
// neighbouring words: no bank conflicts. Blocks merge through memory (attention_parts.cuh).
#include "async_copies.cuh"
#include "attention_split.cuh"

// A block's slots, DEPTH turns in flight.
template <class K, class V> struct Ring {
    const K* keys;  // of the next turn to copy: this lane's part of its group's first slot
    const V* values;
    Span span;
    Words* mine;  // this thread's column of the ring
    int asked;  // first slot of that turn

    // Issues the copies of the first DEPTH turns.
    __device__ Ring(const K* all_keys, const V* all_values, Span span, Words* room)
        : span(span), mine(room + threadIdx.x), asked(span.begin) {
        const long at = long(span.begin + group_of_lanes()) * head_dim + threadIdx.x % SLOT_LANES * PER_LANE;
        keys = all_keys + at, values = all_values + at;
#pragma unroll
        for (int turn = 0; turn < DEPTH; ++turn) ask(turn);
    }
    // Turns past the end commit an empty group, so that DEPTH groups are pending at every wait.
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
    // The count of turns is the block's, not the group's: all lanes of a warp take part in every shuffle. Afterwards no
    // copy is in flight.
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

// Dynamic shared memory: the ring, or what else `attend_split` needs, whichever is more.
template <bool NORM, class A, class N>
__device__ inline void attend_block(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    attend_split<NORM, Ring<k_cache_t, v_cache_t>, GROUPS>(a, norm_q, norm_k, eps, offset);
}
