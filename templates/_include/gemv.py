# include "device.py"
"""Matrix times vector (GEMV), row-major weights, with an optional RMS norm (Zhang and Sennrich 2019) in the prologue.

    y[r] = sum_k W[r][k] * (x[k] * (norm[k] + offset)) * rsqrt(mean(x^2) + eps)

    program    a unit of BLOCK_ROWS rows of one matrix, in steps of a tile [BLOCK_ROWS, BLOCK_K]:
               | tile 0, loaded before the wait | tile 1 | ...      NUM_STAGES steps in flight, pipelined by Triton
    sums       [BLOCK_ROWS, BLOCK_K] in registers: one partial sum per row and column of the tile; one reduction over
               columns at the end, so the order of additions is fixed

The first tile is in flight before the inputs are waited for (PDL). The norm's scale is one factor for all rows, so it
multiplies the finished sums: the vector is read once, and no product waits for the reduction over it.
"""


@triton.jit
def unit_of(rows_of):
    """Return the matrix, first row and rows of the matrix of this program, whose rows are all of one matrix."""
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
    """Return the pointer of a family for a matrix, by selects; a family of one is passed as its pointer."""
    if isinstance(family, tl.tensor):
        return family
    else:
        found = family[0]
        for m in tl.static_range(1, len(family)):
            found = tl.where(matrix == m, family[m], found)
        return found


@triton.jit
def starts_of(base, row, rows):
    """Return where rows begin, [len(row), 1]; a row past the end is the last one again, and its sum is discarded.

    Where every row begins at a multiple of 16 bytes the compiler is told so, as it makes 16-byte loads only then.
    """
    starts = (base + tl.minimum(row, rows - 1).to(tl.int64) * hidden)[:, None]
    if hidden * weight_bytes % 16 == 0:
        starts = tl.multiple_of(starts, [16, 16])
    return starts


@triton.jit
def weights(starts, columns):
    """Load a tile of weights. They are read once per step: evict_first keeps other lines in the caches."""
    inside = columns[None, :] < hidden
    return tl.load(starts + columns[None, :], mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def inputs(x, norm, columns):
    """Load the vector at these columns, times the norm's weights if there are any, and the vector's squares."""
    inside = columns < hidden
    v = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    if norm is not None:
        n = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32) + offset
        return v * n, v * v
    else:
        return v, v


@triton.jit
def rows_times(starts, x, norm):
    """Return rows times the vector, [len(starts)], normalised unless `norm` is None. Afterwards inputs may be read."""
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
