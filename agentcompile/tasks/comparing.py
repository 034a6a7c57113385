"""The comparison of a kernel's outputs with what a task computes in float64, within a tolerance that PyTorch earns.

A task is any PyTorch text, so the tolerance is measured and not derived: how far PyTorch's own result in the task's
dtype is from float64, how far float64 moves when inputs and parameters move by float32's rounding, and what rounding
the result costs. A kernel may err some times as much. Where PyTorch is not finite although float64 is, either will do;
whole numbers are equal, but for elements on which PyTorch's own runs differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentcompile.tasks.inputs import rms
from agentcompile.tasks.tally import TaskTally
from agentcompile.validate.rig import same_bits
from agentcompile.validate.tolerance import ROUNDING_SLACK, ROW_ELEMENTS, TINY, rounding

RATIO: dict[str, float] = {"bf16": 1.5, "fp16": 1.5, "fp32": 32.0, "fp64": 32.0}
"""The largest error in units of PyTorch's own, as root mean square over an output.

float32: a plain loop over thousands of terms errs some ten times as much as PyTorch's blocked sums do, a product of
numbers that were rounded to tf32, fp16 or bf16 some thousand times. The narrow types: their last rounding dominates.
"""
TF32_RATIO = 3.0
"""The same for a float32 output in units of PyTorch's error with TF32 on, where PyTorch is timed with it.

Products of numbers that were rounded to tf32 or fp16 err as much, those of numbers that were cut to tf32 twice as much,
and those of bf16 eight times.
"""
PEAK = 8.0
"""The error of one element in units of its row's own, beside `RATIO`; a row's own is that of rounding at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one output must be."""

    name: str
    dtype: str
    reference: Tensor
    """In float64 for floats, else as it is."""
    own: Tensor
    """PyTorch's result in the task's dtype."""
    moved: tuple[Tensor, ...]
    """The reference at inputs that moved by a rounding."""
    fast: Tensor | None = None
    """PyTorch's result with TF32 on, where it is timed with it."""


def compare(tally: TaskTally, y: Tensor, expected: Expected, label: str) -> None:
    """Check one output; `label` names the inputs without telling what they are."""
    where = f"{label}: {expected.name}"
    if not expected.reference.is_floating_point():
        _indices(tally, y, expected, where)
        return
    reference, own = expected.reference.double(), expected.own.double()
    rounded = reference.to(y.dtype).double()
    wide = y.double()
    _not_finite(tally, wide, rounded, own, where)
    finite = rounded.isfinite() & wide.isfinite()
    for moved in expected.moved:
        finite &= moved.isfinite()
    held = finite & own.isfinite()
    errors = [torch.where(held, own - reference, 0.0)]
    # Where PyTorch overflows and the reference does not, its error elsewhere stands for the one that it has not.
    errors += [torch.where(finite & ~held, rms(errors[0]), 0.0)] if not torch.equal(held, finite) else []
    errors += [torch.where(finite, moved - reference, 0.0) for moved in expected.moved]
    error = torch.where(finite, wide - reference, 0.0)
    ratio = RATIO[expected.dtype]
    if expected.fast is not None and expected.dtype == "fp32":
        fast = expected.fast.double()
        errors.append(torch.where(finite & fast.isfinite(), fast - reference, 0.0) * (TF32_RATIO / ratio))
    step = rounding(torch.where(finite, reference, 0.0).abs(), expected.dtype)
    # Where one element is nearly all of a row, as in a softmax, PyTorch's error is that one's, which may be 0.
    row = torch.stack([_row_rms(one) for one in (*errors, step)]).amax(0)
    allowed = ROUNDING_SLACK * step + ratio * PEAK * row + TINY
    over = error.abs() / allowed
    if over.numel():
        worst = int(over.argmax())
        at = list(_index(worst, over.shape))
        told = f"{where}{at} is {float(wide.view(-1)[worst])!r} and not {float(reference.reshape(-1)[worst])!r}"
        tally.add("element", float(error.abs().view(-1)[worst]), float(allowed.view(-1)[worst]), told)
    earned = max(rms(torch.where(finite, rounded - reference, 0.0)), *(rms(one) for one in errors), TINY)
    taken = rms(error) / earned
    tally.error_ratio = max(tally.error_ratio, taken)
    tally.add("error ratio", taken, ratio, f"{where}: {rms(error):.3g} where PyTorch's own error is {earned:.3g}")


class Outputs:
    """The outputs of launches on the same inputs.

    To compare one takes far longer than to launch: what has the bits of the first launch is not compared again.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[Tensor, TaskTally]] = {}

    def examine(self, tally: TaskTally, y: Tensor, expected: Expected, label: str) -> bool:
        """Check one output; return whether it has the bits that it had after the first launch."""
        if expected.name not in self._first:
            self._first[expected.name] = y.clone(), _compared(y, expected, label)
        first, found = self._first[expected.name]
        same = same_bits(y, first)
        tally.merge(found if same else _compared(y, expected, label))
        return same


def _compared(y: Tensor, expected: Expected, label: str) -> TaskTally:
    tally = TaskTally()
    compare(tally, y, expected, label)
    return tally


def _row_rms(error: Tensor) -> Tensor:
    """Return the root mean square over each row of the last axis, over everything where rows are short."""
    square = error.square()
    if error.dim() and error.shape[-1] >= ROW_ELEMENTS:
        return square.mean(-1, keepdim=True).sqrt().expand_as(error)
    return (square.mean() if square.numel() else square.sum()).sqrt().expand_as(error)


def _not_finite(tally: TaskTally, y: Tensor, rounded: Tensor, own: Tensor, where: str) -> None:
    """Check that NaN and infinities are exactly where the reference, or PyTorch's own result, has them."""
    odd = ~(y.isfinite() & rounded.isfinite())
    same = (y == rounded) | (y == own) | (y.isnan() & (rounded.isnan() | own.isnan()))
    # Where only PyTorch's own result overflows, a finite number is compared with the reference, as everywhere.
    wrong = odd & ~same
    count = int(wrong.sum())
    detail = ""
    if count:
        worst = int(wrong.view(-1).to(torch.int8).argmax())
        at = list(_index(worst, wrong.shape))
        detail = f"{where}{at} is {float(y.view(-1)[worst])!r} and not {float(rounded.view(-1)[worst])!r}"
    tally.add("not_finite", float(count), 0.0, detail)


def _indices(tally: TaskTally, y: Tensor, expected: Expected, where: str) -> None:
    same = y == expected.reference
    for other in (expected.own, *expected.moved):
        same |= y == other
    count = int((~same).sum())
    detail = ""
    if count:
        worst = int((~same).view(-1).to(torch.int8).argmax())
        at = list(_index(worst, same.shape))
        detail = f"{where}{at} is {int(y.view(-1)[worst])} and not {int(expected.reference.reshape(-1)[worst])}"
    tally.add("indices", float(count), 0.0, detail)


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    found = list[int]()
    for extent in reversed(shape):
        flat, at = divmod(flat, extent)
        found.append(at)
    return tuple(reversed(found))
