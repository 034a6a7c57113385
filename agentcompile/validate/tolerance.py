"""All numbers that decide whether a kernel is right, and the facts of a template on which they depend.

The form of the element bound, |ŝ − s| ≤ c·Σ|xᵢyᵢ| + u·|s|, is that of inner products in N. J. Higham, Accuracy and
Stability of Numerical Algorithms, 2nd edition (2002), section 3.1. The worst case there, c = nu/(1 − nu), grows with
the length n and would hide errors; the c here were measured, see `ACCUMULATION`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from agentcompile.ir.digest import Json
from agentcompile.ir.template import Accumulation

ROUNDOFF: dict[str, float] = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24, "fp64": 2.0**-53}
"""Unit roundoff u: the largest relative error of one rounding to nearest."""

SUBNORMAL: dict[str, float] = {"bf16": 2.0**-134, "fp16": 2.0**-25, "fp32": 2.0**-150, "fp64": 0.0}
"""The absolute error of one rounding below the smallest normal number: half of the smallest subnormal one."""

ACCUMULATION: dict[str, float] = {"float32": 4e-6, "float64": 4e-12, "bf16x2": 2e-5, "library": 1.6e-5}
"""The error of a reduction per unit of the sum of its absolute contributions (the c of the element bound).

float32: a plain loop over 12,288 terms stays below it on random data. bf16x2: an operand of a product on tensor cores
is the sum of two bf16 numbers, which are within 2^-16 of it, and the sums are float32. library: PyTorch is free in its
order, its blocking and, inside operators that it fuses, where it rounds; and it rounds every value between operators.
"""

KEEN = 4e-7
"""The c of float32 where every reduction has so few terms that their order does not matter. What is left is the error
of an exponential, a root or a quotient: 6.7 units of roundoff. The least accurate one that ships has 4.
"""

ROUNDING_SLACK = 1.05
"""The factor on u·|r| of the final rounding."""
SPREAD = 8.0
"""The standard deviations allowed to the sum of many independent declared roundings, per element."""
ROW_SLACK = 1.3
"""The factor on the root mean square of pure rounding over a row."""
ROW_SPREAD = 3.0
"""The standard deviations allowed to declared roundings in a row's root mean square."""
ROW_COUNT = 1024
"""The rows of an output up to which that holds, where roundings move rows as one; of more, some are farther away."""
ROW_ELEMENTS = 64
"""The shortest row whose root mean square is checked."""
RATIO_GATE = 1.25
"""The largest error of a candidate in units of the model's own error."""
RATIO_ELEMENTS = 256
"""The number of pooled outputs below which the gate is widened, because the ratio is noise."""
TINY = 1e-30
"""The absolute error that is always allowed: some units flush results this small."""

POLICY: Json = {
    "version": 1,
    "accumulation": dict(ACCUMULATION),
    "keen": KEEN,
    "rounding_slack": ROUNDING_SLACK,
    "spread": SPREAD,
    "row_slack": ROW_SLACK,
    "row_spread": ROW_SPREAD,
    "row_count": ROW_COUNT,
    "row_elements": ROW_ELEMENTS,
    "ratio_gate": RATIO_GATE,
    "ratio_elements": RATIO_ELEMENTS,
    "tiny": TINY,
}
"""The tolerances as data; a lockfile pins them, and they are part of the key of reusable reports."""


def row_spread(rows: int) -> float:
    """Return the standard deviations allowed to each of so many rows that declared roundings move as one.

    With them, the chance that one normal deviate of `rows` lies beyond is about what it is with `ROW_SPREAD` of
    `ROW_COUNT`: it falls by exp(−x²/2).
    """
    return math.sqrt(ROW_SPREAD**2 + 2.0 * math.log(max(1.0, rows / ROW_COUNT)))


def rounding(magnitude: Tensor, dtype: str) -> Tensor:
    """Return the largest error of rounding numbers of this magnitude to `dtype`, in float64; zero stays zero."""
    step = (ROUNDOFF[dtype] * magnitude).clamp(min=SUBNORMAL[dtype])
    return torch.where(magnitude == 0, 0.0, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredArithmetic:
    """What a template declares about its arithmetic and its buffers; the bounds follow from it."""

    rounds: tuple[tuple[str, str], ...] = ()
    """The values of the region's body that the template holds in a narrower type than float32, as (name, dtype)."""
    accumulation: Accumulation = "float32"
    deterministic: bool = True
    layouts: tuple[tuple[str, str], ...] = ()
    """The layout in which the weights of a port family are packed; absent families are row-major."""
    workspaces: tuple[tuple[str, str, int, bool], ...] = ()
    """The workspaces as (name, dtype, elements, zeroed); a zeroed one starts as zeros, and each launch leaves zeros."""
    in_place: tuple[tuple[str, str], ...] = ()
    """The pairs (output, input) in which the output may lie in the buffer of the input."""
    pitched: tuple[tuple[str, str], ...] = ()
    """The pairs (input, workspace): the input may be columns of a wider matrix whose width the workspace holds."""
    token_major: tuple[tuple[str, str], ...] = ()
    """The pairs (output, workspace): the output [1, heads, T, D] lies as [T, heads, D] where the workspace holds 1."""

    @property
    def coefficient(self) -> float:
        """The c of the element bound."""
        return ACCUMULATION[self.accumulation]

    def weights_of(self, attention: str) -> str:
        """Return the dtype to which the softmax weights of the attention that makes this value are rounded, or none."""
        return dict(self.rounds).get(f"{attention}.weights", "")
