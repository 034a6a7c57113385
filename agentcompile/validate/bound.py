"""The float64 reference of a region, and how far from it the result of a correct kernel may be.

In: a region's body and its exact inputs. Out: a `Bounded` for every value. Errors are propagated to first order, in
three parts that add up differently: the worst case of float32 accumulation, the worst case of declared roundings, and
their variance if they are independent. Many roundings rarely all push one way, so the smaller of the last two is
allowed.

This is a running error analysis: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition (2002),
section 3.3. Roundings as independent numbers of mean zero: section 2.8 there, and N. J. Higham and T. Mary, A New
Approach to Probabilistic Rounding Error Analysis, SIAM Journal on Scientific Computing 41(5) (2019); the variance of a
uniform one of up to u is u²/3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from agentcompile.ir.graph import Node, Use
from agentcompile.ops.reference import DTYPES, apply_views
from agentcompile.validate.tolerance import ROUNDOFF, SPREAD, rounding

Part = Tensor | None
"""One part of an error; None means exactly zero everywhere."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value with its error. Inputs keep their own dtype and have no error; everything computed is float64."""

    value: Tensor
    accumulated: Part = None
    """The worst case of accumulation, |J| through every operator."""
    rounded: Part = None
    """The worst case of declared roundings."""
    variance: Part = None
    """The variance of declared roundings, taken as independent and uniform."""
    shared: bool = field(default=False, kw_only=True)
    """Whether declared roundings move a row of the last dimension as one, as an error in a score does a head."""

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """The three parts of the error."""
        return self.accumulated, self.rounded, self.variance

    def wide(self) -> Tensor:
        """Return the value as float64."""
        return self.value.double()

    def error(self, spread: float = SPREAD) -> Tensor:
        """Return the absolute error allowed before the final rounding, with `spread` deviations of declared ones."""
        total = torch.zeros((), dtype=torch.float64)
        if self.accumulated is not None:
            total = total + self.accumulated
        if self.rounded is not None and self.variance is not None:
            total = total + torch.minimum(self.rounded, spread * self.variance.sqrt())
        return total

    def map(self, move: Callable[[Tensor], Tensor]) -> Bounded:
        """Apply the same view to the value and its errors; `move` may move elements but never change them."""
        parts = (None if part is None else move(part) for part in self.parts)
        return Bounded(move(self.value), *parts, shared=self.shared)


def add(*parts: Part) -> Part:
    """Add the parts that are not None."""
    total: Part = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def scaled(part: Part, factor: Tensor) -> Part:
    """Multiply `part` by a factor that is not negative."""
    return None if part is None else part * factor


def round_to(value: Bounded, dtype: str, *, sharp: bool = False) -> Bounded:
    """Return `value` held in `dtype`, which adds one rounding to each element.

    With `sharp`, elements that are numbers of that dtype up to their error gain none, because they surely round to
    them.
    """
    if dtype not in ROUNDOFF or not value.value.is_floating_point():
        return value
    wide = value.wide()
    step = rounding(wide.abs(), dtype)
    if sharp:
        error, apart = value.error(), (wide.to(DTYPES[dtype]).double() - wide).abs()
        step = torch.where((apart <= error) & (8.0 * error <= step), 0.0, step)
    return rounded_by(value, step)


def rounded_by(value: Bounded, step: Tensor) -> Bounded:
    """Return `value` with one more rounding of up to `step` that is independent of all others."""
    return replace(value, rounded=add(value.rounded, step), variance=add(value.variance, step.square() / 3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """The new entries [B, kv_heads, T, D] of a state port [B, kv_heads, context, D], and the slots they go to."""

    port: str
    new: Bounded
    spans: tuple[tuple[int, int], ...]
    """For each sequence, the first slot that it gains and the slot after its last."""

    def entries(self, cache: Tensor) -> Tensor:
        """Return a copy of the appended slots of a cache: [B, kv_heads, T, D]."""
        return torch.cat([cache[b : b + 1, :, first:end] for b, (first, end) in enumerate(self.spans)])


@dataclass(slots=True, kw_only=True)
class Propagation:
    """The results of one evaluation: bounded values by id, appended state entries, and notes."""

    values: dict[str, Bounded] = field(default_factory=dict)
    appends: dict[str, Append] = field(default_factory=dict)
    stored: dict[str, Bounded] = field(default_factory=dict)
    """Outputs as later operators of the region read them: after the store, whose rounding the output's check adds."""
    logits: dict[str, Bounded] = field(default_factory=dict)
    """The logits from which an argmax chose, by the id of its output."""
    notes: list[str] = field(default_factory=list)

    def read(self, use: Use, tokens: int) -> Bounded:
        """Return a value as an operator inside the region reads it through an edge."""
        return self._through(self.stored.get(use.value, self.values[use.value]), use, tokens)

    def seen(self, use: Use, tokens: int) -> Bounded:
        """Return a value through an edge, before it is stored."""
        return self._through(self.values[use.value], use, tokens)

    def _through(self, value: Bounded, use: Use, tokens: int) -> Bounded:
        return value.map(lambda tensor: apply_views(tensor, use.views, tokens)) if use.views else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The data that a rule may read besides its operands."""

    node: Node
    coefficient: float
    out: Propagation
    owner: Mapping[str, str]
    """The input port whose buffer a value lives in, by value id."""
    dtypes: Mapping[str, str]
    told: Mapping[str, Any]
    """The operator's arguments that are not tensors."""
    keen: bool = False
    """Whether the inputs leave no reduction an order that matters."""
    library: bool = False
    """Whether PyTorch runs the region, operator by operator, with its own roundings inside."""
    weights: str = ""
    """The dtype to which a kernel says that it rounds the weights of this attention; empty when it keeps float32."""

    @property
    def inside(self) -> str:
        """The dtype to which an operator's own steps are rounded; empty for a kernel that keeps float32."""
        dtype = self.dtypes[self.node.outputs[0]]
        return dtype if self.library and dtype in ROUNDOFF else self.weights


Rule = Callable[[Context, tuple[Bounded, ...]], Bounded]
