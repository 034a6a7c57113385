"""Transformations of a point, and traces of them: what an event says about the way from one candidate to another.

In: an index of candidates. Out: what may be changed in a point, and where that leads. Changes are made to codes, so
that a trace may pass through combinations that no candidate has; a menu, and the end of a trace, are legal. A candidate
has the layouts of its template, so another layout is another template, and no menu has a change of the layout alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agentcompile.ir.search_events import Transformation
from agentcompile.search.points import Code, Points

_MOST_SETS = 1000
"""Sets of parameters that are tried for an order of changes in which every point on the way is legal."""


def menu(points: Points, point: int) -> tuple[Transformation, ...]:
    """Return every transformation that leads from a point to another one; no two lead to the same.

    A number that moves to the value next to it is a ``step``, any other new value of a parameter a ``parameter``.
    """
    code = points.code(point)
    made = [
        _change(points, code, at, value)
        for at, size in enumerate(points.sizes(point))
        for value in range(size)
        if value != code[at + 1]
    ]
    made += [_switch(points, code, template) for template in range(len(points.grid.templates)) if template != code[0]]
    return tuple(one for one in made if transformed(points, point, one) is not None)


def transformed(points: Points, point: int, change: Transformation) -> int | None:
    """Return the point that a transformation of `point` leads to; None where it is not legal."""
    return replayed(points, point, (change,))


def replayed(points: Points, point: int, trace: Iterable[Transformation]) -> int | None:
    """Return the point that a trace leads to from `point`.

    None where it ends at no candidate, or holds what does not change the combination that it is applied to.
    """
    code = points.code(point)
    for change in trace:
        found = _changed(points, code, change)
        if found is None:
            return None
        code = found
    return points.at(code)


def trace_between(points: Points, first: int, second: int) -> tuple[Transformation, ...]:
    """Return a shortest trace from `first` to `second`, through legal points where an order of its changes has them.

    The template is switched first, then each parameter changed that has another value.
    """
    code, end = points.code(first), points.code(second)
    made: list[Transformation] = []
    if code[0] != end[0]:
        made.append(_switch(points, code, end[0]))
        code = points.grid.mapped(code, end[0])
    wanted = [at for at in range(len(end) - 1) if code[at + 1] != end[at + 1]]
    for at in _order(points, code, end, wanted):
        made.append(_change(points, code, at, end[at + 1]))
        code = _with(code, at, end[at + 1])
    return tuple(made)


def _order(points: Points, code: Code, end: Code, wanted: Sequence[int]) -> Sequence[int]:
    """Return the first order of `wanted` in which every point on the way is legal; as they are where none is found."""
    dead: set[frozenset[int]] = set()

    def orders(code: Code, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield ()
        elif frozenset(left) not in dead and len(dead) < _MOST_SETS:
            for at in left:
                changed = _with(code, at, end[at + 1])
                if points.at(changed) is not None:
                    rest = [other for other in left if other != at]
                    yield from ((at, *order) for order in orders(changed, rest))
            dead.add(frozenset(left))

    return next(orders(code, wanted), tuple(wanted))


def _changed(points: Points, code: Code, change: Transformation) -> Code | None:
    """Return the code, legal or not, that a transformation leads to; None where it changes nothing in this one."""
    match change.change:
        case "layout":
            return None
        case "template":
            ids = points.grid.templates
            known = change.value in ids and change.name == ids[code[0]] != change.value
            return points.grid.mapped(code, ids.index(str(change.value))) if known else None
        case "parameter" | "step":
            names = points.grid.names[code[0]]
            if change.name not in names:
                return None
            at = names.index(change.name)
            domain = points.grid.domains[code[0]][at]
            if change.value not in domain:
                return None
            value = domain.index(change.value)
            if value == code[at + 1] or (change.change == "step" and not _beside(points, code, at, value)):
                return None
            return _with(code, at, value)


def _change(points: Points, code: Code, at: int, value: int) -> Transformation:
    return Transformation(
        change="step" if _beside(points, code, at, value) else "parameter",
        name=points.grid.names[code[0]][at],
        value=points.grid.domains[code[0]][at][value],
    )


def _switch(points: Points, code: Code, template: int) -> Transformation:
    return Transformation(change="template", name=points.grid.templates[code[0]], value=points.grid.templates[template])


def _beside(points: Points, code: Code, at: int, value: int) -> bool:
    """Return whether a parameter's value is the number next to the one that it has."""
    domain = points.grid.domains[code[0]][at]
    numbers = isinstance(domain[value], int) and isinstance(domain[code[at + 1]], int)
    return numbers and abs(value - code[at + 1]) == 1


def _with(code: Code, at: int, value: int) -> Code:
    return (*code[: at + 1], value, *code[at + 2 :])
