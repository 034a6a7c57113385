// Keys and values of a chunk, then its attention.
constexpr int GROUPS = (tokens + 63) / 64 * q_heads <= 2 * threads ? 1 : head_dim == 64 ? 3 : 2;
constexpr long SHARES = 1;
#include "attention_wgmma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) append(const __grid_constant__ append_args a) {
    append_heads<true, false>(a, a.k_norm, a.k_norm, eps, offset);
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS * (GROUPS + 1), 1)
    attend(const __grid_constant__ attend_args a) {
    attend_chunk<true>(a, a.q_norm, eps, offset);
}
