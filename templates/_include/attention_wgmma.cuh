// Causal attention of a chunk of prompt tokens on Hopper's tensor cores (compute capability 9.0a), after the chunk's
// keys and values are in the cache: FlashAttention-3 (Shah et al. 2024), with one softmax ahead of the products.
//
//   tile        64 x GROUPS consecutive tokens of one query head; a warpgroup has 64 of them. GROUPS is 1 in chunks so
//               short that each multiprocessor gets one or two such; 3 else, or 2 where a head is wide, as there is room
//   queries     normalised and rotated by the warpgroup itself, rounded once, in shared memory as wgmma.cuh reads them
//   block       SLOTS slots, counted from slot 0: keys and values in boxes of 64 columns (boxes.cuh), a ring of STAGES
//               |  keys, head_dim / 64 boxes  |  values, as many  |      a barrier each when full, each when empty
//   last group  one lane fills the ring for all tiles of the block, ahead of the warpgroups that read it
//
//   S = Q K^T          scores of 64 tokens and a block, in registers
//   P = 2^(S c - top)  not yet divided; rounded to bf16 in the registers that a product reads (the manifests say so)
//   O = O keep + P V   V as it lies, slot by slot: the product reads it turned
//
// While P V of a block is on its way, the scores of the next one are made and weighed: the tensor cores multiply during
// exponentials. All warpgroups take all blocks of the tile: those that see fewer would wait for the others anyway. The
// order of a query's sums follows from its position and SLOTS, not from the tile. Slots behind the last token can hold
// anything: their scores are replaced, their values become zeros.
//
// Results lie head by head or, where the host says so, token by token, as the product behind them reads them.
// Tiles that see most slots come first, and every other turn goes backwards, so that each multiprocessor has as much.
#include "boxes.cuh"
#include "chunk_heads.cuh"
#include "softmax.cuh"
#include "wgmma.cuh"

constexpr int ROWS = 64, GROUP_THREADS = 4 * WARP;
constexpr int SLOTS = k_cache_box;   // of a block
constexpr int PARTS = head_dim / 64;  // boxes of a block's keys, and of its values
constexpr int WIDTH = ROWS * GROUPS;
constexpr int BLOCK_BYTES = SLOTS * head_dim * 2, QUERY_BYTES = ROWS * head_dim * 2;
constexpr int TILES_DOWN = (tokens + WIDTH - 1) / WIDTH, TILES = TILES_DOWN * q_heads;
constexpr float TO_POWERS = scale * LOG2E;
static_assert((head_dim == 64 || head_dim == 128) && sizeof(q_t) == 2 && sizeof(y_t) == 2 && sizeof(k_cache_t) == 2);

// Of the threads of one warpgroup.
__device__ inline void group_meets(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
}
// Those who copy need few registers, those who multiply get them.
__device__ inline void few_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
__device__ inline void many_registers() {
    if constexpr (GROUPS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}

// The lower half of 64 columns and 16 slots of values that begin at `at`: the columns are the product's rows. Groups of
// 64 columns are as far apart as boxes, groups of 8 slots 1024 bytes.
__device__ inline unsigned turned(const void* at) {
    return shared_address(at) >> 4 | unsigned(SLOTS * 128 / 16) << 16;
}
constexpr unsigned NEXT_SLOTS = 16 * 128 / 16;

// sum = a b + (add ? sum : 0): 64 rows of a, which lie in registers as sums do, 16 columns; b turned, N columns.
template <int N> struct Weighed;
template <> struct Weighed<64> {
    static __device__ void of(float (&sum)[32], const unsigned* a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n\t}"
            : SUMS_16(0), SUMS_16(16)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <> struct Weighed<128> {
    static __device__ void of(float (&sum)[64], const unsigned* a, Operand b, int add) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63"
            "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t}"
            : SUMS_64(0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
// The ring of blocks: what has arrived, and what may be overwritten.
struct Ring : Place<STAGES> {
    unsigned char* blocks;

    __device__ unsigned char* key_block() const { return blocks + 2 * stage * BLOCK_BYTES; }
    __device__ unsigned char* value_block() const { return key_block() + BLOCK_BYTES; }
    __device__ Barrier* keys() const { return barriers() + stage; }
    __device__ Barrier* values() const { return keys() + STAGES; }
    __device__ Barrier* free_keys() const { return keys() + 2 * STAGES; }
    __device__ Barrier* free_values() const { return keys() + 3 * STAGES; }
    __device__ Barrier* barriers() const { return reinterpret_cast<Barrier*>(blocks + 2 * STAGES * BLOCK_BYTES); }
};

// A tile by its turn: turn n of all blocks takes the tiles n gridDim.x to (n + 1) gridDim.x - 1.
struct Tile {
    int head, token;

    __device__ static int of(int turn) {
        const int across = int(gridDim.x), mine = int(blockIdx.x);
        return turn * across + (turn % 2 ? across - 1 - mine : mine);
    }
    __device__ explicit Tile(int at)
        : head(at % int(q_heads)), token((TILES_DOWN - 1 - at / int(q_heads)) * WIDTH) {}
};
__device__ constexpr int turns_of(int across) { return (TILES + across - 1) / across; }

// The blocks of slots that tokens first .. last see.
struct Span {
    int begin, end;

    __device__ Span(int first, int last)
        : begin(window > 0 && first >= window ? (first - int(window) + 1) / SLOTS : 0), end(last / SLOTS + 1) {}
};
__device__ inline int position(const int64_t* positions, int token) {
    return int(positions[token < tokens ? token : tokens - 1]);
}
// Every tile of this block with the blocks of slots that it sees, in order.
template <class F> __device__ inline void each_tile(const int64_t* positions, F use) {
    for (int turn = 0; turn < turns_of(int(gridDim.x)); ++turn) {
        const int at = Tile::of(turn);
        if (at >= TILES) continue;
        const Tile tile(at);
        use(tile, Span(position(positions, tile.token), position(positions, tile.token + WIDTH - 1)));
    }
}

template <class A> __device__ inline void copy_blocks(const A& a, Ring ring) {
    const unsigned long long often = read_often();
    each_tile(a.positions, [&](const Tile& tile, const Span& span) {
        const int row = tile.head / int(q_heads / kv_heads) * int(context);
        for (int block = span.begin; block < span.end; ++block, ring.next()) {
            wait_for(ring.free_keys(), ring.parity ^ 1);
            expect(ring.keys(), BLOCK_BYTES);
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                load_box(ring.key_block() + part * SLOTS * 128, &a.k_cache_map, part * 64, row + block * SLOTS,
                         ring.keys(), often);
            wait_for(ring.free_values(), ring.parity ^ 1);
            expect(ring.values(), BLOCK_BYTES);
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                load_box(ring.value_block() + part * SLOTS * 128, &a.v_cache_map, part * 64, row + block * SLOTS,
                         ring.values(), often);
        }
    });
}

// The queries of a warpgroup's tokens, normalised, rotated and rounded: thread 2 r + h has half of the pieces of row r.
template <bool NORM, class A, class N>
__device__ inline void place_queries(
    const A& a, const N* norm, float eps, float offset, int head, int first, unsigned char* room) {
    constexpr int MINE = PIECES / 2;
    const int row = int(threadIdx.x) % GROUP_THREADS / 2, token = first + row < tokens ? first + row : tokens - 1;
    const int from = int(threadIdx.x) % 2 * MINE * PER;
    const long pitch = *a.pitch;
    const q_t* q = a.q + token * (pitch ? pitch : q_heads * head_dim) + head * head_dim;
    Head x[MINE];
    float inverse = 0;
#pragma unroll
    for (int i = 0; i < MINE; ++i) x[i].take(q, from + i * PER);
    if (NORM) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < MINE; ++i) squares += x[i].squares();
        inverse = rsqrtf(sum_over<2>(squares) / float(head_dim) + eps);
    }
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int at = from + i * PER;
        if (NORM) {
            Halves<N> gain;
            gain.load(norm, at);
            x[i].scale(inverse, gain, offset);
        }
        Halves<cos_t> cos;
        Halves<sin_t> sin;
        cos.load(a.cos + long(token) * head_dim, at);
        sin.load(a.sin + long(token) * head_dim, at);
        x[i].rotate(cos, sin);
        const auto place = [&](int element) {
            const int word = element / PER;
            return reinterpret_cast<q_t*>(room + word / 8 * ROWS * 128 + row * 128 + (word % 8 ^ row % 8) * 16);
        };
        store_piece(place(at), x[i].low);
        store_piece(place(HALF + at), x[i].high);
    }
}

// Slots behind the last token of the chunk, whose values are not there: zeros, before a product reads them.
__device__ inline void clear_values(unsigned char* block, int first) {
    const int words = (SLOTS - first) * 8;
    for (int i = int(threadIdx.x) % GROUP_THREADS; i < PARTS * words; i += GROUP_THREADS)
        *reinterpret_cast<Words*>(block + i / words * SLOTS * 128 + first * 128 + i % words * 16) = Words{};
}

// Two rows of a lane, 0 and 8 of its warp's: where they stand, what they have seen.
struct Softmax {
    int seen[2];
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2];

    // Slots that a row does not see weigh nothing.
    __device__ void mask(float (&s)[SLOTS / 2], int block) const {
        const int slot = block * SLOTS + int(threadIdx.x) % 4 * 2;
#pragma unroll
        for (int i = 0; i < SLOTS / 2; ++i) {
            const int at = slot + i / 4 * 8 + i % 2, last = seen[i % 4 / 2];
            if (at > last || (window > 0 && at <= last - int(window))) s[i] = -INFINITY;
        }
    }
    // Scores become weights. Four maxima and four sums, of even and odd columns of both rows, so that none of a lane's
    // few instructions in flight waits for the one before it.
    __device__ void weigh(float (&s)[SLOTS / 2]) {
        float most[4] = {s[0], s[1], s[2], s[3]}, base[2], total[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 4; i < SLOTS / 2; ++i) most[i % 4] = fmaxf(most[i % 4], s[i]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float now = largest_over<4>(fmaxf(top[half], fmaxf(most[2 * half], most[2 * half + 1])));
            // Both rounded, as the weights' were: of large scores the exact product is far from what was taken away.
            base[half] = shift_of(__fmul_rn(now, TO_POWERS));
            keep[half] = power_of_two(__fsub_rn(__fmul_rn(top[half], TO_POWERS), base[half]));
            top[half] = now;
        }
#pragma unroll
        for (int i = 0; i < SLOTS / 2; ++i)
            total[i % 4] += s[i] = power_of_two(fmaf(s[i], TO_POWERS, -base[i % 4 / 2]));
#pragma unroll
        for (int half = 0; half < 2; ++half)
            sum[half] = fmaf(sum[half], keep[half], total[2 * half] + total[2 * half + 1]);
    }
};

// A warpgroup's 64 tokens of a tile.
template <class A> __device__ inline void attend_rows(const A& a, Ring& ring, const Span& span, int head, int first,
                                                      int group, const unsigned char* queries, int last,
                                                      bool by_token) {
    const int lane = int(threadIdx.x) % WARP, warp = int(threadIdx.x) % GROUP_THREADS / WARP;
    const int row = warp * 16 + lane / 4;
    const int begins = position(a.positions, first), ends = position(a.positions, first + ROWS - 1);
    Softmax rows{{position(a.positions, first + row), position(a.positions, first + row + 8)}};
    float s[SLOTS / 2], o[head_dim / 2];
    unsigned p[SLOTS / 4];
    const auto whole = [&](int block) {
        return (block + 1) * SLOTS - 1 <= begins && (window == 0 || block * SLOTS > ends - int(window));
    };
    const auto leave = [&](Barrier* barrier) {
        if (threadIdx.x % GROUP_THREADS == 0) arrive(barrier);
    };
    const auto score = [&] {
        const unsigned from = shared_address(queries) >> 4, keys = shared_address(ring.key_block()) >> 4;
        products_begin();
#pragma unroll
        for (int i = 0; i < head_dim / 16; ++i)
            Product<SLOTS>::of(s, described(from + i / 4 * (ROWS * 128 >> 4) + i % 4 * NEXT_COLUMNS),
                               described(keys + i / 4 * (SLOTS * 128 >> 4) + i % 4 * NEXT_COLUMNS), i > 0);
        products_asked();
    };
    const auto add_values = [&](const unsigned char* block, int add) {
        const unsigned values = turned(block);
        products_begin();
#pragma unroll
        for (int i = 0; i < SLOTS / 16; ++i)
            Weighed<head_dim>::of(o, p + 4 * i, described(values + i * NEXT_SLOTS), add || i > 0);
        products_asked();
    };
    const auto pack = [&] {
#pragma unroll
        for (int i = 0; i < SLOTS / 4; ++i) p[i] = two_bf16(s[2 * i], s[2 * i + 1]);
    };
    // Values of a block are there, and those that nobody may see are zeros.
    const auto values_there = [&](const Ring& at, int block) {
        wait_for(at.values(), at.parity);
        const int there = last + 1 - block * SLOTS;
        if (there >= SLOTS) return;
        clear_values(at.value_block(), there);
        reads_done();
        group_meets(group);
    };
    wait_for(ring.keys(), ring.parity);
    score();
    products_left<0>();
    sums_there(s);
    leave(ring.free_keys());
    if (!whole(span.begin)) rows.mask(s, span.begin);
    rows.weigh(s);
    pack();
    for (int block = span.begin + 1; block < span.end; ++block) {
        const Ring before = ring;
        ring.next();
        wait_for(ring.keys(), ring.parity);
        values_there(before, block - 1);
        score();
        add_values(before.value_block(), block > span.begin + 1);
        products_left<1>();
        sums_there(s);
        leave(ring.free_keys());
        if (!whole(block)) rows.mask(s, block);
        rows.weigh(s);
        // Sums are never negative, but the assembler does not know: it would move exponentials behind the wait, where
        // nothing multiplies beside them. A second let_successor_start would do nothing.
        if (rows.sum[0] + rows.sum[1] < 0) let_successor_start();
        products_left<0>();
        sums_there(o);
        leave(before.free_values());
#pragma unroll
        for (int i = 0; i < head_dim / 2; ++i) o[i] *= rows.keep[i % 4 / 2];
        pack();
    }
    values_there(ring, span.end - 1);
    add_values(ring.value_block(), span.end - span.begin > 1);
    products_there(o);
    leave(ring.free_values());
    ring.next();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float share = 1.0f / sum_over<4>(rows.sum[half]);
        const int token = first + row + 8 * half;
        y_t* y = a.y + (by_token ? long(token) * q_heads + head : long(head) * tokens + token) * head_dim;
#pragma unroll
        for (int j = 0; j < head_dim / 8; j += 4) {
            unsigned word[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * (j + i) + 2 * half;
                word[i] = two_bf16(o[at] * share, o[at + 1] * share);
            }
            turn(word);
            if (token < tokens)
                *reinterpret_cast<Words*>(y + 8 * (j + lane % 4)) = Words{{word[0], word[1], word[2], word[3]}};
        }
    }
}

template <bool NORM, class A, class N>
__device__ inline void attend_chunk(const A& a, const N* norm, float eps, float offset) {
    extern __shared__ __align__(128) unsigned char room[];
    unsigned char* queries = room + (1024 - shared_address(room) % 1024) % 1024;
    Ring ring{{}, queries + GROUPS * QUERY_BYTES};
    let_successor_start();
    const int group = int(threadIdx.x) / GROUP_THREADS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4 * STAGES; ++i) make_barrier(ring.barriers() + i, i < 2 * STAGES ? 1 : GROUPS);
        barriers_made();
        announce(&a.k_cache_map), announce(&a.v_cache_map);
    }
    __syncthreads();
    wait_for_inputs();
    if (group == GROUPS) {
        if constexpr (GROUPS > 1) few_registers();
        if (threadIdx.x % GROUP_THREADS == 0) copy_blocks(a, ring);
        return;
    }
    many_registers();
    queries += group * QUERY_BYTES;
    const int last = position(a.positions, tokens - 1);
    const bool by_token = *a.order != 0;
    each_tile(a.positions, [&](const Tile& tile, const Span& span) {
        const int first = tile.token + group * ROWS;
        group_meets(group);  // the products of the tile before have read its queries
        place_queries<NORM>(a, norm, eps, offset, tile.head, first, queries);
        reads_done();
        group_meets(group);
        attend_rows(a, ring, span, tile.head, first, group, queries, last, by_token);
    });
}
