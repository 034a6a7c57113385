"""The kernels that a lock pins, found again: for each choice its template and source, and the layouts.

A kernel is what its lock says: the template with that digest, legal for the region at those parameters, and the source
with that digest. A template that has changed since, or is gone, comes from the lock's bundle or the store, and so does
a source that the template no longer gives. Everything is checked as if it were new.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentcompile import check
from agentcompile.catalog import Catalog
from agentcompile.catalog.decode import hint_of
from agentcompile.catalog.semantics import verify
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Region
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Params, Source, Template
from agentcompile.ir.trial import Choice, Fallback, Kernel
from agentcompile.lockfile.drift import Drift
from agentcompile.lockfile.schema import Lock, LockChoice
from agentcompile.materialize import inlined, specialise
from agentcompile.ops.layouts import LAYOUTS, fits
from agentcompile.regions.kinds import facts as kinds
from agentcompile.regions.schedule import ScheduledSite
from agentcompile.replay.sources import LockSources

_AGAIN = "compile again with this version"
_VALUE = re.compile(r"^(?:.*[ *])?(\w+)(?:\[\])? = (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The kernels of one lock, collected while they are found."""

    path: Path
    lock: Lock
    templates: Catalog
    kept: LockSources
    jobs: dict[str, EvaluationJob] = field(default_factory=dict)
    """Every kernel, once, by source digest."""
    used: dict[str, Template] = field(default_factory=dict)
    """The template of every kernel, by its digest."""
    found: dict[tuple[str, str], tuple[str, Template]] = field(default_factory=dict)
    """Template id and dtype of the region to the digest that the lock pins and the template that was found for it."""
    own: dict[str, None] = field(default_factory=dict)
    """Ids of templates for which the lock's own was used, because the one here has changed or is gone."""
    drift: dict[str, Drift] = field(default_factory=dict)
    """Templates that have changed, where the lock's own was not found and the source is the same."""

    def choice(self, choice: LockChoice, region: Region) -> Choice:
        """Return what a plan runs in `region`.

        Raises:
            AgentCompileError: the choice cannot be the one that was locked (drift).
        """
        sites = len(choice.at) or len(region.sites)
        if (choice.name, choice.sites) != (region.name, sites) or max(choice.at, default=0) >= len(region.sites):
            text = f"{choice.name} at {choice.sites} occurrences is {region.name} at {sites} of {len(region.sites)}"
            raise self._refused(text, _AGAIN)
        if choice.use == "fallback":
            by: Literal["fallback", "human"] = "human" if choice.decided_by == "human" else "fallback"
            return Fallback(reason=choice.reason, decided_by=by, approval=choice.approval)
        template, target = self._template(choice, region_dtype(region)), self.lock.target.target()
        params = _params(template, choice)
        if found := check.errors(check.check(region, template, params, target, layout_fits=fits)):
            raise self._refused(f"{choice.name}: {template.id}: {found[0].text}", _AGAIN)
        source = self._source(choice, template, region, params, target)
        candidate = Candidate(
            region=region.id,
            regime=region.regime,
            template=template.id,
            template_digest=template.digest,
            params=params,
            target=target.digest,
        )
        self.used[candidate.template_digest] = template
        self.jobs[source.digest] = EvaluationJob(candidate=candidate, region=region, template=template, source=source)
        return Kernel(
            candidate=candidate,
            source=source.digest,
            speedup=1.0,
            half_width=0.0,
            decided_by="measured" if choice.decided_by == "fallback" else choice.decided_by,
            reason=choice.reason,
            approval=choice.approval,
        )

    def _template(self, choice: LockChoice, dtype: str) -> Template:
        """Return the template of a choice; for one id and dtype there is one, however many choices name it."""
        key, pinned = (choice.template, dtype), choice.template_digest
        if key not in self.found:
            self.found[key] = (pinned, self._find(choice, dtype))
        before, template = self.found[key]
        if pinned != before:
            raise self._refused(f"{choice.name}: two templates are called {choice.template[:100]}", _AGAIN)
        return template

    def _find(self, choice: LockChoice, dtype: str) -> Template:
        pinned, here = choice.template_digest, self.templates.find(choice.template, dtype)
        if here is not None and here.digest == pinned:
            return here
        own = self.kept.template(pinned)
        if own is not None and own.id == choice.template:
            verify(own, file=f"{self.path}: {own.id}", kinds=kinds(), layouts=LAYOUTS)
            self.own[own.id] = None
            return own
        if here is None:
            raise self._missing(choice)
        self.drift[here.id] = Drift(
            field=f"template.{here.id}",
            locked=pinned[:12],
            here=here.digest[:12],
            grade="rebuild",
            remedy="agentcompile replay LOCK",
        )
        return here

    def _missing(self, choice: LockChoice) -> AgentCompileError:
        near = hint_of(choice.template, self.templates.ids, what="templates")
        hint = f"give its folder with --templates or put the lock's bundle beside it, or compile again; {near}"
        return self._refused(f"{choice.name}: no template {choice.template[:100]}", hint)

    def _source(self, choice: LockChoice, template: Template, region: Region, params: Params, target: Target) -> Source:
        made = specialise(template, region, params, target)
        if made.digest == choice.source:
            return made
        own = self.kept.source(choice.source)
        if own is None:
            both = f"{made.digest[:12]}, locked {choice.source[:12]}"
            hint = "put the lock's bundle beside it, or compile again: the template has changed"
            raise self._refused(f"{choice.name}: {choice.template} now gives source {both}", hint)
        if reason := _foreign(own, made, template, params):
            raise self._refused(
                f"{choice.name}: source {choice.source[:12]} is none of {template.id}: {reason}", _AGAIN
            )
        self.own[template.id] = None
        return own

    def _refused(self, text: str, hint: str) -> AgentCompileError:
        return AgentCompileError(f"{self.path}: {text}", exit_code=ExitCode.DRIFT, hint=hint)


def _params(template: Template, choice: LockChoice) -> Params:
    """Return the lock's parameters in the template's order; unknown ones come last, for the check to refuse."""
    known = [param.name for param in template.params]
    names = [name for name in known if name in choice.params] + sorted(set(choice.params) - set(known))
    return tuple((name, choice.params[name]) for name in names)


def _foreign(own: Source, made: Source, template: Template, params: Params) -> str:
    """Return why `own` cannot be the source that an older version made where this one makes `made`; "" if it can.

    A version may change the head of the text: the constants that it declares, and how. The kernel, its parameters and
    how it is launched come from the template.
    """
    if (own.language, own.call, own.settings) != (made.language, made.call, made.settings):
        return "another language or call"
    if own.launches != made.launches or own.workspaces != made.workspaces:
        return "other launches or workspaces"
    if own.flags != made.flags:
        return "other compiler flags"
    body = _bare(inlined(template))
    if own.language != "library" and not _bare(own.text).endswith(body):
        return "another kernel"
    head, ours = _declared(_bare(own.text).removesuffix(body)), _declared(_bare(made.text).removesuffix(body))
    for name, value in ours.items():
        if head.get(name, value) != value or (name not in head and name in dict(params)):
            return f"its {name} is {head.get(name, 'missing')}, not {value}"
    return ""


def _bare(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#line "))


def _declared(head: str) -> dict[str, str]:
    return {found[1]: found[2] for found in _VALUE.finditer(head)}


def check_layouts(path: Path, lock: Lock, graphs: Sequence[Graph]) -> None:
    """Refuse layouts that cannot be.

    Raises:
        AgentCompileError: a layout does not exist, is not for a weight, or cannot hold the weight (drift).
    """
    weights = {value.name: value for graph in graphs for value in graph.values if value.role == "weight"}
    for name, layout in lock.layouts.items():
        reason = ""
        if layout not in LAYOUTS:
            reason = f"{layout[:70]!r} is no layout"
        elif name not in weights:
            reason = "the model has no such weight"
        elif not fits(layout, weights[name].shape, weights[name].dtype):
            reason = f"{layout} cannot hold it"
        if reason:
            text = f"{path}: layouts.{name[:200]}: {reason}"
            raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint=_AGAIN)


def check_ports(
    path: Path, lock: Lock, graph: Graph, steps: Sequence[ScheduledSite], used: Mapping[str, Template]
) -> None:
    """Refuse a plan with a kernel that reads a resident tensor in another layout than the lock keeps it in.

    Raises:
        AgentCompileError: there is one (drift).
    """
    table = graph.table()
    for step in steps:
        if not isinstance(step.choice, Kernel):
            continue
        template, bindings = used[step.choice.candidate.template_digest], dict(step.site.bindings)
        for port in step.region.ports:
            if port.role not in ("weight", "state"):
                continue
            value = table[bindings[port.name]]
            while value.alias:
                value = table[value.alias]
            kept = lock.layouts.get(value.name, "row-major") if value.role == "weight" else "row-major"
            if kept != template.layout(port.family):
                wanted = f"{template.id} reads it as {template.layout(port.family)}"
                text = f"{path}: layouts: {value.name} is kept as {kept}, and {wanted} in {step.region.name}"
                raise AgentCompileError(text, exit_code=ExitCode.DRIFT, hint=_AGAIN)
