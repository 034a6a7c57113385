"""What every Triton kernel here stands on: programmatic dependent launch, and functions of floats.

A kernel lets its successor start at once, loads what no predecessor writes, and then waits: before `wait_for_inputs`
only weights may be read.
"""


@triton.jit
def let_successor_start():
    """The next kernel of the chain may be launched, as far as this program is concerned."""
    if capability >= 90:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs():
    """What the kernels before have written is there."""
    if capability >= 90:
        tl.extra.cuda.gdc_wait()


@triton.jit
def silu(v):
    """Of floats."""
    return v / (1.0 + tl.exp(-v))
