#include "attention_block.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) attend(const __grid_constant__ attend_args a) {
    attend_block(a, a.q_norm, a.k_norm, eps, offset);
}
