"""The comparison of one output with its reference: element bound, row RMS, error ratio and non-finite values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentcompile.ops.reference import DTYPES
from agentcompile.validate.bound import Bounded
from agentcompile.validate.tally import Tally
from agentcompile.validate.tolerance import (
    RATIO_ELEMENTS,
    RATIO_GATE,
    ROUNDING_SLACK,
    ROW_ELEMENTS,
    ROW_SLACK,
    ROW_SPREAD,
    TINY,
    rounding,
    row_spread,
)


def compare(
    tally: Tally, y: Tensor, reference: Bounded, eager: Tensor, *, dtype: str, where: str, everyday: bool
) -> None:
    """Check the element, row and ratio bounds and the non-finite contract for one output; all shapes are equal.

    Outputs of `everyday` cases also enter the pooled error ratio, which `finish` checks.
    """
    r = reference.wide().contiguous()
    rb = r.to(DTYPES[dtype]).double()
    wide = y.double().contiguous()
    if not _contract(tally, wide, rb, eager.double(), where):
        return
    keep = rb.isfinite() & wide.isfinite()
    error = reference.error().nan_to_num(nan=math.inf).expand_as(r)
    # Where no error is possible (a copy, an exact sum) the only right answer is the rounded reference.
    allowed = torch.where(error > 0, ROUNDING_SLACK * rounding(r.abs(), dtype) + error, (rb - r).abs()) + TINY
    miss = torch.where(keep, (wide - r).abs(), 0.0)
    share = torch.where(keep, miss / allowed, 0.0)
    if share.numel():
        worst = int(share.argmax())
        most, found, expected = (t.view(-1)[worst] for t in (share, wide, r))
        most, found, expected = torch.stack((most, found, expected)).tolist()
        tally.add("element", most, 1.0, f"{where}[{worst}] is {found:.6g}, expected {expected:.6g}")
    spread = row_spread(r.numel() // max(1, r.shape[-1])) if reference.shared and r.dim() else ROW_SPREAD
    typical = reference.error(spread).nan_to_num(nan=math.inf).expand_as(r)
    error, exact = torch.where(keep, typical, 0.0), torch.where(keep, rb - r, 0.0)
    again = torch.where(keep & reference.shared, torch.minimum(error, rounding(r.abs(), dtype)), 0.0)
    _rows(tally, r, miss, exact, again, error, where)
    if bool(keep.all()):
        drift = reference.accumulated if reference.accumulated is not None else torch.zeros_like(r)
        _ratio(tally, miss, rb - r, eager.double() - r, drift, _chance(reference, r) if everyday else None)


def _contract(tally: Tally, y: Tensor, rb: Tensor, eager: Tensor, where: str) -> bool:
    """Check that NaN and infinities are where the float64 reference, or PyTorch's own result, has them."""
    if bool((y.isfinite() & rb.isfinite()).all()):  # nearly always so, and cheaper to see
        tally.add("non-finite", 0.0, 0.0, where)
        return True
    same = _alike(y, rb) | (_alike(y, eager) & ~_alike(eager, rb))
    bad = int((~same).sum())
    first = int((~same).view(-1).to(torch.uint8).argmax()) if bad else 0
    text = f"{where}[{first}] is {float(y.view(-1)[first]):g}, expected {float(rb.view(-1)[first]):g}" if bad else where
    tally.add("non-finite", float(bad), 0.0, text)
    return bad == 0


def _alike(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b.isfinite(), a.isfinite(), torch.where(b.isnan(), a.isnan(), a == b))


def _rows(tally: Tally, r: Tensor, miss: Tensor, stored: Tensor, again: Tensor, error: Tensor, where: str) -> None:
    """Check the root mean square of the error on every row of the last dimension with enough elements.

    The rounding of the result may add what that of the reference does, `stored`; or, where the reference needs none and
    a declared rounding moves the row as one, up to `again`: a copied row that is half a step away may be stored a whole
    one away. Rows with many equal neighbours pass, because equal values share one rounding error that no mean averages
    out.
    """
    width = miss.shape[-1] if miss.dim() else 1
    if width < ROW_ELEMENTS:
        return
    r, miss, stored, again, error = (t.reshape(-1, width) for t in (r, miss, stored, again, error))
    rounding_of_y = torch.maximum(ROW_SLACK * _rms(stored), _rms(again))
    allowed = rounding_of_y + _rms(error) + TINY
    varied = (r[:, 1:] != r[:, :-1]).sum(-1) >= ROW_ELEMENTS // 2
    share = torch.where(varied, _rms(miss) / allowed, 0.0)
    most, worst = torch.stack((share.max(), share.argmax().double())).tolist()
    tally.add("row-rms", most, 1.0, f"{where}, row {worst:.0f}")


def _rms(rows: Tensor) -> Tensor:
    return rows.square().mean(-1).sqrt()


def _chance(reference: Bounded, r: Tensor) -> float:
    """Return the mean square error that chance may add where declared roundings move whole rows of `r`.

    Their sum of squares has one degree of freedom per row, so few rows, or one row moved most, say little about the
    mean.
    """
    if not reference.shared or reference.variance is None:
        return 0.0
    moved = reference.variance.expand_as(r).reshape(-1, r.shape[-1]).mean(-1)
    return float(ROW_SPREAD**2 * moved.square().sum().sqrt() / len(moved))


def _ratio(tally: Tally, miss: Tensor, stored: Tensor, eager: Tensor, drift: Tensor, chance: float | None) -> None:
    """Record the root mean square error relative to the model's own; a `chance` of None keeps it out of the gate."""
    squares = [t.square().mean() if t.numel() else torch.zeros((), dtype=t.dtype) for t in (miss, eager, stored, drift)]
    mine, model, rounded, lost = torch.stack(squares).tolist()  # a device is waited for once
    floor = max(model, rounded)
    if mine > 0.0:
        tally.error_ratio = max(tally.error_ratio, math.sqrt(mine / floor) if floor > 0.0 else math.inf)
    if chance is not None:
        # What accumulation alone may cost enters the denominator: in float32 the order of a sum is most of its error.
        tally.errors.append((mine, floor + lost + chance / RATIO_GATE**2, miss.numel()))


def finish(tally: Tally) -> None:
    """Check the error ratio, pooled over the everyday outputs, each relative to its own scale."""
    counted = [(mine / floor, n) for mine, floor, n in tally.errors if floor > 0.0]
    total = sum(n for _, n in counted)
    if not total:
        return
    pooled = math.sqrt(sum(ratio * n for ratio, n in counted) / total)
    allowed = RATIO_GATE * (1.0 + 3.0 * math.sqrt(max(0.0, 1.0 / total - 1.0 / RATIO_ELEMENTS)))
    tally.add("error-ratio", pooled, allowed, f"over {total} outputs")
