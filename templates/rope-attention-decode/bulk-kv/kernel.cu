#include "attention_bulk.cuh"

// Launch bounds with a minimum of one block per multiprocessor let the compiler use all the registers it wants; without
// it spills some to make room for one block more.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attend(const __grid_constant__ attend_args a) {
    attend_bulk<false, attend_args, q_t>(a, nullptr, nullptr, 0, 0);
}
