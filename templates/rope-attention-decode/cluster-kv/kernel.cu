#include "attention_cluster.cuh"

extern "C" __global__ void __cluster_dims__(SPLITS, 1, 1) __launch_bounds__(THREADS) attend(const __grid_constant__ attend_args a) {
    attend_cluster<false, attend_args, q_t>(a, nullptr, nullptr, 0, 0);
}
