#include "pieces.cuh"

constexpr int THREADS = WARP * WARPS;
constexpr int HELD = (hidden + THREADS * PER - 1) / (THREADS * PER);  // pieces of a row that a thread holds
static_assert(a_numel[0] == groups * hidden && b_numel[0] == groups * hidden, "an operand is broadcast");

// y = RMSNorm(a + b). Normalises the float sum, not its rounded copy `s`, which is stored for later readers. One block
// per row; each thread keeps its HELD pieces of the sum in registers between the two passes.
extern "C" __global__ void __launch_bounds__(THREADS) normalise(const __grid_constant__ normalise_args a) {
    __shared__ float partial[WARPS];
    let_successor_start();
    Piece<norm_t> norm[HELD];
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        const long i = (long(n) * THREADS + threadIdx.x) * PER;
        if (i < hidden) norm[n].load(a.norm + i);
    }
    wait_for_inputs();
    const long row = long(blockIdx.x) * hidden;
    float x[HELD][PER], squares = 0;
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        const long i = (long(n) * THREADS + threadIdx.x) * PER;
        if (i >= hidden) continue;
        float other[PER];
        load_piece(a.a + row + i, x[n]);
        load_piece(a.b + row + i, other);
#pragma unroll
        for (int k = 0; k < PER; ++k) x[n][k] += other[k], squares = fmaf(x[n][k], x[n][k], squares);
    }
    const float inverse = rsqrtf(sum_over_block<WARPS>(squares, partial) / float(hidden) + eps);
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        const long i = (long(n) * THREADS + threadIdx.x) * PER;
        if (i >= hidden) continue;
        if (has_s) store_piece((s_t*)a.s + row + i, x[n]);
        float gain[PER];
        norm[n].floats(gain);
#pragma unroll
        for (int k = 0; k < PER; ++k) x[n][k] *= inverse * (gain[k] + offset);
        store_piece(a.y + row + i, x[n]);
    }
}
