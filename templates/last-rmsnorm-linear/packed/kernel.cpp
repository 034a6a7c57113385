// The logits of a chunk: those of its last token, which alone the next token is drawn from. The norm and the product are
// those of a decode step: a vector lane owns a row, so no sum over lanes is needed, the weights of 16 rows are one
// ascending stream, and memory bounds it. Threads share whole tiles.
#include "gemv.h"
#include "norm_operand.h"

extern "C" void gemv(const gemv_args& a, int rank, int size) {
    alignas(64) operand_t<w_t> room[operand_room<hidden>];
    const x_t* last = a.x + (*a.count - 1) * hidden;
    const operand_t<w_t>* x = norm_operand<w_t, Order::natural, hidden>(last, a.norm, eps, offset, room);
    share_rows<TILE>(w_rows, rank, size, [&](int i, long begin, long end) {
        const b_t* bias = has_b ? item(a.b, i) : nullptr;
        y_t* y = item(a.y, i);
        packed_gemv<w_t, hidden, TILES, UNROLL, AHEAD>(item(a.w, i), x, begin, end, [&](long row, const float* sums, int n) {
            finish(y + row, sums, n, bias ? bias + row : nullptr);
        });
    });
}
