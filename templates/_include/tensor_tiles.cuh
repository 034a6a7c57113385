// Products of a chunk's tokens and row-major weights of 16 bits, in tiles on tensor cores (compute capability 9.0a).
//
//   tile        TOKENS tokens (64 a warpgroup) times N rows of weights, in PIECES boxes of BOX rows: of one matrix, or
//               of several side by side
//   warpgroup   g has tokens 64 g .. 64 g + 63 of the tile and all its rows: 64 x N sums in registers, one box behind
//               the other, so that a lane has the same element of each
//   last warp   one lane fills a ring of STAGES stages of 64 columns, which the tensor cores read:
//               | tokens | box 0 | box 1 | ... | tokens | box 0 | ...      two barriers a stage: full and empty
//   cluster     of a long chunk: SHARE blocks with neighbouring tokens and the same rows, each copies boxes for both;
//               of a short one: SPLIT blocks with the same tokens and rows, each multiplies its part of the columns
//   grid        a block a multiprocessor; a cluster takes every so many-th tile: the token tiles of a band one after
//               another, then the next rows, and at last the next band, so that blocks at work share what lies in L2
//
// The bytes in flight are those of the ring, some 200 KB; the first weights are asked for before the inputs are there,
// and while a block stores a tile its ring fills for the next. A short chunk waits for weights: no multiprocessor may be
// without a share of them. A long one waits for the tensor cores: 128 x 256 sums read few bytes a product.
#include "boxes.cuh"
#include "cluster.cuh"
#include "wgmma.cuh"

constexpr int COLUMNS = 64;  // of a stage: 128 bytes
constexpr long THERE = x_numel[0] / hidden;  // tokens, of which a region behind a chunk has the last alone
constexpr int WARPGROUP = 4 * WARP;
constexpr int TOKENS = x_box, GROUPS = TOKENS / 64, CONSUMERS = GROUPS * WARPGROUP, THREADS = CONSUMERS + WARP;
constexpr int SHARED_BYTES = 196 << 10;  // what the manifest asks for

// A part of a matrix that one copy brings.
struct Box {
    const TensorMap* map;
    int column, row;
};

// What a block keeps in shared memory, and which tiles are its own. A Work has PIECES, BOX, SHARE and SPLIT as above,
// STEPS of 64 columns, and tiles of rows ACROSS.
template <class Work> struct Tiling {
    static constexpr int SHARE = Work::SHARE, SPLIT = Work::SPLIT, BLOCKS = SHARE * SPLIT;
    static constexpr int N = Work::PIECES * Work::BOX, STEPS = Work::STEPS, ACROSS = Work::ACROSS;
    static constexpr int TOKEN_BYTES = TOKENS * 128, BOX_BYTES = Work::BOX * 128, STAGE_BYTES = TOKEN_BYTES + N * 128;
    static constexpr int FITTING = (SHARED_BYTES - 2048) / STAGE_BYTES, STAGES = FITTING < 12 ? FITTING : 12;
    static constexpr int DOWN = (THERE + TOKENS * SHARE - 1) / (TOKENS * SHARE);
    static constexpr int COUNT = DOWN * ACROSS, HEIGHT = BAND / SHARE, BAND_COUNT = HEIGHT * ACROSS;
    static_assert(Work::BOX % 8 == 0 && N % 32 == 0 && N <= 256 && (SHARE == 1 || SPLIT == 1));

    unsigned char* stages;
    Barrier *full, *empty, *multiplied;
    int rank, first, step;

    __device__ Tiling(unsigned char* room)
        : stages(room + (1024 - shared_address(room) % 1024) % 1024),
          full(reinterpret_cast<Barrier*>(stages + STAGES * STAGE_BYTES)),
          empty(full + STAGES),
          multiplied(empty + STAGES),
          rank(blockIdx.x % BLOCKS),
          first(blockIdx.x / BLOCKS),
          step(gridDim.x / BLOCKS) {}
    // The first token of tile `t` of this block, and its place among the tiles of rows.
    __device__ int token_of(int t) const {
        const int turn = SHARE > 1 ? rank : 0;
        return ((t / BAND_COUNT * HEIGHT + t % BAND_COUNT % height_of(t)) * SHARE + turn) * TOKENS;
    }
    __device__ int across_of(int t) const { return t % BAND_COUNT / height_of(t); }
    static __device__ int height_of(int t) { return min(HEIGHT, DOWN - t / BAND_COUNT * HEIGHT); }
    // This thread's first token of the tile; the second is 8 behind it.
    __device__ int token_here(int t) const { return token_of(t) + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4; }
    // How many tiles of this block come before the tile.
    __device__ int turn_of(int t) const { return (t - first) / step; }
    // The steps of this block: [begin(), begin() + steps()), which may be none where there are fewer than blocks.
    __device__ int begin() const { return SPLIT == 1 ? 0 : STEPS * rank / SPLIT; }
    __device__ int steps() const { return SPLIT == 1 ? STEPS : STEPS * (rank + 1) / SPLIT - begin(); }
};

// All threads of all blocks of a cluster, in order with what they have read and written of each other's shared memory;
// the barrier is for whole warps, whose lanes come from loops and branches of their own.
__device__ inline void parts_meet() { __syncwarp(), cluster_arrive(), cluster_wait(); }

// Fills the ring: one lane of a warp; the warp waits for the inputs together.
template <class Work> __device__ inline void fill(const Tiling<Work>& tiles, const Work& work) {
    using Tiles = Tiling<Work>;
    constexpr int STAGES = Tiles::STAGES, PIECES = Work::PIECES;
    const bool copying = threadIdx.x % WARP == 0;
    const unsigned long long policy = Tiles::DOWN <= Tiles::HEIGHT ? read_once() : read_again(), often = read_often();
    const int begin = tiles.begin(), steps = tiles.steps(), early = min(STAGES, steps);
    const auto ask_weights = [&](int stage, int k, int across) {
        unsigned char* to = tiles.stages + stage * Tiles::STAGE_BYTES + Tiles::TOKEN_BYTES;
        Barrier* full = tiles.full + stage;
        expect(full, Tiles::STAGE_BYTES);
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            if (Tiles::SHARE > 1 && p % Tiles::SHARE != tiles.rank) continue;
            const Box from = work.weights(across, p, begin + k);
            unsigned char* box = to + p * Tiles::BOX_BYTES;
            if constexpr (Tiles::SHARE > 1)
                load_box_to_cluster(box, from.map, from.column, from.row, full, policy, (1 << Tiles::SHARE) - 1);
            else
                load_box(box, from.map, from.column, from.row, full, policy);
        }
    };
    if (copying && tiles.first < Tiles::COUNT)
        for (int k = 0; k < early; ++k) ask_weights(k, k, tiles.across_of(tiles.first));
    wait_for_inputs();
    Place<STAGES> at;
    for (int t = tiles.first; t < Tiles::COUNT; t += tiles.step) {
        const int token = tiles.token_of(t), across = tiles.across_of(t);
        for (int k = 0; copying && k < steps; ++k, at.next()) {
            if (t != tiles.first || k >= early) {
                wait_for(tiles.empty + at.stage, at.parity ^ 1);
                ask_weights(at.stage, k, across);
            }
            const Box from = work.tokens_at(token, begin + k);
            unsigned char* to = tiles.stages + at.stage * Tiles::STAGE_BYTES;
            load_box(to, from.map, from.column, from.row, tiles.full + at.stage, often);
        }
        if constexpr (Tiles::SPLIT > 1) parts_meet(), parts_meet();  // when all sums are there, and when they are read
    }
}

// Stores COUNT words of two elements from `column` on, those inside the matrix; WHOLE: its rows are whole words of 16
// bytes.
template <int COUNT, bool WHOLE, class Y>
__device__ inline void store(Y* row, long column, long end, const unsigned* word) {
    if constexpr (WHOLE) {
        if (column >= end) return;
        if constexpr (COUNT == 4)
            *reinterpret_cast<Words*>(row + column) = Words{{word[0], word[1], word[2], word[3]}};
        else
            *reinterpret_cast<unsigned*>(row + column) = word[0];
    } else {
#pragma unroll
        for (int i = 0; i < 2 * COUNT; ++i)
            if (column + i < end) row[column + i] = Y{(unsigned short)(word[i / 2] >> i % 2 * 16)};
    }
}

// Multiplies all tiles of this block: sums begin as zero, or as `work.start` says, and `work.finish` stores them.
template <class Work> __device__ inline void multiply_tiles(const Work& work) {
    using Tiles = Tiling<Work>;
    constexpr int SHARE = Tiles::SHARE;
    extern __shared__ __align__(128) unsigned char room[];
    const Tiles tiles(room);
    let_successor_start();
    if (threadIdx.x == THREADS - 1) work.announce_all();
    if (threadIdx.x == 0) {
        for (int s = 0; s < Tiles::STAGES; ++s)
            make_barrier(tiles.full + s, 1), make_barrier(tiles.empty + s, GROUPS * SHARE);
        if (Tiles::SPLIT > 1) make_barrier(tiles.multiplied, CONSUMERS / WARP);
        barriers_made();
    }
    __syncthreads();
    if (SHARE > 1) cluster_meets();
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP;
    if (group == GROUPS) {
        fill(tiles, work);
    } else {
        wait_for_inputs();
        const auto release = [&](int stage) {
            if (SHARE == 1 && thread == 0) arrive(tiles.empty + stage);
            if (SHARE > 1 && thread < SHARE) arrive_in(thread, tiles.empty + stage);
        };
        const int steps = tiles.steps();
        Place<Tiles::STAGES> at;
        float sum[Tiles::N / 2];
        for (int t = tiles.first; t < Tiles::COUNT; t += tiles.step) {
            if constexpr (Work::STARTED) work.start(tiles, sum, t);
            for (int k = 0; k < steps; ++k, at.next()) {
                wait_for(tiles.full + at.stage, at.parity);
                const unsigned char* stage = tiles.stages + at.stage * Tiles::STAGE_BYTES;
                const Operand a = operand(stage + group * 64 * 128), b = operand(stage + Tiles::TOKEN_BYTES);
                products_begin();
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const bool add = Work::STARTED || k > 0 || i > 0;
                    Product<Tiles::N>::of(sum, a + i * NEXT_COLUMNS, b + i * NEXT_COLUMNS, add);
                }
                products_asked();
                products_left<1>();
                if (k > 0) release(at.before());
            }
            products_there(sum);
            if (Tiles::STEPS >= Tiles::SPLIT || steps > 0) release(at.before());
            work.finish(tiles, sum, t);
        }
    }
    if (SHARE > 1) __syncwarp(), cluster_meets();  // nobody writes to the shared memory of a block that has ended
}
