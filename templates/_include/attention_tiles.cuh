// Decode attention on tensor cores (mma.sync m16n8k16), a tile of 16 cache slots per warp and turn, for GQA groups of
// several queries: on CUDA cores their products would take more instructions than there is time for while slots arrive.
//
//   left operand    rows 0-7: the heads' floats rounded to the cache's type; rows 8-15: what that rounding left of them
//     S[16, 16 slots] = Q[16, head_dim] K^T    score of head g: row g plus row g + 8, both in lanes 4 g + q
//     O[16, head_dim] += P[16, 16 slots] V     P in the registers of S, without a shuffle (FlashAttention-2, Dao 2023)
//                   so scores and sums are nearly those of floats: the manifests say bf16x2
//   shared memory   | queries, 16 rows | newest slot | warp 0: DEPTH x (16 keys, 16 values) | warp 1: ...
//                   rows are STRIDE words of 16 bytes, an odd number: 8 rows of an ldmatrix lie in 8 sets of banks
//   warp w          tiles w, w + WARPS, ... of the split; lane 4 g + q has 2 of every 8 elements of head g's sums
//
// Sums are rescaled only when a head's maximum has grown by more than SLACK (in log2): most tiles skip it. BULK chooses
// cp.async (compute capability 8.0) or bulk copies (9.0); either way copies are DEPTH tiles ahead, and the first are
// issued before the kernel waits for its inputs.
#include "async_copies.cuh"
#include "attention_heads.cuh"
#include "copies.cuh"
#include "products.cuh"

static_assert(GROUP <= 8 && head_dim % 16 == 0);
constexpr int TILE = 16;  // slots of a warp's turn
constexpr int CHUNKS = head_dim / 8;     // words of 16 bytes in a key
constexpr int STRIDE = CHUNKS + 1;       // words from slot to slot
constexpr int TURN = 2 * TILE * STRIDE;  // words of a turn: keys, then values
constexpr int QUERIES = 16 * STRIDE;     // words of both halves of the queries
constexpr int NEWEST = CHUNKS * 2 + 2;   // words of the newest slot: its value as floats, its scores
constexpr float SLACK = 8;  // a weight may be 2^8 times what the largest was, before sums are rescaled

// The largest weight is 2^LIFT when sums are rescaled: in fp16, below a largest of 1, small ones would be subnormal.
template <class T> constexpr float LIFT_OF = 0;
template <> constexpr float LIFT_OF<fp16> = 6;
// Two floats as packed pairs: rounded to T (high), and the remainders rounded to T (low).
template <class T> __device__ inline void halves(float first, float second, unsigned& high, unsigned& low) {
    high = Product<T>::two(first, second);
    const float near = to_float(T{(unsigned short)(high & 0xffffu)}), far = to_float(T{(unsigned short)(high >> 16)});
    low = Product<T>::two(first - near, second - far);
}

// ldmatrix: four matrices [8, 8] of 16 bits; lane 8 i + r names row r of matrix i. `turned` transposes each.
__device__ inline void four_matrices(unsigned (&m)[4], const Words* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ inline void four_turned(unsigned (&m)[4], const Words* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// A warp's tiles, DEPTH in flight: every WARPS-th tile of the block's share.
template <class K, class V> struct Walk {
    const K* keys;  // of the next tile to copy
    const V* values;
    Span span;
    Words* mine;
    int asked;

    __device__ Walk(const K* all_keys, const V* all_values, Span share, Words* room)
        : span(share), mine(room + threadIdx.x / WARP * (DEPTH * TURN)), asked(share.begin + threadIdx.x / WARP * TILE) {
        span.begin = asked;
        keys = all_keys + long(asked) * head_dim, values = all_values + long(asked) * head_dim;
    }
    __device__ void step() { asked += TILE * WARPS, keys += TILE * WARPS * head_dim, values += TILE * WARPS * head_dim; }
};

// Tiles by cp.async: all lanes copy words of 16 bytes.
template <class K, class V> struct Tiles : Walk<K, V> {
    // Issues the copies of the first DEPTH tiles.
    __device__ Tiles(const K* all_keys, const V* all_values, Span share, Words* room)
        : Walk<K, V>(all_keys, all_values, share, room) {
#pragma unroll
        for (int turn = 0; turn < DEPTH; ++turn) ask(turn);
    }
    // Tiles past the end commit an empty group, so that DEPTH groups are pending at every wait.
    __device__ void ask(int place) {
        if (this->asked < this->span.end) {
            Words* to = this->mine + place * TURN;
#pragma unroll
            for (int e = 0; e < TILE * CHUNKS / WARP; ++e) {
                const int at = e * WARP + threadIdx.x % WARP, slot = at / CHUNKS, word = slot * STRIDE + at % CHUNKS;
                const bool there = this->asked + slot < this->span.end;
                copy16(to + word, this->keys + at * 8, there);
                copy16(to + TILE * STRIDE + word, this->values + at * 8, there);
            }
        }
        copies_asked();
        this->step();
    }
    // Called for every tile in turn, before it is read.
    __device__ void ready(int) {
        copies_there<DEPTH - 1>();
        __syncwarp();  // now all lanes see what the others copied
    }
};

// Tiles by bulk copies: lanes 0-15 copy a key each, lanes 16-31 a value each, and a tile has one mbarrier. Few
// instructions, and with one copy per row the rows may lie STRIDE apart, as ldmatrix wants them.
template <class K, class V> struct BulkTiles : Walk<K, V> {
    static_assert(sizeof(K) == 2 && sizeof(V) == 2 && TILE * 2 == WARP);
    static constexpr unsigned ROW = head_dim * 2;
    Arrivals<DEPTH> arrivals;

    __device__ BulkTiles(const K* all_keys, const V* all_values, Span share, Words* room)
        : Walk<K, V>(all_keys, all_values, share, room),
          arrivals{reinterpret_cast<Barrier*>(room + WARPS * DEPTH * TURN) + threadIdx.x / WARP * DEPTH} {
        if (threadIdx.x % WARP == 0) arrivals.make();
        __syncwarp();
        for (int turn = 0; turn < DEPTH; ++turn) ask(turn);
    }
    __device__ void ask(int place) {
        const int rows = this->span.end - this->asked, lane = threadIdx.x % WARP, slot = lane % TILE;
        if (rows > 0) {
            Words* to = this->mine + place * TURN + lane / TILE * (TILE * STRIDE) + slot * STRIDE;
            const void* from = lane < TILE ? static_cast<const void*>(this->keys) : static_cast<const void*>(this->values);
            reads_done();
            if (lane == 0) expect(arrivals.full + place, 2 * ROW * (rows < TILE ? rows : TILE));
            if (slot < rows) {
                copy(to, static_cast<const char*>(from) + slot * ROW, ROW, arrivals.full + place, read_once());
            } else {
                for (int i = 0; i < CHUNKS; ++i) to[i] = Words{};  // its weight is 0, but 0 times a stale NaN is NaN
            }
        }
        this->step();
    }
    __device__ void ready(int place) {
        arrivals.wait(place);
        __syncwarp();  // makes the zeros of other lanes visible
    }
};
template <bool BULK_COPIES, class K, class V> struct TilesOf {
    using Type = Tiles<K, V>;
};
template <class K, class V> struct TilesOf<true, K, V> {
    using Type = BulkTiles<K, V>;
};

// The running softmaxes of a warp, in accumulator fragments: lane 4 g + q holds elements 8 n + 2 q and 8 n + 2 q + 1 of
// head g's sums, out[n][0 and 1] from the weights' high parts and out[n][2 and 3] from the low ones.
template <class T> struct Sums {
    static constexpr float LIFT = LIFT_OF<T>;
    float base = -INFINITY;  // the weight of a slot is 2^(score - base)
    float total = 0;         // of the slots that this lane weighed
    float out[CHUNKS][4] = {};

    // Starts with one slot, the newest, whose score is `score`.
    __device__ void begin(float score, const float* value) {
        base = score - LIFT, total = threadIdx.x % 4 == 0 ? exp2f(LIFT) : 0.0f;
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) out[n][i] = value[n * 8 + threadIdx.x % 4 * 2 + i] * exp2f(LIFT);
    }
    // Adds the tile of slots [from, from + TILE), masked from `end` on, which lies at `tile` in shared memory.
    __device__ void add(const unsigned (&query)[CHUNKS / 2][4], const Words* tile, int from, int end) {
        const int lane = threadIdx.x % WARP;
        const Words* row = tile + (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2;
        float score[2][4] = {};
#pragma unroll
        for (int step = 0; step < CHUNKS / 2; ++step) {
            unsigned key[4];
            four_matrices(key, row + step * 2);
            Product<T>::add(score[0], query[step], key[0], key[1]);
            Product<T>::add(score[1], query[step], key[2], key[3]);
        }
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                score[n][i] += score[n][i + 2];
                if (from + n * 8 + lane % 4 * 2 + i >= end) score[n][i] = -INFINITY;
                most = fmaxf(most, score[n][i]);
            }
        if (__any_sync(ALL, most > base + (LIFT + SLACK))) {
            most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
            const float raised = most > base + (LIFT + SLACK) ? most - LIFT : base;
            const float keep = power_of_two(base - shift_of(raised));
            base = raised, total *= keep;
#pragma unroll
            for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[n][i] *= keep;
        }
        const float shift = shift_of(base);
        unsigned weight[4];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float first = power_of_two(score[n][0] - shift), second = power_of_two(score[n][1] - shift);
            total += first, total += second;
            halves<T>(first, second, weight[2 * n], weight[2 * n + 1]);
        }
        row = tile + (TILE + lane % 16) * STRIDE + lane / 16;
#pragma unroll
        for (int step = 0; step < CHUNKS / 2; ++step) {
            unsigned value[4];
            four_turned(value, row + step * 2);
            Product<T>::add(out[2 * step], weight, value[0], value[1]);
            Product<T>::add(out[2 * step + 1], weight, value[2], value[3]);
        }
    }
    // Stores the warp's record of every query head.
    __device__ void put(float* room) {
        total += __shfl_xor_sync(ALL, total, 1);
        total += __shfl_xor_sync(ALL, total, 2);
        const int head = threadIdx.x % WARP / 4, column = threadIdx.x % 4;
        if (head >= GROUP) return;
        float* record = room + (head * WARPS + threadIdx.x / WARP) * RECORD;
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n)
            *reinterpret_cast<float2*>(record + n * 8 + column * 2) =
                make_float2(out[n][0] + out[n][2], out[n][1] + out[n][3]);
        if (column == 0) record[head_dim] = base, record[head_dim + 1] = total;
    }
};

// Split `split` of the slots of key/value head `head`. join(place, records) is the epilogue: it merges the splits, from
// the records of this one's warps. Dynamic shared memory: the queries, the newest slot's value and scores, and behind
// them the tiles, or the records and what else `join` needs, whichever is more.
template <bool NORM, class A, class N, class J>
__device__ inline void attend_tiles(
    const A& a, const N* norm_q, const N* norm_k, float eps, float offset, int head, int split, J join) {
    extern __shared__ __align__(16) Words words[];
    Words *queries = words, *room = words + QUERIES + NEWEST;
    float *fresh = reinterpret_cast<float*>(words + QUERIES), *scores = fresh + head_dim;
    let_successor_start();
    const int lane = threadIdx.x % WARP;
    // The kernels that wrote the position and the old slots ended before this one may launch: the manifest names both
    // `early`, so they may be read before the wait.
    const Place place = place_of(a, head);
    const bool newest = split == SPLITS - 1 && threadIdx.x < WARP;
    const Prologue<NORM, A, N> prologue(a, place, norm_q, norm_k, newest);
    typename TilesOf<BULK, k_cache_t, v_cache_t>::Type tiles(
        a.k_cache + place.cache(), a.v_cache + place.cache(), share_of<TILE>(place.old(), split), room);
    wait_for_inputs();
    if (threadIdx.x < WARP) {
        float q[GROUP][PER_LANE];
        Running run[GROUP];
        prologue.begin(a, place, eps, offset, q, run);
        if (lane < USED_LANES)
#pragma unroll
            for (int g = 0; g < 8; ++g) {
                Words high{}, low{};
                if (g < GROUP)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        halves<k_cache_t>(q[g][2 * i], q[g][2 * i + 1], high.word[i], low.word[i]);
                queries[g * STRIDE + lane] = high, queries[(g + 8) * STRIDE + lane] = low;
            }
        if (newest) {
#pragma unroll
            for (int g = 0; g < GROUP; ++g)
                if (lane == 0) scores[g] = run[g].top;
            if (lane < USED_LANES)
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) fresh[lane * PER_LANE + i] = run[0].sum[i];
        }
    }
    __syncthreads();
    unsigned query[CHUNKS / 2][4];
#pragma unroll
    for (int step = 0; step < CHUNKS / 2; ++step)
        four_matrices(query[step], queries + lane % 16 * STRIDE + lane / 16 + step * 2);
    Sums<k_cache_t> sums;
    if (newest) sums.begin(lane / 4 < GROUP ? scores[lane / 4] : 0.0f, fresh);
    int at = 0;
    for (int from = tiles.span.begin; from < tiles.span.end; from += TILE * WARPS) {
        tiles.ready(at);
        sums.add(query, tiles.mine + at * TURN, from, tiles.span.end);
        __syncwarp();
        tiles.ask(at);
        at = at + 1 == DEPTH ? 0 : at + 1;
    }
    __syncthreads();  // all warps have read their tiles: the records overwrite them
    sums.put(reinterpret_cast<float*>(room));
    join(place, reinterpret_cast<float*>(room));
}
