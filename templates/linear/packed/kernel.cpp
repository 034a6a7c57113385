// A vector lane owns a row, so no sum over lanes is needed and short rows cost no more than long ones. The weights of
// 16 rows are one ascending stream; with a prefetch it read L3 at 181 GB/s where row-major reached 165 (Zen 5,
// 2 threads).
#include "gemv.h"

extern "C" void gemv(const gemv_args& a, int rank, int size) {
    alignas(64) operand_t<w_t> room[operand_room<hidden>];
    const operand_t<w_t>* x = operand<w_t, Order::natural, hidden>(a.x, room);
    share_rows<TILE>(w_rows, rank, size, [&](int i, long begin, long end) {
        const b_t* bias = has_b ? item(a.b, i) : nullptr;
        y_t* y = item(a.y, i);
        packed_gemv<w_t, hidden, TILES, UNROLL, AHEAD>(item(a.w, i), x, begin, end, [&](long row, const float* sums, int n) {
            finish(y + row, sums, n, bias ? bias + row : nullptr);
        });
    });
}
