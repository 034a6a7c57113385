#include "gemv.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    extern __shared__ __align__(16) float room[];
    let_successor_start();
    const Unit unit = unit_of(w_rows, long(blockIdx.x) * WARPS + threadIdx.x / WARP);
    Rows<w_t, hidden> rows_here(item(a.w, unit.matrix), unit.row, unit.left);
    rows_here.fetch(0);
    wait_for_inputs();
    stage<hidden, w_t>(a.x, room);
    __syncthreads();
    rows_here.run(room);
    const int lane = threadIdx.x % WARP;
    if (lane >= ROWS || lane >= unit.left) return;
    float v = rows_here.mine();
    if (has_b) v += to_float(item(a.b, unit.matrix)[unit.row + lane]);
    put(item(a.y, unit.matrix) + unit.row + lane, v);
}
