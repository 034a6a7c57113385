// A chunk's product with its residual, of tokens that lie heads first, in one launch.
#include "tensor_products.cuh"

using Work = Products<heads, head_dim, true, multiply_chunk_args>;
constexpr int BLOCKS = Tiling<Work>::BLOCKS;

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    multiply_chunk(const __grid_constant__ multiply_chunk_args a) {
    multiply_tiles(Work{a});
}
