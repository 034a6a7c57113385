# include "gemv.py"
"""Rows of every matrix of a family, each with its bias, to its own output."""


@triton.jit
def gemv(x, norm, w, b, y):
    """BLOCK_ROWS rows of one matrix per program."""
    matrix, first, rows = unit_of(w_rows)
    row = first + tl.arange(0, BLOCK_ROWS)
    sums = rows_times(starts_of(item(w, matrix), row, rows), x, norm)
    if has_b:
        sums += tl.load(item(b, matrix) + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(item(y, matrix) + row, sums, mask=row < rows)
