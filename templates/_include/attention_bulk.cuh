// Split-KV decode attention with a ring of bulk copies (cp.async.bulk and mbarriers, compute capability 9.0).
//
//   ring of a warp     | stage 0: RUN keys, RUN values | stage 1 | ... | stage DEPTH - 1 |   one mbarrier per stage
//   run                RUN = SIDE * SLOTS slots, contiguous in the cache: one copy of keys and one of values
//   warp w             runs w, w + WARPS, w + 2 WARPS, ... of the split; lanes multiply as in attention_lanes.cuh
//
// Keys of neighbouring slots of a head are contiguous, so a run is one copy of some thousand bytes that one lane
// issues: far fewer instructions per slot than with 16-byte copies, and no registers. Slots lie densely: lanes of a
// group read neighbouring words, and neighbouring groups neighbouring slots, so there are no bank conflicts where all
// lanes hold elements. A warp waits for its own barriers alone.
#include "attention_split.cuh"
#include "copies.cuh"

constexpr int RUN = SIDE * SLOTS;           // slots of a warp's turn
constexpr int TURN = 2 * RUN * USED_LANES;  // words of a turn: keys, then values

// A warp's slots, DEPTH runs in flight: every WARPS-th run of the block's share.
template <class K, class V> struct BulkRing {
    static_assert(sizeof(K) == 2 && sizeof(V) == 2);
    static constexpr unsigned ROW = head_dim * 2;
    const K* keys;  // the head's whole cache
    const V* values;
    Span span;
    Words* mine;
    Arrivals<DEPTH> arrivals;
    int asked;  // first slot of the next run to copy

    // Issues the copies of the first DEPTH runs.
    __device__ BulkRing(const K* keys, const V* values, Span share, Words* room)
        : keys(keys), values(values), span(share), mine(room + threadIdx.x / WARP * (DEPTH * TURN)),
          arrivals{reinterpret_cast<Barrier*>(room + WARPS * DEPTH * TURN) + threadIdx.x / WARP * DEPTH},
          asked(share.begin + threadIdx.x / WARP * RUN) {
        span.begin = asked;
        if (threadIdx.x % WARP == 0) {
            arrivals.make();
            for (int turn = 0; turn < DEPTH; ++turn) ask(turn);
        }
        __syncwarp();
    }
    // Called by one lane of the warp; `asked` is right in that lane alone.
    __device__ void ask(int place) {
        const int rows = span.end - asked < RUN ? span.end - asked : RUN;
        if (rows > 0) {
            Words* to = mine + place * TURN;
            expect(arrivals.full + place, 2 * rows * ROW);
            copy(to, keys + long(asked) * head_dim, rows * ROW, arrivals.full + place, read_once());
            copy(to + RUN * USED_LANES, values + long(asked) * head_dim, rows * ROW, arrivals.full + place, read_once());
        }
        asked += RUN * WARPS;
    }
    // The count of turns is the warp's, not the group's: all lanes take part in every shuffle.
    __device__ void run(Running (&run)[GROUP], const float (&q)[GROUP][PER_LANE]) {
        const int lane = threadIdx.x % WARP, side = lane / SLOT_LANES, part = lane % SLOT_LANES;
        int place = 0;
        for (int from = span.begin; from < span.end; from += RUN * WARPS) {
            arrivals.wait(place);
            const Words* at = mine + place * TURN;
            Slots<K, V> now;
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
                const int slot = s * SIDE + side;
                const bool there = part < USED_LANES && from + slot < span.end;  // stale bytes there may be NaN
                now.k[s] = there ? at[slot * USED_LANES + part] : Words{};
                now.v[s] = there ? at[(RUN + slot) * USED_LANES + part] : Words{};
            }
            now.template add<SIDE>(run, q, from + side, span.end);
            __syncwarp();
            if (lane == 0) {
                reads_done();
                ask(place);
            }
            place = place + 1 == DEPTH ? 0 : place + 1;
        }
    }
};

// Dynamic shared memory: the ring and its barriers, or what else `attend_split` needs, whichever is more.
template <bool NORM, class A, class N>
__device__ inline void attend_bulk(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    attend_split<NORM, BulkRing<k_cache_t, v_cache_t>, RUN>(a, norm_q, norm_k, eps, offset);
}
