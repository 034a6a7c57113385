#include "chunk_heads.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) append(const __grid_constant__ append_args a) {
    append_heads<true>(a, a.q_norm, a.k_norm, eps, offset);
}
