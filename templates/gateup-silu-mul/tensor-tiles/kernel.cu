// A chunk's gated MLP in one launch: gate and up of the same rows are the two boxes of a tile, whose sums of an element
// end in one lane; the activation joins them there. Neither is rounded, nor written to memory.
#include "tensor_tiles.cuh"

// SiLU by an approximate quotient: 2 units in the last place of float, far below the rounding of the result.
__device__ inline float fast_silu(float v) { return __fdividef(v, 1.0f + __expf(-v)); }

struct Gated {
    static constexpr int PIECES = 2, BOX = wg_box, SHARE = tokens > TOKENS ? CLUSTER : 1, SPLIT = 1;
    static constexpr int STEPS = (hidden + COLUMNS - 1) / COLUMNS, ACROSS = (rows + BOX - 1) / BOX;
    static constexpr bool STARTED = false;
    static_assert(BOX % 16 == 0);
    const multiply_chunk_args& a;

    __device__ void announce_all() const { announce(&a.x_map), announce(&a.wg_map), announce(&a.wu_map); }
    __device__ Box weights(int across, int p, int k) const {
        return {p ? &a.wu_map : &a.wg_map, k * COLUMNS, across * BOX};
    }
    __device__ Box tokens_at(int token, int k) const { return {&a.x_map, k * COLUMNS, token}; }

    __device__ void finish(const Tiling<Gated>& tiles, const float (&sum)[BOX], int t) const {
        const int q = threadIdx.x % 4, row = tiles.across_of(t) * BOX;
        const auto value = [&](int i) { return fast_silu(sum[i]) * sum[i + BOX / 2]; };
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int token = tiles.token_here(t) + 8 * half;
            const auto both = [&](int j) { return two_bf16(value(4 * j + 2 * half), value(4 * j + 2 * half + 1)); };
            constexpr int FOURS = BOX / 32 * 4;
            y_t* to = a.y + token * rows;
#pragma unroll
            for (int j = 0; j < FOURS; j += 4) {
                unsigned word[4] = {both(j), both(j + 1), both(j + 2), both(j + 3)};
                turn(word);
                if (token < THERE) store<4, rows % 8 == 0>(to, row + 8 * (j + q), rows, word);
            }
#pragma unroll
            for (int j = FOURS; j < BOX / 8; ++j) {
                const unsigned word[1] = {both(j)};
                if (token < THERE) store<1, rows % 8 == 0>(to, row + 8 * j + 2 * q, rows, word);
            }
        }
    }
};

constexpr int BLOCKS = Gated::SHARE;

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    multiply_chunk(const __grid_constant__ multiply_chunk_args a) {
    multiply_tiles(Gated{a});
}
