#include "attention_cluster.cuh"

// Said to be enough, one block of sixteen warps keeps all registers; else some spill for a second one.
extern "C" __global__ void __cluster_dims__(SPLITS, 1, 1) __launch_bounds__(THREADS, WARPS > 8) attend(const __grid_constant__ attend_args a) {
    attend_cluster<false, attend_args, q_t>(a, nullptr, nullptr, 0, 0);
}
