"""The base of every Triton kernel here: programmatic dependent launch (PDL, compute capability 9.0), and SiLU.

    kernel n      |launch_dependents|load weights|wait|load inputs, compute, store|
    kernel n + 1       |launch_dependents|load weights|......... wait ............|load inputs, compute, store|

A kernel lets its successor launch at once, loads what no predecessor writes, and then waits until its predecessors have
ended and their stores are visible: its weight loads are in flight while they finish. Before `wait_for_inputs` only
weights may be read. Below 9.0 both calls compile to nothing, since `capability` is a constant.
"""


@triton.jit
def let_successor_start():
    """Allow the next kernel of the chain to be launched once every program has called this or ended."""
    if capability >= 90:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_inputs():
    """Wait until the kernels before have ended and what they wrote is visible."""
    if capability >= 90:
        tl.extra.cuda.gdc_wait()


@triton.jit
def silu(v):
    """Return v / (1 + exp(-v)) (Hendrycks and Gimpel 2016), of floats."""
    return v / (1.0 + tl.exp(-v))
