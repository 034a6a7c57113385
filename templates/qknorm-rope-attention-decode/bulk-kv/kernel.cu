#include "attention_bulk.cuh"

// Said to be enough, one block keeps its registers; else some spill for one block more.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attend(const __grid_constant__ attend_args a) {
    attend_bulk<true>(a, a.q_norm, a.k_norm, eps, offset);
}
