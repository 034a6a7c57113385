// A chunk's gated MLP in one launch: gate and up of the same rows are the two sides of a tile, whose sums of an element
// end in one lane; the activation joins them there. Neither is rounded, nor written to memory.
#include "tensor_tiles.cuh"

constexpr int WIDE = wg_box;

// SiLU by an approximate quotient: 2 units in the last place of float, far below the rounding of the result.
__device__ inline float fast_silu(float v) { return __fdividef(v, 1.0f + __expf(-v)); }

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    multiply_chunk(const __grid_constant__ multiply_chunk_args a) {
    const TensorMap* const sides[2] = {&a.wg_map, &a.wu_map};
    multiply_tiles<2, WIDE, hidden, rows>(
        a.x_map, sides, a.y, [](const float (&sum)[WIDE], int i) { return fast_silu(sum[i]) * sum[i + WIDE / 2]; });
}
