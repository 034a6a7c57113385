// The chunk's tokens once as floats (or bf16 pairs), then panels of rows, turned into tiles that all tokens read.
#include "gemm_norm.h"
#include "gemm_rows.h"
#include "silu.h"

using Engine = RowVectors<wg_t, VECTORS>;

extern "C" void pack(const pack_args& a, int rank, int size) {
    auto* xs = reinterpret_cast<Engine::operand*>(a.xs);
    norm_operand<Engine, hidden>(a.x, a.norm, eps, offset, xs, *a.count, rank, size);
}

extern "C" void multiply(const multiply_args& a, int rank, int size) {
    const auto* xs = reinterpret_cast<const Engine::operand*>(a.xs);
    multiply_pair<Engine, PANEL, KBLOCK, hidden>(
        rows, a.wg, a.wu, xs, *a.count, rank, size,
        [&](long token, long row, const float* gate, const float* up, long some) {
            y_t* y = a.y + token * rows + row;
            each(some, [&](auto as, long i) { as.store(y + i, silu(as.load(gate + i)) * as.load(up + i)); });
        });
}
