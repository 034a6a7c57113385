"""What a right kernel for a task must keep to, in words: preconditions, the inputs that are tried, the tolerance.

In: what a task's process told. Out: JSON, from the same numbers by which kernels are evaluated.
"""

from __future__ import annotations

from agentcompile.ir.digest import Json
from agentcompile.tasks.comparing import PEAK, RATIO, TF32_RATIO
from agentcompile.tasks.inputs import FURTHEST, JITTER, NUDGED, SCALES, SHAPE_CASES
from agentcompile.tasks.wire import Loaded, Signature
from agentcompile.validate.tolerance import ROUNDING_SLACK, ROUNDOFF, ROW_ELEMENTS, SUBNORMAL, TINY


def preconditions(told: Loaded) -> list[Json]:
    """Return what holds of every launch, so that a kernel need not test it."""
    found: list[Json] = [
        "the extents in `dims` are constants of the program: a kernel is compiled for these alone",
        "inputs that are whole numbers or masks are as get_inputs() draws them; other inputs are finite where "
        "get_inputs() draws finite numbers",
        "every buffer is dense and row-major, also where the text makes a transposed tensor",
    ]
    if len(told.signatures) > 1:
        found.append("the kernel is also compiled and checked at other extents than these")
    return found


def magnitudes(told: Loaded) -> str:
    """Return which inputs are tried, as far as a sum or an exponential may overflow or lose digits."""
    factors = ", ".join(f"{one:g}" for one in told.scales)
    left = [f"the factor {one:g}" for one in SCALES if one not in told.scales]
    left += [] if told.nudges else ["a change of single elements"]
    nudge = (
        f"; once at most {NUDGED} elements x of each become -2 * x + s, where s is the standard deviation of the input"
        if told.nudges
        else ""
    )
    without = f". The model itself fails with {', '.join(left)}, so that this is not tried" if left else ""
    text = (
        f"floating-point inputs are drawn by get_inputs() and multiplied by one of {factors}{nudge}{without}. "
        "Parameters are those of "
        f"the model, each times exp({JITTER:g} * n) with n normal and |n| <= {FURTHEST:g}; those that are all zero "
        f"become {JITTER:g} * n. Nothing larger or smaller is tried: where PyTorch's own float32 sums are finite at "
        "these, so must be the kernel's, and no second path for larger numbers is needed. What the text guards against "
        "by itself, as a softmax that subtracts its maximum, a kernel guards against too"
    )
    more = ", ".join(f"{one:g}" for one in SHAPE_CASES if one in told.scales)
    return text + (f". At other extents the factors are {more}" if len(told.signatures) > 1 else "")


def tolerance(told: Loaded, signature: Signature) -> Json:
    """Return the rule by which outputs are accepted, and what each symbol in it is."""
    dtypes = {one.name: one.dtype for one in signature.of("output")}
    floats = {name: dtype for name, dtype in dtypes.items() if dtype in RATIO}
    found: dict[str, Json] = {}
    if floats:
        r = "what the model makes in float64 of exactly the inputs that the kernel gets"
        found = {
            "accepted": f"for every element: |y - r| <= {ROUNDING_SLACK} * s + {PEAK:g} * k * E_row + {TINY:g}, and "
            "over each output: rms(y - r) <= k * E",
            "y": "what the kernel made",
            "r": r if told.wide else "what the model makes as it is, because it does not run in float64",
            "s": "max(u * |r|, d), 0 where r is 0: the largest error of rounding r to the output's dtype",
            "u": {name: ROUNDOFF[dtype] for name, dtype in floats.items()},
            "d": {name: SUBNORMAL[dtype] for name, dtype in floats.items()},
            "k": {name: RATIO[dtype] for name, dtype in floats.items()},
            "p": "what PyTorch makes in the task's dtype",
            "m": "r at inputs and parameters of which each is multiplied by 1 + 2^-24 * n (2^-53 where they are fp64), "
            "n normal: how far float32's rounding of the inputs moves the result; drawn twice",
            "E_row": "the greatest of rms_row(p - r), rms_row(m - r) and rms_row(s); rms_row is the root mean square "
            "over the element's row, the last axis, and over the whole output where rows have less than "
            f"{ROW_ELEMENTS} elements",
            "E": "the greatest of rms(p - r), rms(m - r) and rms(round(r) - r) over the whole output, where round is "
            "that to the output's dtype",
            "between": "values between the operators need not be rounded as PyTorch rounds them: float32 throughout is "
            "accurate enough; outputs are rounded to their dtype once, at the end",
            "not_finite": "NaN and infinities exactly where r, rounded to the dtype, or PyTorch's own result has them; "
            "where m is not finite, a finite y is not compared; where p alone is not, rms(p - r) over the elements "
            "where it is stands for p - r",
        }
    if told.tf32 and "fp32" in floats.values():
        found["q"] = "what PyTorch makes with TF32 on for products and convolutions of float32"
        found["tf32"] = (
            f"where the output is fp32, {TF32_RATIO:g} / k * rms_row(q - r) is among those of E_row, and "
            f"{TF32_RATIO:g} / k * rms(q - r) among those of E: products of numbers rounded to tf32 or fp16 pass where "
            "PyTorch's own differ by TF32, those of bf16 do not"
        )
    if len(floats) < len(dtypes):
        found["indices"] = "whole numbers are equal to r, or, element by element, to p or m"
    return {
        **found,
        "repeats": "the same bits every time, at any order of threads, whatever outputs and workspaces held before",
        "memory": "nothing is written but outputs and workspaces; buffers end at unmapped pages, so nothing beyond "
        "them is read either; inputs and parameters are unchanged afterwards",
    }
