"""The candidates of a task as points of a grid: what a strategy may change in one, and where that leads.

Legality is membership: a change that leads to no candidate of the task does not exist here, so that no strategy can
express an illegal one. Everything is derived from the candidates alone, recorded spaces of other tuners included.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from agentcompile.ir.template import Candidate, ParamValue

Code = tuple[int, ...]
"""The place of a point's template, then the place of each of its values in the parameter's domain."""

_KEPT = 8
"""Indexes that are kept, because a strategy is asked about the same candidates again and again."""
_INDEXES: OrderedDict[int, Points] = OrderedDict()


def points_of(candidates: tuple[Candidate, ...]) -> Points:
    """Return the index of `candidates`, kept from the last call with the same tuple."""
    found = _INDEXES.get(id(candidates))  # an index holds its tuple, so that no other one can have this identity
    if found is None:
        found = _INDEXES[id(candidates)] = Points(candidates)
    _INDEXES.move_to_end(id(candidates))
    if len(_INDEXES) > _KEPT:
        _INDEXES.popitem(last=False)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What codes mean: templates, and the parameters of each with their values, all by their places in a code."""

    templates: tuple[str, ...]
    """Their ids."""
    names: tuple[tuple[str, ...], ...]
    """Of each template, the names of its parameters."""
    domains: tuple[tuple[tuple[ParamValue, ...], ...], ...]
    """Of each template, for each parameter the values that some candidate has: numbers first, by size."""
    first: tuple[Code, ...]
    """Of each template, the code of its first candidate."""

    def mapped(self, code: Code, template: int) -> Code:
        """Return the code, legal or not, of another template with the values that both templates have.

        The others are those of the first candidate of that template.
        """
        domains = zip(self.names[code[0]], self.domains[code[0]], code[1:], strict=True)
        have = {name: domain[value] for name, domain, value in domains}
        values = (
            domain.index(have[name]) if name in have and have[name] in domain else first
            for name, domain, first in zip(
                self.names[template], self.domains[template], self.first[template][1:], strict=True
            )
        )
        return (template, *values)


class Points:
    """An index of candidates; a point is named by its place among them, from 0."""

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        self._candidates = candidates
        self._templates = tuple(dict.fromkeys(candidate.template for candidate in self._candidates))
        self._names: dict[str, tuple[str, ...]] = {}
        seen: dict[str, list[dict[ParamValue, None]]] = {}
        for candidate in self._candidates:
            self._names.setdefault(candidate.template, tuple(name for name, _ in candidate.params))
            domains = seen.setdefault(candidate.template, [{} for _ in candidate.params])
            for domain, (_, value) in zip(domains, candidate.params, strict=True):
                domain.setdefault(value)
        self._domains = {template: [_ordered(domain) for domain in domains] for template, domains in seen.items()}
        self._places = {
            template: [{value: at for at, value in enumerate(domain)} for domain in domains]
            for template, domains in self._domains.items()
        }
        self._codes = tuple(self._code(candidate) for candidate in self._candidates)
        self._at = {code: at for at, code in enumerate(self._codes)}
        self._by_id = {candidate.id: at for at, candidate in enumerate(self._candidates)}
        first = {code[0]: code for code in reversed(self._codes)}
        self._grid = Grid(
            templates=self._templates,
            names=tuple(self._names[template] for template in self._templates),
            domains=tuple(tuple(map(tuple, self._domains[template])) for template in self._templates),
            first=tuple(first[template] for template in range(len(self._templates))),
        )
        self._changes: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._candidates)

    @property
    def grid(self) -> Grid:
        """What the codes of the points mean."""
        return self._grid

    def place(self, candidate: str) -> int | None:
        """Return the point of the candidate with that id; None where it is none of these."""
        return self._by_id.get(candidate)

    def code(self, point: int) -> Code:
        """Return the code of a point."""
        return self._codes[point]

    def at(self, code: Sequence[int]) -> int | None:
        """Return the point with that code; None where there is no such candidate."""
        return self._at.get(tuple(code))

    def sizes(self, point: int) -> tuple[int, ...]:
        """Return the number of values of each parameter of the point's template."""
        return tuple(len(domain) for domain in self._domains[self._candidates[point].template])

    def changes(self, point: int) -> tuple[int, ...]:
        """Return every point that one transformation of this one leads to: of one parameter, or of the template."""
        found = self._changes.get(point)
        if found is None:
            code = self._codes[point]
            made = [
                self._at.get((*code[: place + 1], value, *code[place + 2 :]))
                for place, size in enumerate(self.sizes(point))
                for value in range(size)
                if value != code[place + 1]
            ]
            made += [self.switched(point, template) for template in range(len(self._templates)) if template != code[0]]
            found = self._changes[point] = tuple(one for one in made if one is not None)
        return found

    def switched(self, point: int, template: int) -> int | None:
        """Return the point of another template with the code that `Grid.mapped` gives; None where there is none."""
        return self._at.get(self._grid.mapped(self._codes[point], template))

    def mixed(self, rng: Random, first: int, second: int) -> list[int]:
        """Return a code with the template of `first`, and each value from either, where `second` has one that fits."""
        code = list(self._codes[first])
        template, other = self._candidates[first].template, dict(self._candidates[second].params)
        for at, name in enumerate(self._names[template]):
            place = self._places[template][at].get(other[name]) if name in other else None
            if place is not None and rng.random() < 0.5:
                code[at + 1] = place
        return code

    def _code(self, candidate: Candidate) -> Code:
        places = self._places[candidate.template]
        return (
            self._templates.index(candidate.template),
            *(place[value] for place, (_, value) in zip(places, candidate.params, strict=True)),
        )


def _ordered(domain: dict[ParamValue, None]) -> list[ParamValue]:
    """Return the values of a parameter with near ones beside one another: numbers by size, others as they came."""
    numbers = sorted(value for value in domain if isinstance(value, int))
    return [*numbers, *(value for value in domain if not isinstance(value, int))]
