"""The pattern language of region kinds: lines ``out = op(in, …; attr=value)`` and sizes over their names.

In: the text of one row of `REGION_KINDS`. Out: `Pattern` and `Size`, checked once, with errors that name the kind, the
line and the fault. `*` marks a horizontal family of two or more (`y* = linear(x, w*)`: all linears that read one
value), `+` a family of one or more, `?` an optional input. A name that no line defines is an input port.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.graph import Attr

COMMUTATIVE = frozenset({"add", "mul"})
"""Operators whose two inputs match in either order."""
DEFAULT_ATTRS: dict[str, dict[str, Attr]] = {
    "rms_norm": {"offset": 0.0},
    "rope": {"style": "half"},
    "attention": {"window": 0},
}
"""The value of an operator's attribute when it is absent."""

Family = Literal["", "*", "+"]
_NAME = r"[a-z_][a-z0-9_]*"
_LINE = re.compile(rf"\s*({_NAME})([*+]?)\s*=\s*({_NAME})\(([^;)]*)(?:;([^)]*))?\)\s*")
_ARG = re.compile(rf"({_NAME})([*+]?)(\??)")
_SIZE = re.compile(
    rf"(?:(?P<sum>sum)\((?P<summed>{_NAME})\[(?P<sum_axis>\d+)\]\)|numel\((?P<numel>{_NAME})\)"
    rf"|(?P<dims>{_NAME}\[\d+\](?:,{_NAME}\[\d+\])*)|(?P<attrs>{_NAME}\.{_NAME}(?:,{_NAME}\.{_NAME})*))(?:/(?P<over>{_NAME}))?"
)


class PatternError(ValueError):
    """A row of the table of kinds that does not parse; the message names the kind and the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg:
    """One input of a line."""

    name: str
    family: Family = ""
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One operator of a pattern, or one horizontal family of operators."""

    out: str
    family: Family
    op: str
    args: tuple[Arg, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()

    @property
    def shared(self) -> int:
        """The index of the input that every member of a family reads."""
        return next(i for i, arg in enumerate(self.args) if not arg.family)


Move = Literal["scan", "producer", "family", "consumer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchStep:
    """One step of the matcher, which finds the nodes of a line: it scans all nodes or follows the bound name `via`."""

    line: int
    move: Move
    via: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The lines of a kind in order, and the order in which a matcher binds them."""

    lines: tuple[Line, ...]
    plan: tuple[MatchStep, ...]
    beside: tuple[Line, ...] = ()
    """Lines that must match around the pattern without belonging to it. Steps of the plan number them after `lines`."""

    @property
    def defined(self) -> frozenset[str]:
        """The names that a line defines."""
        return frozenset(line.out for line in self.lines)

    @property
    def results(self) -> frozenset[str]:
        """The defined names that no line reads; they are output ports of every match."""
        read = {arg.name for line in self.lines for arg in line.args}
        return self.defined - read

    @property
    def names(self) -> frozenset[str]:
        """Every name of the pattern."""
        return self.defined | {arg.name for line in self.lines for arg in line.args}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A named extent or scalar of a kind: an axis, a sum over a family, a count of elements, or an attribute."""

    name: str
    form: Literal["axis", "sum", "numel", "attr"]
    of: tuple[str, ...]
    """The value's name. For `axis` and `attr` one or more names, or ``value.attribute``, that must agree."""
    axes: tuple[int, ...] = ()
    """For `axis` and `sum`, the axis of each value."""
    over: str = ""
    """An earlier size of the same row by which this one is divided."""


def parse_pattern(kind: str, text: tuple[str, ...], beside: tuple[str, ...] = ()) -> Pattern:
    """Parse the lines of one kind, and the lines beside it.

    Raises:
        PatternError: a line is faulty, or the lines are not connected.
    """
    lines = tuple(_parse_line(f"kind {kind!r}, line {i + 1}", line) for i, line in enumerate((*text, *beside)))
    if not text:
        raise PatternError(f"kind {kind!r}: no lines")
    outs = [line.out for line in lines]
    for i, line in enumerate(lines):
        where = f"kind {kind!r}, line {i + 1}"
        if outs.count(line.out) > 1:
            raise PatternError(f"{where}: {line.out!r} is defined twice")
        later = set(outs[i:])
        for arg in line.args:
            if arg.name in later:
                raise PatternError(f"{where}: {arg.name!r} is read before it is defined")
    return Pattern(lines=lines[: len(text)], plan=_plan(kind, lines), beside=lines[len(text) :])


def _parse_line(where: str, text: str) -> Line:
    found = _LINE.fullmatch(text)
    if found is None:
        raise PatternError(f"{where}: {text!r} is not of the form `out = op(in, ...; attr=value)`")
    out, family, op, inputs, attrs = found.groups()
    args = []
    for item in filter(None, (part.strip() for part in inputs.split(","))):
        arg = _ARG.fullmatch(item)
        if arg is None:
            raise PatternError(
                f"{where}: {item!r} is not an input name (with `*` or `+` for a family, `?` if optional)"
            )
        name, starred, optional = arg.groups()
        args.append(Arg(name=name, family=_family(starred), optional=bool(optional)))
    if not args:
        raise PatternError(f"{where}: {op!r} has no inputs")
    if any(arg.family and arg.family != family for arg in args):
        raise PatternError(f"{where}: inputs and output of a family carry one mark, {family or 'none'!r} here")
    if family and sum(not arg.family for arg in args) != 1:
        raise PatternError(f"{where}: a family shares exactly one input")
    if any(arg.optional and not later.optional for arg, later in itertools.pairwise(args)):
        raise PatternError(f"{where}: optional inputs come last")
    return Line(out=out, family=_family(family), op=op, args=tuple(args), attrs=_parse_attrs(where, attrs or ""))


def _family(mark: str) -> Family:
    return "*" if mark == "*" else "+" if mark == "+" else ""


def _parse_attrs(where: str, text: str) -> tuple[tuple[str, Attr], ...]:
    attrs: list[tuple[str, Attr]] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise PatternError(f"{where}: {item!r} is not of the form `attribute=value`")
        attrs.append((name, _attr_value(value)))
    return tuple(attrs)


def _attr_value(text: str) -> Attr:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text.strip("\"'")


def _plan(kind: str, lines: tuple[Line, ...]) -> tuple[MatchStep, ...]:
    """Return the steps that bind all lines, starting at the last line or at the line that feeds its family.

    Later steps follow bound names. Producers go first, because a value has only one.
    """  # noqa: DOC501
    start = len(lines) - 1
    if lines[start].family:
        fed_by = lines[start].args[lines[start].shared].name
        start = next((i for i, line in enumerate(lines) if line.out == fed_by), start)
    plan = [MatchStep(line=start, move="scan")]
    bound = {lines[start].out, *(arg.name for arg in lines[start].args)}
    while len(plan) < len(lines):
        done = {step.line for step in plan}
        step = next(iter(_reachable(lines, done, bound)), None)
        if step is None:
            raise PatternError(f"kind {kind!r}: the lines are not connected")
        plan.append(step)
        bound |= {lines[step.line].out, *(arg.name for arg in lines[step.line].args)}
    return tuple(plan)


def _reachable(lines: tuple[Line, ...], done: set[int], bound: set[str]) -> list[MatchStep]:
    steps: list[tuple[int, MatchStep]] = []
    for i, line in enumerate(lines):
        if i in done:
            continue
        if line.family:
            if line.args[line.shared].name in bound:
                steps.append((1, MatchStep(line=i, move="family", via=line.args[line.shared].name)))
        elif line.out in bound:
            steps.append((0, MatchStep(line=i, move="producer", via=line.out)))
        elif shared := next((arg.name for arg in line.args if arg.name in bound), ""):
            steps.append((2, MatchStep(line=i, move="consumer", via=shared)))
    return [step for _, step in sorted(steps, key=lambda item: item[0])]


def parse_sizes(kind: str, text: str, pattern: Pattern) -> tuple[Size, ...]:
    """Parse ``name=form`` items separated by spaces.

    Raises:
        PatternError: an item is faulty or uses an unknown name.
    """
    sizes: list[Size] = []
    for item in text.split():
        name, _, form = item.partition("=")
        found = _SIZE.fullmatch(form)
        if found is None:
            raise PatternError(
                f"kind {kind!r}: {item!r} is none of v[axis], sum(v[axis]), numel(v), v.attribute; or one of them /size"
            )
        size = _size(name, found)
        unknown = [of for of in size.of if of.partition(".")[0] not in pattern.names]
        if unknown:
            raise PatternError(f"kind {kind!r}: {item!r} names {unknown[0]!r}, which the pattern has not")
        if size.over and size.over not in {earlier.name for earlier in sizes}:
            raise PatternError(f"kind {kind!r}: {item!r} divides by {size.over!r}, which no earlier size defines")
        sizes.append(size)
    return tuple(sizes)


def _size(name: str, found: re.Match[str]) -> Size:
    over = found["over"] or ""
    if found["sum"]:
        return Size(name=name, form="sum", of=(found["summed"],), axes=(int(found["sum_axis"]),), over=over)
    if found["numel"]:
        return Size(name=name, form="numel", of=(found["numel"],), over=over)
    if found["dims"]:
        pairs = [item.rstrip("]").split("[") for item in found["dims"].split(",")]
        of, axes = tuple(value for value, _ in pairs), tuple(int(axis) for _, axis in pairs)
        return Size(name=name, form="axis", of=of, axes=axes, over=over)
    return Size(name=name, form="attr", of=tuple(found["attrs"].split(",")), over=over)
