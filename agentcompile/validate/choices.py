"""Logits for testing an argmax: all negative, equal, infinite, or with the largest one anywhere.

One column of the weights is one pattern of logits, and an impulse in the activation picks it. Every logit is then a
single product, the same in every order of summation, so equal weights give logits that are equal bit for bit.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from agentcompile.ir.region import Region

_PERIOD = 64
_LEAST = 16  # the number of columns below which there is no room for patterns
_IMPULSE = 2.0  # the value of the impulse; with it the lowest weight overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """The product from whose result an argmax chooses, by value ids."""

    x: str
    w: str
    bias: str
    gain: str
    """The weight of a norm between x and the product; empty when there is no norm."""
    offset: float
    hidden: int


def chooser_of(region: Region) -> Chooser | None:
    """Return the product before a region's argmax; None unless its activation is an input, normalised or not."""
    producers, table, inputs = region.body.producers(), region.body.table(), set(region.body.inputs)
    for node in region.body.nodes:
        linear = producers.get(node.inputs[0].value) if node.op == "argmax" else None
        if linear is None or linear.op != "linear":
            continue
        x, gain, offset = linear.inputs[0].value, "", 0.0
        norm = producers.get(x)
        if norm is not None and norm.op == "rms_norm":
            x, gain = norm.inputs[0].value, norm.inputs[1].value
            offset = float(str(dict(norm.attrs).get("offset", 0.0)))
        w, bias = linear.inputs[1].value, linear.inputs[2].value if len(linear.inputs) > 2 else ""
        hidden = int(str(table[w].shape[1]))
        if {x, w} <= inputs and (not gain or gain in inputs) and hidden >= _LEAST:
            return Chooser(x=x, w=w, bias=bias, gain=gain, offset=offset, hidden=hidden)
    return None


def columns(chooser: Chooser, most: int) -> int:
    """Return how many columns hold a pattern: the special ones, and as many residues as there is room for."""
    return min(chooser.hidden, len(_PATTERNS) + min(most, _PERIOD))


def steered(chooser: Chooser, drawn: dict[str, Tensor], seed: int) -> None:
    """Write the patterns into the weights; all are negative, and none depends on another row."""
    rng = random.Random(seed)
    w = drawn[chooser.w] = drawn[chooser.w].clone()
    rows = w.shape[0]
    # On the CPU, where writing single numbers is cheap, whatever PyTorch's default device is.
    drawn_on = torch.Generator("cpu").manual_seed(seed)
    plain = -1.0 - 2.0 * torch.rand(rows, columns(chooser, _PERIOD), generator=drawn_on, device="cpu")
    for at in range(plain.shape[1]):
        if at < len(_PATTERNS):
            _special(_PATTERNS[at], plain[:, at], rng)
        else:
            _one_best(plain[:, at], rng, at - len(_PATTERNS))
    plain = plain.to(w.device)
    lowest = torch.finfo(w.dtype).min * 0.9
    w[:, : plain.shape[1]] = torch.where(plain.isinf(), lowest, plain).to(w.dtype)
    if chooser.bias:
        drawn[chooser.bias] = torch.full_like(drawn[chooser.bias], 0.59375)  # one value, so that ties stay


def impulse(chooser: Chooser, found: dict[str, Tensor], column: int, *, positive: bool) -> None:
    """Make x zero except for one column: the case's column in the first row, the next ones in the other rows.

    With `positive` the logits are the pattern; otherwise they are its negative, where the lowest weight is the largest
    logit.
    """
    x = found[chooser.x]
    flat = torch.zeros_like(x).view(-1, chooser.hidden)
    for row in range(len(flat)):
        at = (column + row) % columns(chooser, _PERIOD)
        sign = 1.0 if positive else -1.0
        if chooser.gain and float(found[chooser.gain][at]) + chooser.offset < 0:
            sign = -sign
        flat[row, at] = sign * _IMPULSE
    found[chooser.x] = flat.view(x.shape)


def first_of_class(logits: Tensor) -> Tensor:
    """Return the index of each row's [rows, vocab] first NaN, else first infinity, as PyTorch chooses; −1 if none."""
    chosen = torch.full((len(logits), 1), -1, dtype=torch.int64)
    for kind in (logits == math.inf, logits.isnan()):
        chosen = torch.where(kind.any(-1, keepdim=True), kind.to(torch.uint8).argmax(-1, keepdim=True), chosen)
    return chosen


def _one_best(column: Tensor, rng: random.Random, residue: int) -> None:
    """Put the largest weight at one row of a residue and the smallest at another, one winner for each impulse sign."""
    rows = len(column)
    places = range(residue % rows, rows, _PERIOD)
    column[rng.choice(places)] = -0.5
    column[rng.choice(places[len(places) // 2 :])] = -4.0


_PATTERNS = (
    "all negative", "tied near", "tied far", "tied ends", "all tied", "all infinite", "infinite but a block",
    "infinite block", "infinite but last", "infinite but first", "tied across", "tied at half",
)  # fmt: skip
"""The special columns, in their order."""


def _special(pattern: str, column: Tensor, rng: random.Random) -> None:
    rows = len(column)
    match pattern:
        case "all negative":
            _one_best(column, rng, rng.randrange(_PERIOD))
        case "tied near":
            first = rng.randrange(max(1, rows - 3))
            column[first : first + 2] = -0.5
            column[first + 2 : first + 4] = -4.0
        case "tied across":  # a block's last row and the next one's first; blocks of usual sizes end at multiples of 64
            edges = range(_PERIOD, rows - 1, _PERIOD) or range(8, rows - 1, 8)
            for value in (-0.5, -4.0):
                edge = rng.choice(edges) if edges else 1
                column[edge - 1 : edge + 1] = value
        case "tied at half":  # the last row of one half and the first of the other; for the negative, at a third
            for value, parts in ((-4.0, 3), (-0.5, 2)):
                edge = max(1, rows // parts)
                column[edge - 1 : edge + 1] = value
        case "tied far":
            for value in (-0.5, -4.0):
                for _ in range(6):
                    column[rng.randrange(rows)] = value
            column[-1] = -0.5
        case "tied ends":
            column[0] = column[-1] = -0.5
        case "all tied":
            column.fill_(-1.5)
        case "all infinite":
            column.fill_(-torch.inf)
        case "infinite but a block":
            begin = rng.randrange(rows)
            kept = column[begin : begin + max(1, rows // 5)].clone()
            _one_best(kept, rng, rng.randrange(_PERIOD))
            column.fill_(-torch.inf)
            column[begin : begin + len(kept)] = kept
        case "infinite block":
            begin = rng.randrange(rows)
            column[begin : begin + max(1, rows // 3)] = -torch.inf
            _one_best(column, rng, rng.randrange(_PERIOD))
        case "infinite but last":
            column[:-1] = -torch.inf
        case "infinite but first":
            column[1:] = -torch.inf
        case _:
            raise AssertionError(pattern)
