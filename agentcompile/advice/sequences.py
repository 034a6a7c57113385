"""Follows an adviser's sequence of transformations through a region's space, as far as every step is legal.

In: a starting point and steps as an answer writes them. Out: the candidates on the way, which are all of the space, and
why the next step is illegal. A step is legal when what it changes exists and it leads to a candidate of the space;
nothing here makes a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentcompile.advice.asked import PromptRegion
from agentcompile.advice.prompt import STEPS
from agentcompile.ir.advice import AdvisedSequence
from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import CodecError, decode
from agentcompile.ir.digest import Json
from agentcompile.ir.search_events import Transformation
from agentcompile.ir.template import Candidate, Params, ParamValue, Template

_REASON = 120
"""Most characters of a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One transformation as an answer writes it."""

    change: Literal["template", "parameter", "step"]
    name: str | None
    """The parameter; None for a change of the template."""
    value: int | str
    """The new value, or the id of the new template in the prompt."""


def followed(asked: PromptRegion, start: str, steps: Sequence[Json], rationale: str) -> AdvisedSequence | str:
    """Return the legal beginning of a sequence; where it has no legal step, return why.

    `start` names a candidate, or a template for its defaults. At most `STEPS` steps are followed.
    """
    begin = _start(asked, start)
    if begin is None:
        return "no starting point of the region"
    at, stopped = begin, "it has no step"
    made, points = list[Transformation](), list[str]()
    for place, data in enumerate(steps[:STEPS], 1):
        moved = _after(asked, at, data)
        if isinstance(moved, str):
            stopped = moved
            break
        at, change = moved
        made.append(change)
        points.append(at.id)
        if place == len(steps):
            stopped = ""
    else:
        if len(steps) > STEPS:
            stopped = f"{len(steps)} steps, the first {STEPS} are followed"
    if not made:
        return stopped
    return AdvisedSequence(
        start=begin.id, steps=tuple(made), points=tuple(points), rationale=rationale, stopped=stopped
    )


def _start(asked: PromptRegion, name: str) -> Candidate | None:
    template = asked.templates.get(name)
    if template is None:
        return asked.named(name)
    return asked.points.get((template.id, template.defaults))


_Change = tuple[Template, Params, Transformation]


def _after(asked: PromptRegion, at: Candidate, data: Json) -> tuple[Candidate, Transformation] | str:
    """Return the candidate to which a step leads from `at`, and the step as it is kept; or why it is illegal."""
    try:
        step: _Step = decode(_Step, data, "step")
    except CodecError as error:
        return clean(str(error), _REASON)
    changed = _template(asked, at, step) if step.change == "template" else _parameter(asked, at, step)
    if isinstance(changed, str):
        return changed
    template, params, change = changed
    candidate = asked.points.get((template.id, params))
    return (candidate, change) if candidate is not None else "its constraints, or the space, do not allow the point"


def _template(asked: PromptRegion, at: Candidate, step: _Step) -> _Change | str:
    template = asked.templates.get(step.value) if isinstance(step.value, str) else None
    if template is None:
        return "no template of the region"
    if step.name is not None:
        return "a change of the template names a parameter"
    if template.id == at.template:
        return "it has this template"
    change = Transformation(change="template", name=at.template, value=template.id)
    return template, template.carried(at.params), change


def _parameter(asked: PromptRegion, at: Candidate, step: _Step) -> _Change | str:
    template = asked.templates[asked.template(at)]
    param = next((one for one in template.params if one.name == step.name), None)
    if param is None:
        return "no parameter of the template"
    to = _place(param.domain, step.value)
    if to is None:
        return "not in the domain"
    away = abs(to - param.domain.index(dict(at.params)[param.name]))
    if away == 0:
        return "it has this value"
    if step.change == "step" and away > 1:
        return "not next to the value that it has"
    params = tuple((name, param.domain[to] if name == param.name else value) for name, value in at.params)
    return template, params, Transformation(change=step.change, name=param.name, value=param.domain[to])


def _place(domain: Sequence[ParamValue], value: int | str) -> int | None:
    """Return the place of `value` in a domain; None when it is not there, as a boolean never is."""
    return next((at for at, one in enumerate(domain) if type(one) is type(value) and one == value), None)
