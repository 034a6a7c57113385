// The chunk's tokens once as floats (or bf16 pairs), then panels of rows, turned into tiles that all tokens read.
#include "gemm_norm.h"
#include "gemm_rows.h"

using Engine = RowVectors<w_t, VECTORS>;

extern "C" void pack(const pack_args& a, int rank, int size) {
    auto* xs = reinterpret_cast<Engine::operand*>(a.xs);
    norm_operand<Engine, hidden>(a.x, a.norm, eps, offset, xs, *a.count, rank, size);
}

extern "C" void multiply(const multiply_args& a, int rank, int size) {
    const auto* xs = reinterpret_cast<const Engine::operand*>(a.xs);
    multiply_family<Engine, PANEL, KBLOCK, hidden>(
        w_rows, a.w, xs, *a.count, rank, size, [&](int i, long token, long row, const float* sums, long some) {
            finish(item(a.y, i) + token * w_rows[i] + row, sums, some, has_b ? item(a.b, i) + row : nullptr);
        });
}
