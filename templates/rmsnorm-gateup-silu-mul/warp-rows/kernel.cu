#include "gemv.cuh"
#include "silu.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    extern __shared__ __align__(16) float room[];
    __shared__ float partial[WARPS];
    let_successor_start();
    const Unit unit = unit_of(wg_rows, long(blockIdx.x) * WARPS + threadIdx.x / WARP);
    Rows<wg_t, hidden> gate(a.wg, unit.row, unit.left), up(a.wu, unit.row, unit.left);
    gate.fetch(0);
    up.fetch(0);
    wait_for_inputs();
    const float inverse = stage_normalised<hidden, wg_t>(a.x, a.norm, eps, offset, room, partial);
    gate.run(room);
    up.run(room);
    const int lane = threadIdx.x % WARP;
    if (lane < ROWS && lane < unit.left) put(a.y + unit.row + lane, silu(gate.mine() * inverse) * (up.mine() * inverse));
}
