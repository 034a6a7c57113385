# include "device.py"
"""silu(gate) * up, element by element, rounded once."""


@triton.jit
def activate(g, u, y):
    """BLOCK elements per program."""
    let_successor_start()
    wait_for_inputs()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(g + at, mask=at < width, other=0.0).to(tl.float32)
    up = tl.load(u + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(y + at, silu(gate) * up, mask=at < width)
