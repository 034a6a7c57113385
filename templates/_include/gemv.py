# include "device.py"
"""Matrix times vector, row-major weights: a program has a tile of rows, and the first of its weights in flight early.

The tile goes along the rows in steps of BLOCK_K columns; sums stay apart by column until the end, so their order is
fixed. The root mean square divides the sums: the vector is read once.
"""


@triton.jit
def unit_of(rows_of):
    """This program's BLOCK_ROWS rows, none of which straddles two matrices: matrix, first row, rows of the matrix."""
    unit = tl.program_id(0)
    matrix, row, rows = 0, unit * BLOCK_ROWS, rows_of[0]
    first = (rows_of[0] + BLOCK_ROWS - 1) // BLOCK_ROWS
    for m in tl.static_range(1, len(rows_of)):
        here = unit >= first
        matrix = tl.where(here, m, matrix)
        row = tl.where(here, (unit - first) * BLOCK_ROWS, row)
        rows = tl.where(here, rows_of[m], rows)
        first += (rows_of[m] + BLOCK_ROWS - 1) // BLOCK_ROWS
    return matrix, row, rows


@triton.jit
def item(family, matrix):
    """The pointer of a family that belongs to a matrix; a family of one is its pointer."""
    if isinstance(family, tl.tensor):
        return family
    else:
        found = family[0]
        for m in tl.static_range(1, len(family)):
            found = tl.where(matrix == m, family[m], found)
        return found


@triton.jit
def starts_of(base, row, rows):
    """Where rows begin, [len(row), 1]; a row past the end is a copy of the last one, whose sum nobody takes."""
    starts = (base + tl.minimum(row, rows - 1).to(tl.int64) * hidden)[:, None]
    if hidden * weight_bytes % 16 == 0:
        starts = tl.multiple_of(starts, [16, 16])
    return starts


@triton.jit
def weights(starts, columns):
    """A tile of weights, read once a step: nothing else has to leave a cache for them."""
    inside = columns[None, :] < hidden
    return tl.load(starts + columns[None, :], mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def inputs(x, norm, columns):
    """The vector at these columns, times the norm's weights if there are any, and the squares of it alone."""
    inside = columns < hidden
    v = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    if norm is not None:
        n = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32) + offset
        return v * n, v * v
    else:
        return v, v


@triton.jit
def rows_times(starts, x, norm):
    """Rows times the vector, [len(starts)], normalised where `norm` is no None. Afterwards inputs may be read."""
    let_successor_start()
    columns = tl.arange(0, BLOCK_K)
    tile = weights(starts, columns)
    wait_for_inputs()
    v, squares = inputs(x, norm, columns)
    sums = tile.to(tl.float32) * v[None, :]
    for k in tl.range(BLOCK_K, hidden, BLOCK_K, num_stages=NUM_STAGES):
        tile = weights(starts, k + columns)
        v, more = inputs(x, norm, k + columns)
        sums += tile.to(tl.float32) * v[None, :]
        squares += more
    total = tl.sum(sums, axis=1)
    if norm is not None:
        total *= tl.rsqrt(tl.sum(squares, axis=0) / hidden + eps)
    return total
