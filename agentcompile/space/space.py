"""The space of a region: every point of its templates' domains that satisfies their constraints, in one fixed order.

Order: templates by id, then parameters as nested loops in the manifest's order, each domain in its own order. Points
are made one at a time; counts are exact, because a constraint is decided as soon as its last parameter is bound and
its result then applies to every point below. A candidate outside this set is never created, whoever asks for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentcompile.ir.evaluate import EvaluationError, evaluate, explain
from agentcompile.ir.expr import Expr, canonical, free_names, parse
from agentcompile.ir.region import Region
from agentcompile.ir.scope import region_dtype, scope
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Params, ParamValue, Template


class OutsideError(ValueError):
    """A point that is not in the space; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """The number of points of a template that one constraint rejects, with the reason for the first of them."""

    template: str
    constraint: str
    points: int
    reason: str


@dataclass(slots=True)
class _Tally:
    points: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constraint:
    expr: Expr
    level: int
    """Number of leading parameters that must be bound before it can be decided."""


class Space:
    """The legal candidates of one region on one target.

    `templates` of other kinds and dtypes are left out. Sizes and exclusions are counted on first use and kept;
    iterating makes candidates one at a time.
    """

    def __init__(self, region: Region, templates: Sequence[Template], target: Target) -> None:
        dtype = region_dtype(region)
        own = [template for template in templates if template.region == region.kind and dtype in template.dtypes]
        self.region = region
        self.target = target
        self.templates = tuple(sorted(own, key=lambda template: template.id))
        self._by_id = {template.id: template for template in self.templates}
        self._region_id = region.id
        self._target_digest = target.digest
        self._digests = {template.id: template.digest for template in self.templates}

    def __iter__(self) -> Iterator[Candidate]:
        """Yield every legal candidate, in the space's order."""
        for template in self.templates:
            yield from self.of(template.id)

    def __len__(self) -> int:
        """Return the number of legal points."""
        return sum(self.counts.values())

    def __contains__(self, candidate: object) -> bool:
        """Return whether `candidate` is in this space: same region, target and template text, and legal parameters."""
        if not isinstance(candidate, Candidate):
            return False
        try:
            return self.candidate(candidate.template, dict(candidate.params)) == candidate
        except OutsideError:
            return False

    def of(self, template: str) -> Iterator[Candidate]:
        """Yield the legal candidates of one template; KeyError when the space has no such template."""
        for params in self._walk(self._by_id[template], {}):
            yield self._made(template, params)

    def template(self, id: str) -> Template:
        """Return the template with that id.

        Raises:
            OutsideError: the space has no such template.
        """
        if id not in self._by_id:
            raise OutsideError(f"{id} is not a template of {self.region.kind} here")
        return self._by_id[id]

    def candidate(self, template: str, params: Mapping[str, ParamValue]) -> Candidate:
        """Return the candidate of `template` with `params`, given in any order.

        Raises:
            OutsideError: the space has no such point; the message says why.
        """
        found = self.template(template)
        known = [param.name for param in found.params]
        if unknown := sorted(set(params) - set(known)):
            raise OutsideError(f"{template} has no parameter {unknown[0]}")
        for param in found.params:
            if param.name not in params:
                raise OutsideError(f"{template}: {param.name} is missing")
            value = params[param.name]
            if not any(type(value) is type(allowed) and value == allowed for allowed in param.domain):
                shown = ", ".join(str(allowed) for allowed in param.domain)
                raise OutsideError(f"{template}: {param.name}={value} is not one of {shown}")
        ordered = tuple((name, params[name]) for name in known)
        names = scope(self.region, self.target, ordered)
        for text in found.requires:
            if reason := _refusal(parse(text), names):
                raise OutsideError(f"{template}: {reason}")
        return self._made(template, ordered)

    def default(self, template: str) -> Candidate | None:
        """Return the candidate with every parameter at its default.

        The result is None when a constraint rejects that point, or the space has no such template.
        """
        found = self._by_id.get(template)
        try:
            return self.candidate(template, dict(found.defaults)) if found is not None else None
        except OutsideError:
            return None

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """The number of legal points of each template, by id."""
        return self._counted[0]

    @functools.cached_property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """The points that each constraint rejected; with the legal points they add up to the product of the domains."""
        return self._counted[1]

    @property
    def rejected(self) -> int:
        """The number of points of the domains that some constraint rejects."""
        return sum(exclusion.points for exclusion in self.exclusions)

    @functools.cached_property
    def _counted(self) -> tuple[dict[str, int], tuple[Exclusion, ...]]:
        counts, exclusions = dict[str, int](), list[Exclusion]()
        for template in self.templates:
            tally: dict[Expr, _Tally] = {}
            counts[template.id] = sum(1 for _ in self._walk(template, tally))
            for expr, seen in tally.items():
                constraint = canonical(expr)
                exclusions.append(
                    Exclusion(template=template.id, constraint=constraint, points=seen.points, reason=seen.reason)
                )
        return counts, tuple(exclusions)

    def _made(self, template: str, params: Params) -> Candidate:
        return Candidate(
            region=self._region_id,
            regime=self.region.regime,
            template=template,
            template_digest=self._digests[template],
            params=params,
            target=self._target_digest,
        )

    def _walk(self, template: Template, tally: dict[Expr, _Tally]) -> Iterator[Params]:
        """Yield the legal parameter tuples, depth first; rejected points are added to `tally`."""
        order = [param.name for param in template.params]
        constraints = [_leveled(parse(text), order) for text in template.requires]
        sizes = [len(param.domain) for param in template.params]
        names = scope(self.region, self.target)

        def descend(level: int, bound: Params) -> Iterator[Params]:
            for constraint in constraints:
                if constraint.level == level and (reason := _refusal(constraint.expr, names)):
                    seen = tally.setdefault(constraint.expr, _Tally(reason=reason))
                    seen.points += math.prod(sizes[level:])
                    return
            if level == len(order):
                yield bound
                return
            for value in template.params[level].domain:
                if isinstance(value, int):
                    names[order[level]] = value
                yield from descend(level + 1, (*bound, (order[level], value)))

        yield from descend(0, ())


def _leveled(expr: Expr, order: list[str]) -> _Constraint:
    return _Constraint(
        expr=expr, level=max((order.index(name) + 1 for name in free_names(expr) if name in order), default=0)
    )


def _refusal(expr: Expr, names: Mapping[str, int]) -> str:
    """Return why the constraint does not hold; empty when it does. One that cannot be evaluated does not hold."""
    try:
        return "" if evaluate(expr, names) else explain(expr, names)
    except EvaluationError:
        return explain(expr, names)
