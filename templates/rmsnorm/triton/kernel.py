# include "device.py"
"""RMS norm, one program per group: one pass sums squares, a second reads the group again, from L1, and scales it."""


@triton.jit
def normalise(x, norm, y):
    """Both passes go in steps of BLOCK elements."""
    let_successor_start()
    wait_for_inputs()
    group = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(0, hidden, BLOCK):
        v = tl.load(x + group + k + columns, mask=k + columns < hidden, other=0.0).to(tl.float32)
        squares += v * v
    inverse = tl.rsqrt(tl.sum(squares, axis=0) / hidden + eps)
    for k in tl.range(0, hidden, BLOCK):
        inside = k + columns < hidden
        v = tl.load(x + group + k + columns, mask=inside, other=0.0).to(tl.float32)
        n = tl.load(norm + k + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + group + k + columns, v * inverse * (n + offset), mask=inside)
