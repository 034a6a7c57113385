#include "attention_cluster.cuh"

// Launch bounds with a minimum of one block per multiprocessor let sixteen warps use all registers; without it the
// compiler spills some to make room for a second block.
extern "C" __global__ void __cluster_dims__(SPLITS, 1, 1) __launch_bounds__(THREADS, WARPS > 8) attend(const __grid_constant__ attend_args a) {
    attend_cluster<true>(a, a.q_norm, a.k_norm, eps, offset);
}
