#include "attention_block.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) attend(const __grid_constant__ attend_args a) {
    attend_block(a, static_cast<const q_t*>(nullptr), static_cast<const q_t*>(nullptr), 0.0f, 0.0f);
}
