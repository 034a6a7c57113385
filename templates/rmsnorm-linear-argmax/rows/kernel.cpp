// With STREAMS = 1 a thread reads its share of the rows as a single ascending stream. On a Zen 5 server core with the
// weights in memory that reached the read ceiling (65 of 65 GB/s, 2 threads, prefetch 4 KiB ahead) where 4 and 8 rows
// side by side stayed at 38-56 GB/s; from L3 all came within 15 %. Other cores prefer several streams.
#include "argmax.h"
#include "gemv.h"
#include "norm_operand.h"

extern "C" void gemv(const gemv_args& a, int rank, int size) {
    alignas(64) operand_t<w_t> room[operand_room<hidden>];
    const operand_t<w_t>* x = norm_operand<w_t, row_order<w_t>, hidden>(a.x, a.norm, eps, offset, room);
    Best best;
    share_rows<row_unit<rows, threads>>(w_rows, rank, size, [&](int, long begin, long end) {
        row_gemv<w_t, hidden, STREAMS, UNROLL, AHEAD>(a.w, x, begin, end, [&](long row, const float* sums, int n) {
            alignas(64) logits_t rounded[TILE];
            finish(rounded, sums, n, has_b ? a.b + row : nullptr);
            if (has_logits) std::memcpy(a.logits + row, rounded, n * sizeof(logits_t));
            best.see(rounded, row, n);
        });
    });
    best.leave(a.best, rank);
}

extern "C" void choose(const choose_args& a, int rank, int size) {
    if (rank == 0) *a.token = Best::of_all(a.best, size);
}
