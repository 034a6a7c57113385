# include "gemv.py"
"""Rows with their bias and the residual, rounded once."""


@triton.jit
def gemv(x, w, b, r, y):
    """BLOCK_ROWS rows per program."""
    _, first, rows = unit_of(w_rows)
    row = first + tl.arange(0, BLOCK_ROWS)
    sums = rows_times(starts_of(w, row, rows), x, None)
    sums += tl.load(r + row, mask=row < rows, other=0.0).to(tl.float32)
    if has_b:
        sums += tl.load(b + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(y + row, sums, mask=row < rows)
