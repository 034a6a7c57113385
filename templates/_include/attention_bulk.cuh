// Split decode attention whose slots are copied in bulk (compute capability 9.0), some thousand bytes at a time: a warp has
// runs of slots, and lanes multiply them as in split-kv.
#include "attention_split.cuh"
#include "copies.cuh"

constexpr int RUN = SIDE * SLOTS;            // slots of a turn of a warp
constexpr int TURN = 2 * RUN * USED_LANES;  // words of a turn: keys, then values

// A warp's slots, DEPTH runs ahead: every WARPS-th run of the block's share.
template <class K, class V> struct BulkRing {
    static_assert(sizeof(K) == 2 && sizeof(V) == 2);
    static constexpr unsigned ROW = head_dim * 2;
    const K* keys;  // of the whole cache of the head
    const V* values;
    Span span;
    Words* mine;
    Arrivals<DEPTH> arrivals;
    int asked;

    // Asks for the first DEPTH runs.
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
    // By one lane of the warp, which alone knows what was asked for.
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
    // As many turns for all lanes of the warp: shuffles take whole warps.
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
                const bool there = part < USED_LANES && from + slot < span.end;  // what else lies there may be NaN
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

// Shared memory for the ring and its barriers, or what `attend_split` needs, whichever is more.
template <bool NORM, class A, class N>
__device__ inline void attend_bulk(const A& a, const N* norm_q, const N* norm_k, float eps, float offset) {
    attend_split<NORM, BulkRing<k_cache_t, v_cache_t>, RUN>(a, norm_q, norm_k, eps, offset);
}
