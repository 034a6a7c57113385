// With STREAMS = 1 a thread reads its share of the rows as a single ascending stream. On a Zen 5 server core with the
// weights in memory that reached the read ceiling (65 of 65 GB/s, 2 threads, prefetch 4 KiB ahead) where 4 and 8 rows
// side by side stayed at 38-56 GB/s; from L3 all came within 15 %. Other cores prefer several streams.
#include "gemv.h"

extern "C" void gemv(const gemv_args& a, int rank, int size) {
    alignas(64) operand_t<w_t> room[operand_room<hidden>];
    const operand_t<w_t>* x = operand<w_t, row_order<w_t>, hidden>(a.x, room);
    share_rows<row_unit<rows, threads>>(w_rows, rank, size, [&](int i, long begin, long end) {
        const b_t* bias = has_b ? item(a.b, i) : nullptr;
        y_t* y = item(a.y, i);
        row_gemv<w_t, hidden, STREAMS, UNROLL, AHEAD>(item(a.w, i), x, begin, end, [&](long row, const float* sums, int n) {
            finish(y + row, sums, n, bias ? bias + row : nullptr);
        });
    });
}
