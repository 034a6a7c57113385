// A vector lane owns a row, so no sum over lanes is needed and short rows cost no more than long ones. The weights of
// 16 rows are one ascending stream; with a prefetch it read L3 at 181 GB/s where row-major reached 165 (Zen 5,
// 2 threads).
#include "gemv.h"
#include "silu.h"

extern "C" void gemv(const gemv_args& a, int rank, int size) {
    alignas(64) operand_t<wg_t> room[operand_room<hidden>];
    const operand_t<wg_t>* x = operand<wg_t, Order::natural, hidden>(a.x, room);
    alignas(64) float gate[BLOCK], up[BLOCK];
    share_rows<TILE>(wg_rows, rank, size, [&](int, long begin, long end) {
        for (long row = begin; row < end; row += BLOCK) {
            const long stop = std::min(row + BLOCK, end);
            const auto into = [&](float* out) {
                return [=](long at, const float* sums, int n) { std::memcpy(out + (at - row), sums, n * sizeof(float)); };
            };
            packed_gemv<wg_t, hidden, TILES, UNROLL, AHEAD>(a.wg, x, row, stop, into(gate));
            packed_gemv<wg_t, hidden, TILES, UNROLL, AHEAD>(a.wu, x, row, stop, into(up));
            each(stop - row, [&](auto as, long i) {
                as.store(a.y + row + i, silu(as.load(gate + i)) * as.load(up + i));
            });
        }
    });
}
