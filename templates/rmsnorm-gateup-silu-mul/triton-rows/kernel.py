# include "gemv.py"
"""silu(gate) * up: a tile interleaves rows of gate and of up, so that one pass over the vector serves both."""


@triton.jit
def gemv(x, norm, wg, wu, y):
    """BLOCK_ROWS rows of each matrix per program."""
    _, first, rows = unit_of(wg_rows)
    both = tl.arange(0, 2 * BLOCK_ROWS)
    starts = starts_of(tl.where(both % 2 == 0, wg, wu), first + both // 2, rows)
    gate, up = tl.split(tl.reshape(rows_times(starts, x, norm), (BLOCK_ROWS, 2)))
    row = first + tl.arange(0, BLOCK_ROWS)
    tl.store(y + row, silu(gate) * up, mask=row < rows)
