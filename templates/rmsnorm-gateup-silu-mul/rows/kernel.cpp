// With STREAMS = 1 a thread reads its share of the rows as a single ascending stream. On a Zen 5 server core with the
// weights in memory that reached the read ceiling (65 of 65 GB/s, 2 threads, prefetch 4 KiB ahead) where 4 and 8 rows
// side by side stayed at 38-56 GB/s; from L3 all came within 15 %. Other cores prefer several streams.
#include "gemv.h"
#include "silu.h"
#include "norm_operand.h"

extern "C" void gemv(const gemv_args& a, int rank, int size) {
    alignas(64) operand_t<wg_t> room[operand_room<hidden>];
    const operand_t<wg_t>* x = norm_operand<wg_t, row_order<wg_t>, hidden>(a.x, a.norm, eps, offset, room);
    alignas(64) float gate[BLOCK], up[BLOCK];
    share_rows<row_unit<rows, threads>>(wg_rows, rank, size, [&](int, long begin, long end) {
        for (long row = begin; row < end; row += BLOCK) {
            const long stop = std::min(row + BLOCK, end);
            const auto into = [&](float* out) {
                return [=](long at, const float* sums, int n) { std::memcpy(out + (at - row), sums, n * sizeof(float)); };
            };
            row_gemv<wg_t, hidden, STREAMS, UNROLL, AHEAD>(a.wg, x, row, stop, into(gate));
            row_gemv<wg_t, hidden, STREAMS, UNROLL, AHEAD>(a.wu, x, row, stop, into(up));
            each(stop - row, [&](auto as, long i) {
                as.store(a.y + row + i, silu(as.load(gate + i)) * as.load(up + i));
            });
        }
    });
}
