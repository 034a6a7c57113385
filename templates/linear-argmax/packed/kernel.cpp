// A vector lane owns a row, so no sum over lanes is needed and short rows cost no more than long ones. The weights of
// 16 rows are one ascending stream; with a prefetch it read L3 at 181 GB/s where row-major reached 165 (Zen 5,
// 2 threads).
#include "argmax.h"
#include "gemv.h"

extern "C" void gemv(const gemv_args& a, int rank, int size) {
    alignas(64) operand_t<w_t> room[operand_room<hidden>];
    const operand_t<w_t>* x = operand<w_t, Order::natural, hidden>(a.x, room);
    Best best;
    share_rows<TILE>(w_rows, rank, size, [&](int, long begin, long end) {
        packed_gemv<w_t, hidden, TILES, UNROLL, AHEAD>(a.w, x, begin, end, [&](long row, const float* sums, int n) {
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
