// Split decode attention on tensor cores, for long contexts and groups of several queries, whose products would take more
// instructions than there is time for while the slots arrive.
//
// A product (m16n8k16) has 16 rows, and a group has eight queries at most: rows g and g + 8 are the two halves of head g's
// operand, a number of the cache's type and what that leaves of the float. So scores and sums are nearly those of floats: the
// manifests say bf16x2.
// BULK says how slots are copied. Scores have slots as columns; as they come out they are what the weighted sum takes as its left operand.
#include "async_copies.cuh"
#include "attention_heads.cuh"
#include "copies.cuh"
#include "products.cuh"

static_assert(GROUP <= 8 && head_dim % 16 == 0);
constexpr int TILE = 16;  // slots of a turn of a warp
constexpr int CHUNKS = head_dim / 8;
constexpr int STRIDE = CHUNKS + 1;       // words from slot to slot: odd, so that eight slots lie in eight sets of banks
constexpr int TURN = 2 * TILE * STRIDE;  // words of a turn: keys, then values
constexpr int QUERIES = 16 * STRIDE;     // words of both halves of the queries
constexpr int NEWEST = CHUNKS * 2 + 2;   // words of the newest slot: its value as floats, its scores
constexpr float SLACK = 8;  // a weight may be 2^8 times what the largest was: sums are seldom scaled again

// The largest weight is 2^LIFT, to keep others from the subnormal numbers.
template <class T> constexpr float LIFT_OF = 0;
template <> constexpr float LIFT_OF<fp16> = 6;
// Two numbers rounded, and what that left of them.
template <class T> __device__ inline void halves(float first, float second, unsigned& high, unsigned& low) {
    high = Product<T>::two(first, second);
    const float near = to_float(T{(unsigned short)(high & 0xffffu)}), far = to_float(T{(unsigned short)(high >> 16)});
    low = Product<T>::two(first - near, second - far);
}

// Four matrices [8, 8] from rows of eight numbers, of which every lane names one; `turned` makes rows of columns.
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

// Where a warp's slots are: DEPTH tiles ahead, every WARPS-th tile of the block's share.
template <class K, class V> struct Walk {
    const K* keys;  // of the tile to ask for next
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

// Copies of 16 bytes by all lanes.
template <class K, class V> struct Tiles : Walk<K, V> {
    // Asks for the first DEPTH tiles.
    __device__ Tiles(const K* all_keys, const V* all_values, Span share, Words* room)
        : Walk<K, V>(all_keys, all_values, share, room) {
#pragma unroll
        for (int turn = 0; turn < DEPTH; ++turn) ask(turn);
    }
    // Tiles past the end are asked for as nothing, so that those that are pending can be counted.
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
    // Every tile in turn, before it is read.
    __device__ void ready(int) {
        copies_there<DEPTH - 1>();
        __syncwarp();  // now all lanes see what the others copied
    }
};

// Bulk copies (compute capability 9.0), a lane each for a slot's key or its value, and a barrier a tile: few instructions,
// and rows may lie apart as the matrix loads want them.
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
                for (int i = 0; i < CHUNKS; ++i) to[i] = Words{};  // its weight is 0, and 0 times what lay there may be NaN
            }
        }
        this->step();
    }
    __device__ void ready(int place) {
        arrivals.wait(place);
        __syncwarp();  // for the zeros
    }
};
template <bool BULK_COPIES, class K, class V> struct TilesOf {
    using Type = Tiles<K, V>;
};
template <class K, class V> struct TilesOf<true, K, V> {
    using Type = BulkTiles<K, V>;
};

// The running softmaxes of a warp: lane / 4 is the head, and the lane has two columns of every eight of its sums.
template <class T> struct Sums {
    static constexpr float LIFT = LIFT_OF<T>;
    float base = -INFINITY;  // weights are powers of two above it
    float total = 0;         // of the slots that this lane weighed
    float out[CHUNKS][4] = {};

    // Begins with a slot whose score is `score`.
    __device__ void begin(float score, const float* value) {
        base = score - LIFT, total = threadIdx.x % 4 == 0 ? exp2f(LIFT) : 0.0f;
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) out[n][i] = value[n * 8 + threadIdx.x % 4 * 2 + i] * exp2f(LIFT);
    }
    // Adds the slots from `from` on, before `end`, whose tile lies at `tile`.
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
    // The warp's records, one of WARPS for every head.
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

// Part `split` of the slots of a key-value head. `join` makes results of the parts, from the records of this one's warps:
// join(place, records). Shared memory for the queries, the newest slot's value and scores, and behind them for the tiles,
// or the records and what else `join` needs, whichever is more.
template <bool NORM, class A, class N, class J>
__device__ inline void attend_tiles(
    const A& a, const N* norm_q, const N* norm_k, float eps, float offset, int head, int split, J join) {
    extern __shared__ __align__(16) Words words[];
    Words *queries = words, *room = words + QUERIES + NEWEST;
    float *fresh = reinterpret_cast<float*>(words + QUERIES), *scores = fresh + head_dim;
    let_successor_start();
    const int lane = threadIdx.x % WARP;
    // Whoever wrote the position and the old slots has ended before this kernel may start: the manifest says `early`.
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
    __syncthreads();  // all warps are through with the tiles, where the records go
    sums.put(reinterpret_cast<float*>(room));
    join(place, reinterpret_cast<float*>(room));
}
