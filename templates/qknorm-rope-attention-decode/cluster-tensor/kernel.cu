#include "attention_cluster_tensor.cuh"

// Launch bounds with a minimum of one block per multiprocessor let the compiler use all the registers it wants; without
// it spills some to make room for one block more.
extern "C" __global__ void __cluster_dims__(SPLITS, 1, 1) __launch_bounds__(THREADS, 1) attend(const __grid_constant__ attend_args a) {
    attend_cluster_tensor<true>(a, a.q_norm, a.k_norm, eps, offset);
}
