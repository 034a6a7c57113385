// The chunk's tokens once as floats (or bf16 pairs), then panels of rows, turned into tiles that all tokens read.
#include "gemm_operand.h"
#include "gemm_rows.h"

using Engine = RowVectors<w_t, VECTORS>;

extern "C" void pack(const pack_args& a, int rank, int size) {
    heads_operand<Engine, heads, head_dim>(a.x, reinterpret_cast<Engine::operand*>(a.xs), *a.count, rank, size);
}

extern "C" void multiply(const multiply_args& a, int rank, int size) {
    const auto* xs = reinterpret_cast<const Engine::operand*>(a.xs);
    multiply_family<Engine, PANEL, KBLOCK, hidden>(
        w_rows, a.w, xs, *a.count, rank, size, [&](int, long token, long row, const float* sums, long some) {
            const long at = token * rows + row;
            finish_residual(a.y + at, sums, some, has_b ? a.b + row : nullptr, a.r + at);
        });
}
