// Products of a chunk's tokens and row-major weights of 16 bits, in tiles on the tensor cores (compute capability 9.0a).
//
//   tile        TOKENS tokens (64 a warpgroup) times WIDE rows of each of SIDES matrices, over all columns
//   warpgroup   g has tokens 64 g .. 64 g + 63 of the tile and all its rows: 64 x (SIDES WIDE) sums in registers, one
//               side behind the other, so that a lane has the same element of each side
//   last warp   one lane fills a ring of STAGES stages of 64 columns, which the tensor cores read:
//               | tokens | side 0 | side 1 | tokens | side 0 | side 1 | ...      two barriers a stage: full and empty
//   cluster     blocks of a long chunk with neighbouring tokens and the same rows: each copies one side for both
//   grid        a block a multiprocessor, which takes every gridDim-th tile: the token tiles of a band one after another,
//               then the next rows, and at last the next band, so that blocks at work share what lies in L2
//
// The bytes in flight are those of the ring, some 200 KB; the first weights are asked for before the inputs are there,
// and while a block stores a tile its ring fills for the next. A short chunk waits for weights: WIDE leaves no
// multiprocessor without a share. A long one waits for the tensor cores: 128 x 256 sums read few bytes a product.
#include "boxes.cuh"
#include "wgmma.cuh"

constexpr int COLUMNS = 64;  // of a stage: 128 bytes
constexpr int WARPGROUP = 4 * WARP;
constexpr int TOKENS = x_box, GROUPS = TOKENS / 64, THREADS = GROUPS * WARPGROUP + WARP;
constexpr int BLOCKS = tokens > TOKENS ? CLUSTER : 1;  // of a cluster
constexpr int SHARED_BYTES = 196 << 10;  // what the manifest asks for

// What a block keeps in shared memory, and its tiles: WIDE rows of each of SIDES matrices of ROWS rows and K columns.
template <int SIDES, int WIDE, long K, long ROWS> struct Tiling {
    static constexpr int N = SIDES * WIDE, STEPS = (K + COLUMNS - 1) / COLUMNS;
    static constexpr int TOKEN_BYTES = TOKENS * 128, STAGE_BYTES = TOKEN_BYTES + N * 128;
    static constexpr int FITTING = (SHARED_BYTES - 2048) / STAGE_BYTES, STAGES = FITTING < 12 ? FITTING : 12;
    static constexpr int DOWN = (tokens + TOKENS * BLOCKS - 1) / (TOKENS * BLOCKS), ACROSS = (ROWS + WIDE - 1) / WIDE;
    static constexpr int COUNT = DOWN * ACROSS, HEIGHT = BAND / BLOCKS, BAND_COUNT = HEIGHT * ACROSS;
    static_assert(WIDE % 16 == 0 && N <= 256 && (BLOCKS == 1 || BLOCKS == SIDES));

    unsigned char* stages;
    Barrier *full, *empty;
    int rank, first, step;

    __device__ Tiling(unsigned char* room)
        : stages(room + (1024 - shared_address(room) % 1024) % 1024),
          full(reinterpret_cast<Barrier*>(stages + STAGES * STAGE_BYTES)),
          empty(full + STAGES),
          rank(blockIdx.x % BLOCKS),
          first(blockIdx.x / BLOCKS),
          step(gridDim.x / BLOCKS) {}
    // The first token and the first row of tile `t` of this block.
    __device__ int token_of(int t) const {
        return ((t / BAND_COUNT * HEIGHT + t % BAND_COUNT % height_of(t)) * BLOCKS + rank) * TOKENS;
    }
    __device__ int row_of(int t) const { return t % BAND_COUNT / height_of(t) * WIDE; }
    static __device__ int height_of(int t) { return min(HEIGHT, DOWN - t / BAND_COUNT * HEIGHT); }
};

// A stage of the ring, and the parity of its turn.
template <int STAGES> struct Place {
    int stage = 0;
    unsigned parity = 0;

    __device__ int before() const { return stage == 0 ? STAGES - 1 : stage - 1; }
    __device__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// Fills the ring: one lane of a warp; the warp waits for the inputs together.
template <class Tiles, int SIDES, int WIDE>
__device__ inline void fill(const Tiles& tiles, const TensorMap& x, const TensorMap* const (&sides)[SIDES]) {
    constexpr int STAGES = Tiles::STAGES, STEPS = Tiles::STEPS;
    const bool copying = threadIdx.x % WARP == 0;
    const unsigned long long weights = Tiles::DOWN <= Tiles::HEIGHT ? read_once() : read_again(), often = read_often();
    const auto ask_weights = [&](int stage, int k, int row) {
        unsigned char* to = tiles.stages + stage * Tiles::STAGE_BYTES + Tiles::TOKEN_BYTES;
        Barrier* full = tiles.full + stage;
        expect(full, Tiles::STAGE_BYTES);
        if constexpr (BLOCKS > 1) {
            const TensorMap* side = tiles.rank ? sides[SIDES - 1] : sides[0];
            to += tiles.rank * WIDE * 128;
            load_box_to_cluster(to, side, k * COLUMNS, row, full, weights, (1 << BLOCKS) - 1);
        } else {
#pragma unroll
            for (int side = 0; side < SIDES; ++side)
                load_box(to + side * WIDE * 128, sides[side], k * COLUMNS, row, full, weights);
        }
    };
    constexpr int EARLY = STAGES < STEPS ? STAGES : STEPS;
    if (copying && tiles.first < Tiles::COUNT)
        for (int k = 0; k < EARLY; ++k) ask_weights(k, k, tiles.row_of(tiles.first));
    wait_for_inputs();
    if (!copying) return;
    Place<STAGES> at;
    for (int t = tiles.first; t < Tiles::COUNT; t += tiles.step) {
        const int token = tiles.token_of(t), row = tiles.row_of(t);
        for (int k = 0; k < STEPS; ++k, at.next()) {
            if (t != tiles.first || k >= EARLY) {
                wait_for(tiles.empty + at.stage, at.parity ^ 1);
                ask_weights(at.stage, k, row);
            }
            load_box(tiles.stages + at.stage * Tiles::STAGE_BYTES, &x, k * COLUMNS, token, tiles.full + at.stage, often);
        }
    }
}

// Turns words of four lanes: word i of lane q becomes word q of lane i, of each four neighbours.
__device__ inline void turn(unsigned (&word)[4]) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const unsigned got = __shfl_xor_sync(ALL, q & 1 ? word[i] : word[i + 1], 1);
        (q & 1 ? word[i] : word[i + 1]) = got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned got = __shfl_xor_sync(ALL, q & 2 ? word[i] : word[i + 2], 2);
        (q & 2 ? word[i] : word[i + 2]) = got;
    }
}
template <class Y> __device__ inline unsigned pair(float lower, float upper) {
    return Rounded<Y>::of(lower).bits | unsigned(Rounded<Y>::of(upper).bits) << 16;
}
// Stores COUNT words of two elements from `column` on, those inside the matrix.
template <int COUNT, long ROWS, class Y> __device__ inline void store(Y* row, long column, const unsigned* word) {
    if constexpr (ROWS % 8 == 0) {
        if (column >= ROWS) return;
        if constexpr (COUNT == 4)
            *reinterpret_cast<Words*>(row + column) = Words{{word[0], word[1], word[2], word[3]}};
        else
            *reinterpret_cast<unsigned*>(row + column) = word[0];
    } else {
#pragma unroll
        for (int i = 0; i < 2 * COUNT; ++i)
            if (column + i < ROWS) row[column + i] = Y{(unsigned short)(word[i / 2] >> i % 2 * 16)};
    }
}

// y[token, row] = value(sums of all sides, the place of side 0's), rounded once.
template <int SIDES, int WIDE, long K, long ROWS, class Y, class Value>
__device__ inline void multiply_tiles(
    const TensorMap& x, const TensorMap* const (&sides)[SIDES], Y* y, Value value) {
    using Tiles = Tiling<SIDES, WIDE, K, ROWS>;
    extern __shared__ __align__(128) unsigned char room[];
    const Tiles tiles(room);
    let_successor_start();
    if (threadIdx.x == THREADS - 1) {
        announce(&x);
#pragma unroll
        for (int side = 0; side < SIDES; ++side) announce(sides[side]);
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < Tiles::STAGES; ++s)
            make_barrier(tiles.full + s, 1), make_barrier(tiles.empty + s, GROUPS * BLOCKS);
        barriers_made();
    }
    __syncthreads();
    if (BLOCKS > 1) cluster_meets();
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP;
    if (group == GROUPS) {
        fill<Tiles, SIDES, WIDE>(tiles, x, sides);
    } else {
        wait_for_inputs();
        const auto release = [&](int stage) {
            if (BLOCKS == 1 && thread == 0) arrive(tiles.empty + stage);
            if (BLOCKS > 1 && thread < BLOCKS) arrive_in(thread, tiles.empty + stage);
        };
        Place<Tiles::STAGES> at;
        float sum[Tiles::N / 2];
        for (int t = tiles.first; t < Tiles::COUNT; t += tiles.step) {
            for (int k = 0; k < Tiles::STEPS; ++k, at.next()) {
                wait_for(tiles.full + at.stage, at.parity);
                const unsigned char* stage = tiles.stages + at.stage * Tiles::STAGE_BYTES;
                const Operand a = operand(stage + group * 64 * 128), b = operand(stage + Tiles::TOKEN_BYTES);
                products_begin();
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    Product<Tiles::N>::of(sum, a + i * NEXT_COLUMNS, b + i * NEXT_COLUMNS, k > 0 || i > 0);
                products_asked();
                products_left<1>();
                if (k > 0) release(at.before());
            }
            products_there(sum);
            release(at.before());
            const int q = threadIdx.x % 4, row = tiles.row_of(t);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = tiles.token_of(t) + group * 64 + thread / WARP * 16 + thread % WARP / 4 + 8 * half;
                const auto both = [&](int j) {
                    return pair<Y>(value(sum, 4 * j + 2 * half), value(sum, 4 * j + 2 * half + 1));
                };
                constexpr int FOURS = WIDE / 32 * 4;
                Y* to = y + token * ROWS;
#pragma unroll
                for (int j = 0; j < FOURS; j += 4) {
                    unsigned word[4] = {both(j), both(j + 1), both(j + 2), both(j + 3)};
                    turn(word);
                    if (token < tokens) store<4, ROWS>(to, row + 8 * (j + q), word);
                }
#pragma unroll
                for (int j = FOURS; j < WIDE / 8; ++j) {
                    const unsigned word[1] = {both(j)};
                    if (token < tokens) store<1, ROWS>(to, row + 8 * j + 2 * q, word);
                }
            }
        }
    }
    if (BLOCKS > 1) cluster_meets();  // nobody writes to the shared memory of a block that has ended
}
