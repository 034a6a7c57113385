"""The inputs on which a kernel is validated: one row per case, in the order in which the cases run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.region import Port, Region
from agentcompile.ir.template import Depth
from agentcompile.validate.choices import chooser_of, columns
from agentcompile.validate.coverage import lengths, rows
from agentcompile.validate.worn import PLACES, UNEVEN

Style = Literal[
    "normal", "small", "tiny", "large", "outliers", "impulse", "last", "constant", "zeros", "cancel",
    "aligned", "nan", "inf", "exact", "halves", "huge", "limit", "choice", "level", "keen", "infinities",
    "worn",
]  # fmt: skip
Past = Literal[
    "normal", "peaked", "sunk", "ramp", "even", "ladder", "balanced", "edges", "ridges", "drowned",
    "towering", "twins", "worn",
]  # fmt: skip

STARTS = (0, 1, 15, 30, 63, 64, 65, 95, 223, 479, 991, 1025, 1966)
"""First positions of a chunk of tokens, which see the cache before it and what it appends."""
ANGLES = (700, 0, 1, 4097, 32767, 131000)
"""Positions whose rotation angles are tested; the first is the everyday one."""
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 700, 1025, 1999, 2048)
"""Visible cache lengths: every usual block size, one less, one more, and odd ones between."""

STEERED, RAISED, LIFTED, SINGLE = 2, 4, 5, 6
"""The draws of parameters into which `choices` writes patterns, whose norms have large weights, whose norms have less
large weights, and whose matrices have one weight per row.
"""
_BENT = frozenset({"silu", "gelu", "gelu_tanh"})  # operators with an exponential whose far ends are lines
_ROWS = 288  # the number of rows that are looked up in a table with too many rows for all
_ALL, _RESIDUES = 64, 16
"""The number of residues of 64 at which an argmax has its winner: all, or some when the weights are large."""
_HALVES = 16  # the number of draws of sums that lie half way between two numbers
_SUMS = ("linear", "add", "sub")
_REDRAWN = 1 << 24
"""The number of weight elements beyond which a search does not draw and pack the parameters a second time."""


_WORK = 1e11
"""The pairs of a token and a slot, times heads and their width, that the references of all cases may cost."""
_OF_A_PAIR = 40  # the FLOPs of a product that take as long as one pair in the references of an attention
_SHARES = 3  # the lengths of a chunk that have all cases together, where each is accepted with a part of them
_FEWEST = 3  # the number of cases of a chunk, however long it is
_OLD = 5  # the slots before a chunk that each kind of past has room in


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One draw of inputs; the newest token, in a batch that of the longest sequence, sees `length` cache slots."""

    style: Style
    length: int = 1
    past: Past = "normal"
    angle: int = ANGLES[0]
    place: float = 0.5
    """The place of the special element, row or slot: 0 is the first, 1 the last."""
    weights: int = 0
    """The draw of the parameters: −1 is small integers; `STEERED`, `RAISED`, `LIFTED`, `SINGLE` are described there."""
    row: int = -1
    """The row of a table that is looked up, or the column of weights that an impulse picks; −1 leaves it to chance."""
    light: bool = False
    """Whether the case is one of very many, launched once and compared with the reference only."""

    @property
    def keen(self) -> bool:
        """Whether no sum of the case has an order that matters, so that kernels must be right to `tolerance.KEEN`."""
        return self.style == "keen" or self.past == "ridges"

    @property
    def name(self) -> str:
        """The name for messages, such as ``outliers length=700 past=peaked``."""
        parts: list[str] = [self.style]
        parts += [f"length={self.length}"] if self.length > 1 else []
        parts += [f"past={self.past}"] if self.past != "normal" else []
        parts += [f"angle={self.angle}"] if self.angle != ANGLES[0] else []
        parts += [f"place={self.place:g}"] if self.place != 0.5 else []
        parts += [f"row={self.row}"] if self.row >= 0 else []
        return " ".join(parts)


def cases(region: Region, depth: Depth) -> tuple[Case, ...]:
    """Return the cases of a region: a handful that catch most faults in search, all of them at acceptance.

    At the depth "length" there is a third of them, another third at each power of two of a chunk's tokens.
    """
    ops = {node.op for node in region.body.nodes}
    context = context_of(region)
    attends = "attention" in ops
    tried = _lengths(region, context)
    everyday = _near([n for n in tried if n <= context * 3 // 4] or tried[:1], 700)  # with unused slots after it
    found = [
        Case(style="normal", length=everyday),
        Case(style="outliers", length=_near(tried, 65), past="peaked", place=0.0),
        Case(style="last", length=1, angle=4097, place=1.0),
        Case(style="small", length=_near(tried, 17)),
        Case(style="nan", length=_near(tried, 33), place=1.0),
    ]
    if "argmax" in ops:
        found[1:1] = [Case(style="aligned", place=1.0), Case(style="tiny", light=True)]
        if depth != "search":
            found += [Case(style="infinities", place=place, light=True) for place in (0.0, 0.6)]
    if depth == "search":
        small = sum(port.role == "weight" and _elements(port) for port in region.ports) <= _REDRAWN
        return (*found, Case(style="exact", length=1, weights=-1)) if small else tuple(found)
    found += _thorough(tried, everyday, attends)
    found += [Case(style="aligned", place=place) for place in (0.0, 0.31, 0.77) if "argmax" in ops]
    found += [Case(style="normal", length=everyday, angle=angle) for angle in ANGLES if "rope" in ops]
    found += [Case(style="normal", length=everyday, weights=1)]
    # Gate inputs from where the activation vanishes to where it is a line, after a norm without rounding error.
    if "rms_norm" in ops and ops & _BENT:
        found += [Case(style="level", length=everyday, weights=which) for which in (RAISED, LIFTED)]
    if "silu" in ops:
        found += [Case(style="keen", weights=SINGLE, place=place) for place in (0.0, 1.0)]
    if _tells_floats(region) and attends:
        found += [Case(style="normal", length=_near(tried, n), past="ridges") for n in (33, 129)]
    if attends:
        found += [Case(style="normal", length=everyday, past="towering", place=0.3)]
        # All attention weight is in the first of many blocks; or half of it is in the last one.
        found += [Case(style="normal", length=context, past=past, place=0.0) for past in ("towering", "twins")]
        found += [Case(style="normal", length=everyday, past="drowned", weights=LIFTED if "rms_norm" in ops else 0)]
    powers = (1, 2, 16) if attends else (1,)
    found += [Case(style="exact", length=n, past="even", weights=-1) for n in powers if n in tried]
    found = list(_affordable(region, tuple(found)))
    return (found[0], *_share(region, found[1:], depth))


def _affordable(region: Region, found: tuple[Case, ...]) -> tuple[Case, ...]:
    """Return the cases, or the first and others spread over them where a long chunk's attention would cost too much.

    The float64 reference of attention works on every pair of a token and a slot that it sees. Other lengths of a chunk
    take other cases. Where a chunk fills the cache, what a case puts into the slots before it is not there.
    """
    tokens = dict(region.dims).get("tokens", 1)
    work = sum(_work(region, case.length) for case in found)
    count = math.floor(len(found) * min(1.0, _WORK / max(work, 1.0)))
    if count == len(found):
        return found
    rest = [case for case in found[1:] if case.past in ("normal", "even") or case.length - tokens >= _OLD]
    begin = 5 * tokens.bit_length() % len(rest)  # another one for each length
    rest = rest[begin:] + rest[:begin]
    others = max(_FEWEST, min(count, len(rest))) - 1
    return (found[0], *(rest[at * len(rest) // others] for at in range(others)))


def _work(region: Region, length: int) -> float:
    """Return the pairs of a token and a slot of a chunk's attention, times heads and their width; 0 without a chunk."""
    table, tokens = region.body.table(), dict(region.dims).get("tokens", 1)
    shapes = [table[node.outputs[0]].shape for node in region.body.nodes if node.op == "attention"]
    if region.regime.phase != "prefill":
        return 0.0
    return float(sum(tokens * max(length, tokens) * int(str(shape[1])) * int(str(shape[3])) for shape in shapes))


def costly(region: Region) -> bool:
    """Return whether one reference takes seconds: a region is then accepted at this length with a few cases alone."""
    return _FEWEST * _work(region, 1) > _WORK


def effort(region: Region) -> float:
    """Return about how much computing the acceptance of a kernel takes, in FLOPs of a product, to order them by it."""
    return float(region.cost.flops) + _OF_A_PAIR * _work(region, 1)


def _share(region: Region, found: list[Case], depth: Depth) -> list[Case]:
    """Return all that was found, or the third of it that this number of tokens takes, and at least a few."""
    if depth != "length" or len(found) < _SHARES * _FEWEST:
        return found
    return found[dict(region.dims).get("tokens", 1).bit_length() % _SHARES :: _SHARES]


def many(region: Region, seed: int, depth: Depth) -> tuple[Case, ...]:
    """Return many light cases, fresh for every seed: sums half way, table rows, choices, inputs as if trained."""
    draws = _HALVES if rounds_once(region) else 0
    found = [Case(style="halves", place=at / (_HALVES - 1), weights=-1, light=True) for at in range(draws)]
    table = region.body.table()
    for node in region.body.nodes:
        if node.op == "embedding":
            extent = table[node.inputs[1].value].shape[0]
            found += [Case(style="normal", row=n, light=True) for n in rows(int(str(extent)), _ROWS, seed)]
    if {node.op for node in region.body.nodes} == {"position_table"}:
        found += [Case(style="normal", length=n, light=True) for n in lengths(context_of(region), _ROWS, seed)]
    chooser = chooser_of(region)
    if chooser is not None:
        elements = sum(_elements(port) for port in region.ports if port.role == "weight")
        wanted = range(0, columns(chooser, _RESIDUES if elements > _REDRAWN else _ALL), region.regime.batch)
        found += [
            Case(style="choice", row=n, place=sign, weights=STEERED, light=True) for n in wanted for sign in (1.0, 0.0)
        ]
    trained = _as_trained(region)
    if costly(region):  # another one at each length
        trained = trained[dict(region.dims).get("tokens", 1).bit_length() % max(len(trained), 1) :][:1]
    return tuple(_share(region, [*found, *trained], depth))


def _as_trained(region: Region) -> list[Case]:
    """Return cases whose sizes differ by channel, as in trained models; no bound covers what fp16 then loses."""
    if any(port.dtype == "fp16" for port in region.ports):
        return []
    context = context_of(region)
    return [
        Case(style="worn", past="worn", length=max(1, context // 3 - at), place=place, weights=UNEVEN, light=True)
        for at, place in enumerate(PLACES)
    ]


def _tells_floats(region: Region) -> bool:
    """Return whether all floating-point ports are float32; otherwise the last bits of an exponential do not show."""
    types = {port.dtype for port in region.ports if port.dtype not in ("int64", "int32")}
    return types == {"fp32"}


def rounds_once(region: Region) -> bool:
    """Return whether some output is only sums of inputs, or of products of two, and narrower than float32.

    Of small integers, such a result is equal in every order, and one rounding alone decides what is stored.
    """
    known, made, table = set(region.body.inputs), set[str](), region.body.table()
    for node in region.body.nodes:
        used = {use.value for use in node.inputs}
        if (node.op in _SUMS and known.issuperset(used)) or (node.op == "mul" and used <= set(region.body.inputs)):
            known.update(node.outputs)
            made.update(node.outputs)
    return any(use.value in made and table[use.value].dtype in ("bf16", "fp16") for _, use in region.body.outputs)


def _thorough(tried: list[int], everyday: int, attends: bool) -> list[Case]:
    found = [
        Case(style="large", length=everyday),
        # Not for attention: rounding queries and keys this large moves their scores by more than a bound can cover.
        *(Case(style="huge", length=everyday) for _ in range(not attends)),
        *(Case(style="limit", length=everyday, place=place) for place in (0.0, 1.0) if not attends),
        Case(style="constant", length=everyday),
        Case(style="zeros", length=everyday),
        Case(style="cancel", length=everyday, place=0.0),
        Case(style="cancel", length=everyday, place=1.0),
        Case(style="inf", length=_near(tried, 17)),
        *(Case(style="impulse", length=1, place=place) for place in (0.0, 0.37, 1.0)),
        *(Case(style="nan", length=_near(tried, 65), place=place) for place in (0.0, 0.5)),
    ]
    if attends:
        found += [Case(style="normal", length=n, past="ramp") for n in tried]
        found += [Case(style="normal", length=everyday, past="peaked", place=place) for place in (0.0, 0.5, 1.0)]
        found += [Case(style="normal", length=everyday, past="sunk")]
        found += [Case(style="normal", length=everyday, past="ladder", place=place) for place in (0.0, 0.4, 0.7)]
        found += [Case(style="normal", length=_near(tried, n), past="balanced") for n in (17, 33, 129)]
        found += [Case(style="normal", length=_near(tried, n), past="edges") for n in (33, 129)]
        # The largest score in the first of a block's vectors, and others behind its last whole one; or the reverse.
        found += [
            Case(style="normal", length=_near(tried, n), past="peaked", place=place)
            for n in (15, 31)
            for place in (0.0, 1.0)
        ]
    return found


def _lengths(region: Region, context: int) -> list[int]:
    """Return the visible lengths of the newest token, ascending.

    A chunk's tokens see as many lengths as there are tokens, so few starts of a chunk cover all of them.
    """
    chunk = dict(region.dims).get("tokens", 1) if region.regime.phase == "prefill" else 1
    found = LENGTHS if chunk == 1 else [chunk + start for start in STARTS]
    return sorted({n for n in found if n <= context} | {context, max(min(chunk, context), context - 1)})


def context_of(region: Region) -> int:
    """Return how many positions the region tells apart: slots of its cache, rows of its position table, else one."""
    table = region.body.table()
    for node in region.body.nodes:
        if node.op in ("attention", "cache_append", "position_table"):
            shape = table[node.inputs[1 if node.op != "cache_append" else 0].value].shape
            extent = shape[0] if node.op == "position_table" else shape[2]
            return extent if isinstance(extent, int) else 1
    return 1


def _elements(port: Port) -> int:
    return math.prod(dim for dim in port.shape if isinstance(dim, int))


def _near(tried: list[int], wanted: int) -> int:
    """Return the longest of the lengths at which the first token of a launch sees no more than `wanted` slots."""
    return max(n for n in tried if n - tried[0] < wanted)
