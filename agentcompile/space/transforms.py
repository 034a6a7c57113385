"""Legal transformations within a space: changes of a candidate, and the traces that lead to one from a default.

Every step of a trace is legal, so that users of traces (tree search, mutation) never leave the space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentcompile.ir.template import Candidate, ParamValue
from agentcompile.ir.transform import SetParams, SwitchTemplate, Trace, Transform
from agentcompile.space.space import OutsideError, Space


def apply(space: Space, candidate: Candidate, transform: Transform) -> Candidate:
    """Return the candidate that `transform` makes of `candidate`.

    Raises:
        OutsideError: the transformation is illegal; the message says why.
    """
    match transform:
        case SetParams(values=values):
            return space.candidate(candidate.template, {**dict(candidate.params), **dict(values)})
        case SwitchTemplate(template=template):
            return space.candidate(template, dict(space.template(template).carried(candidate.params)))


def replay(space: Space, trace: Trace) -> Candidate:
    """Return the candidate that a trace leads to.

    Raises:
        OutsideError: a step of the trace is illegal.
    """
    found = start(space, trace.template)
    for step in trace.steps:
        found = apply(space, found, step)
    return found


def start(space: Space, template: str) -> Candidate:
    """Return the candidate at which traces of a template begin: its default where that is legal.

    Otherwise it is the legal point that differs from the default in the fewest parameters, the first in the space's
    order.

    Raises:
        OutsideError: the space has no such template, or no point of it is legal.
    """
    if (default := space.default(template)) is not None:
        return default
    wanted = dict(space.template(template).defaults)
    points = list(space.of(template))
    if not points:
        raise OutsideError(f"{template} has no legal point here")
    return min(points, key=lambda point: sum(wanted[name] != value for name, value in point.params))


def trace_of(space: Space, candidate: Candidate) -> Trace:
    """Return a shortest trace to a candidate: one parameter a step.

    Where no order of single changes is legal, all changes are one step.

    Raises:
        OutsideError: the candidate is not in this space.
    """
    if candidate not in space:
        raise OutsideError(f"{candidate.label} is no point of this space")
    first = start(space, candidate.template)
    values, have = dict(candidate.params), dict(first.params)
    wanted = {name: value for name, value in sorted(values.items()) if have[name] != value}
    return Trace(template=candidate.template, steps=tuple(_steps(space, first, wanted)))


def menu(space: Space, candidate: Candidate) -> tuple[Transform, ...]:
    """Return every legal change of one parameter, and every legal change of the template."""
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
    """Return single changes in the first order in which every intermediate point is legal, or one change of all."""
    if not wanted:
        return ()
    for order in _orders(space, at, wanted, set()):
        return tuple(SetParams(values=((name, wanted[name]),)) for name in order)
    return (SetParams(values=tuple(wanted.items())),)


def _orders(
    space: Space, at: Candidate, wanted: Mapping[str, ParamValue], dead: set[frozenset[str]]
) -> Iterator[tuple[str, ...]]:
    """Yield the orders of `wanted` in which every intermediate point is legal.

    `dead` collects the sets of remaining names for which all orders are exhausted.
    """
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
