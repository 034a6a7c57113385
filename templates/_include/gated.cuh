// silu(gate) * up of a warp's rows of both matrices times the staged vector.
#include "gemv.cuh"
#include "silu.cuh"

template <class W, long K, class Y, int COUNT, class S>
__device__ inline void gated_rows(const W* wg, const W* wu, const long (&rows_of)[COUNT], Y* y, S stage_vector) {
    extern __shared__ __align__(16) float room[];
    let_successor_start();
    const Unit unit = unit_of(rows_of, long(blockIdx.x) * WARPS + threadIdx.x / WARP);
    Rows<W, K> gate(wg, unit.row, unit.left), up(wu, unit.row, unit.left);
    gate.fetch(0);
    up.fetch(0);
    wait_for_inputs();
    const float factor = stage_vector(room);
    gate.run(room);
    up.run(room);
    const int lane = threadIdx.x % WARP;
    if (lane < ROWS && lane < unit.left) put(y + unit.row + lane, silu(gate.mine() * factor) * (up.mine() * factor));
}
