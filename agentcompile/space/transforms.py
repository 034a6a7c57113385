"""Legal transformations within a space: what may be done to a candidate, and how one is reached from a default.

Every step of a trace is legal, so that whatever follows traces (tree search, mutation) never leaves the space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentcompile.ir.template import Candidate, ParamValue
from agentcompile.ir.transform import SetParams, SwitchTemplate, Trace, Transform
from agentcompile.space.space import OutsideError, Space


def apply(space: Space, candidate: Candidate, transform: Transform) -> Candidate:
    """The point that `transform` makes of `candidate`; raises `OutsideError` with the reason where it is illegal."""
    match transform:
        case SetParams(values=values):
            return space.candidate(candidate.template, {**dict(candidate.params), **dict(values)})
        case SwitchTemplate(template=template):
            return space.candidate(template, _mapped(space, candidate, template))


def replay(space: Space, trace: Trace) -> Candidate:
    """The candidate that a trace leads to; raises `OutsideError` at the first step that is illegal."""
    found = start(space, trace.template)
    for step in trace.steps:
        found = apply(space, found, step)
    return found


def start(space: Space, template: str) -> Candidate:
    """Where traces of a template begin: its default, or where that is illegal the legal point that differs from it in
    the fewest parameters, the first of them in the space's order. Raises `OutsideError` when no point is legal."""
    if (default := space.default(template)) is not None:
        return default
    wanted = dict(space.template(template).defaults)
    points = list(space.of(template))
    if not points:
        raise OutsideError(f"{template} has no legal point here")
    return min(points, key=lambda point: sum(wanted[name] != value for name, value in point.params))


def trace_of(space: Space, candidate: Candidate) -> Trace:
    """A shortest trace to a point of the space: one parameter a step, and what is left in one step where no order of
    single changes is legal. Raises `OutsideError` for a point of another space."""
    if candidate not in space:
        raise OutsideError(f"{candidate.label} is no point of this space")
    first = start(space, candidate.template)
    values, have = dict(candidate.params), dict(first.params)
    wanted = {name: value for name, value in sorted(values.items()) if have[name] != value}
    return Trace(template=candidate.template, steps=tuple(_steps(space, first, wanted)))


def menu(space: Space, candidate: Candidate) -> tuple[Transform, ...]:
    """Every legal transformation of one parameter, and of the template."""
    have = dict(candidate.params)
    changes: list[Transform] = [
        SetParams(values=((param.name, value),))
        for param in space.template(candidate.template).params
        for value in param.domain
        if value != have[param.name]
    ]
    changes += [SwitchTemplate(template=one.id) for one in space.templates if one.id != candidate.template]
    return tuple(change for change in changes if _legal(space, candidate, change))


def _steps(space: Space, at: Candidate, wanted: Mapping[str, ParamValue]) -> Sequence[Transform]:
    """Single changes in the first order in which every point on the way is legal, or one change of all."""
    if not wanted:
        return ()
    for order in _orders(space, at, wanted, set()):
        return tuple(SetParams(values=((name, wanted[name]),)) for name in order)
    return (SetParams(values=tuple(wanted.items())),)


def _orders(
    space: Space, at: Candidate, wanted: Mapping[str, ParamValue], dead: set[frozenset[str]]
) -> Iterator[tuple[str, ...]]:
    """Orders of `wanted` in which every point on the way is legal; `dead` are sets of names that no order ends with."""
    if not wanted:
        yield ()
        return
    if frozenset(wanted) in dead:
        return
    for name, value in wanted.items():
        change = SetParams(values=((name, value),))
        if _legal(space, at, change):
            rest = {other: its for other, its in wanted.items() if other != name}
            for order in _orders(space, apply(space, at, change), rest, dead):
                yield (name, *order)
    dead.add(frozenset(wanted))


def _legal(space: Space, candidate: Candidate, transform: Transform) -> bool:
    try:
        apply(space, candidate, transform)
    except OutsideError:
        return False
    return True


def _mapped(space: Space, candidate: Candidate, template: str) -> dict[str, ParamValue]:
    """The parameters of another template that keep what `candidate` has, where it is in their domain."""
    have = dict(candidate.params)
    return {
        param.name: have[param.name]
        if any(type(value) is type(have.get(param.name)) and value == have[param.name] for value in param.domain)
        else param.default
        for param in space.template(template).params
    }
