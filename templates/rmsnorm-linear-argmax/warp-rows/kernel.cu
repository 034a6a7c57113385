#include "gemv.cuh"
#include "argmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemv(const __grid_constant__ gemv_args a) {
    extern __shared__ __align__(16) float room[];
    __shared__ float partial[WARPS];
    let_successor_start();
    const Unit unit = unit_of(w_rows, long(blockIdx.x) * WARPS + threadIdx.x / WARP);
    Rows<w_t, hidden> rows_here(a.w, unit.row, unit.left);
    rows_here.fetch(0);
    wait_for_inputs();
    const float inverse = stage_normalised<hidden, w_t>(a.x, a.norm, eps, offset, room, partial);
    rows_here.run(room);
    const int lane = threadIdx.x % WARP;
    Key key = 0;
    if (lane < ROWS && lane < unit.left) {
        float v = rows_here.mine() * inverse;
        if (has_b) v += to_float(a.b[unit.row + lane]);
        const logits_t rounded = Rounded<logits_t>::of(v);
        if (has_logits) a.logits[unit.row + lane] = rounded;
        key = key_of(to_float(rounded), unit.row + lane);
    }
    choose<WARPS>(key, reinterpret_cast<Key*>(a.best), reinterpret_cast<unsigned*>(a.arrived), a.token);
}
