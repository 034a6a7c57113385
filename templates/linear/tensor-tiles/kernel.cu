// One product of a chunk, or several on the same tokens, in one launch.
#include "tensor_products.cuh"

using Work = Products<1, hidden, false, multiply_chunk_args>;
constexpr int BLOCKS = Tiling<Work>::BLOCKS;

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    multiply_chunk(const __grid_constant__ multiply_chunk_args a) {
    multiply_tiles(Work{a});
}
