"""The data of a prompt: a machine, and regions with their work, limits, templates, candidates and trials.

In: questions with ids. Out: JSON values. Everything that came from a checkpoint, a template, a compiler or the machine
is quoted: cleaned and cut to a limit. Rates and times are rounded, so that they do not only show how busy the machine
was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from agentcompile.advice.asked import PromptRegion
from agentcompile.advice.claims import reductions
from agentcompile.advice.detail import FULL, Detail
from agentcompile.backends import backend_of
from agentcompile.ir.advice import Question
from agentcompile.ir.cleaning import clean
from agentcompile.ir.digest import Json
from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import parse
from agentcompile.ir.graph import Node
from agentcompile.ir.region import Port
from agentcompile.ir.scope import scope
from agentcompile.ir.search_events import RecalledPoint
from agentcompile.ir.target import most_shared_bytes
from agentcompile.ir.template import Candidate, Launch, Param, Params, Template
from agentcompile.ir.trial import NO_INTERVAL, Measured, Trial, reason

NAME = 80
"""Most characters of a name in the prompt."""
_REASON = 60
"""Fewest characters that the reason of a failed trial may take, whatever the limit of a line."""


def quoted(text: str, limit: int = NAME) -> str:
    """Return a name as data: without control, escape or bidirectional characters, at most `limit` characters."""
    return clean(text, limit)


def prose(text: str, limit: int) -> str:
    """Return sentences as data, at most `limit` characters: what is too long ends with a sentence, else with a word."""
    whole = quoted(text, 2 * limit)
    if len(whole) <= limit:
        return whole
    end = whole.rfind(". ", 0, limit + 1)
    if end >= limit // 2:
        return whole[: end + 1]
    head = whole[: limit - 1]
    return (head if whole[limit - 1] == " " else head.rpartition(" ")[0] or head).rstrip() + "…"


def machine(question: Question) -> Json:
    """Return the facts about the machine; rates are in decimal GB/s and GFLOP/s, sizes in bytes."""
    target, ceiling = question.target, question.ceiling
    facts: dict[str, Json] = {
        "kind": target.kind,
        "device": quoted(target.device),
        "arch": quoted(target.arch),
        "extensions": [quoted(name) for name in target.isa],
        backend_of(target.kind).unit: target.threads,
        "cache_bytes": list(target.cache_bytes),
        "line_bytes": target.line_bytes,
        "compiler": quoted(target.toolchain),
        "reads_from_dram_gb_per_s": _rounded(ceiling.dram_bytes_per_s / 1e9),
        "reads_from_last_cache_gb_per_s": _rounded(ceiling.cache_bytes_per_s / 1e9),
        "dense_gflop_per_s": _rounded(ceiling.flops_per_s / 1e9),
        "quiet": ceiling.calm,
        **dict(question.processor),
    }
    if any(launch.grid for template in question.templates for launch in template.launches):
        facts["most_shared_bytes_a_block"] = most_shared_bytes(target.arch)
    return facts


def region(asked: PromptRegion, detail: Detail = FULL) -> Json:
    """Return what is known about one region: work, limits, templates, candidates and trials, as much as `detail` says.

    Ids keep their meaning when fewer candidates are listed.
    """
    asked = asked.sampled(detail.listed)
    question, body = asked.question, asked.question.region.body
    own = question.region
    dims: dict[str, Json] = {quoted(name): extent for name, extent in own.dims}
    return {
        "region": asked.id,
        "kind": quoted(own.kind),
        "first_site": quoted(own.sites[0].path) if own.sites else "",
        "sites": len(own.sites),
        "regime": own.regime.name,
        "extents": dims,
        **({"operators": [_operator(node) for node in body.nodes[: detail.parts]]} if detail.parts else {}),
        "reductions": [[quoted(op), quoted(name), extent] for op, name, extent in reductions(body, dict(own.dims))],
        **({"ports": [_port(port) for port in own.ports[: detail.parts]]} if detail.parts else {}),
        **_work(question),
        "templates": [_template(id, template, asked, detail) for id, template in asked.templates.items()],
        "candidates": [[quoted(id), *_point(candidate, asked)] for id, candidate in asked.shown.items()],
        "candidates_in_all": len(question.candidates),
        **_history(asked, detail),
        **_focus(asked),
    }


def _rounded(value: float, digits: int = 2) -> float:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else 0.0


def _work(question: Question) -> dict[str, Json]:
    """Return the region's work at one site, and the two roofline limits with the one that binds."""
    cost, ceiling = question.region.cost, question.ceiling
    floor = question.floor_ns
    compute = ceiling.floor_ns(flops=cost.flops, bytes=0, residency=question.residency)
    memory = replace(question.region, cost=replace(cost, flops=0)).floor_ns(ceiling, question.residency)
    return {
        "flops": cost.flops,
        "bytes": {
            "weights": cost.weight_bytes,
            "state": cost.state_bytes,
            "activations": cost.activation_bytes,
            "all": cost.bytes,
        },
        "flop_per_byte": _rounded(cost.intensity, 3),
        "weights_lie_in": question.residency,
        "limits": {
            "memory_us": _rounded(memory / 1e3, 3),
            "compute_us": _rounded(compute / 1e3, 3),
            "binds": "compute" if compute >= floor else "memory",
            "floor_us": _rounded(floor / 1e3, 3),
        },
    }


def _operator(node: Node) -> Json:
    reads = [quoted(use.value) + ("".join(f" {view.op}" for view in use.views[:4])) for use in node.inputs]
    return {"op": quoted(node.op), "reads": [*reads], "writes": [quoted(out) for out in node.outputs]}


def _port(port: Port) -> Json:
    extents = (extent if isinstance(extent, int) else quoted(extent) for extent in port.shape)
    return [quoted(port.name), port.role, port.access, port.dtype, *extents]


def _template(id: str, template: Template, asked: PromptRegion, detail: Detail) -> Json:
    own: dict[str, Json] = {"template": id, "name": quoted(template.id), "language": template.language}
    if detail.line:
        own["about"] = prose(template.about, detail.line)
    if detail.notes:
        own |= {
            "notes": prose(_opening(template), detail.line),
            "needs_extensions": [quoted(name) for name in template.arch],
            "layouts": {quoted(family): quoted(layout) for family, layout in template.layouts},
            "accumulation": template.accumulation,
            "rounds": {quoted(name): quoted(dtype) for name, dtype in template.rounds},
            "launches": len(template.launches),
            "workspaces": len(template.workspaces),
        }
    own["constraints"] = [quoted(text, FULL.line) for text in template.requires]
    own["parameters"] = [_param(param, detail) for param in template.params]
    if detail.notes and any(launch.grid for launch in template.launches):
        own["launch_expressions"] = [_launch(launch) for launch in template.launches]
        own["launches_at_defaults"] = [*_sizes(template, template.defaults, asked.question)]
    return own


def _opening(template: Template) -> str:
    """Return the comment before the first line of code of a kernel, on one line: it says why the kernel is as it is."""
    found: list[str] = []
    for line in map(str.strip, template.source.splitlines()):
        mark = next((mark for mark in ("// ", "# ") if line.startswith(mark)), "")
        if mark and not line.startswith("# include"):
            found.append(line.removeprefix(mark))
        elif found or not (line == "" or line.startswith("#include")):
            break
    return " ".join(found)


def _param(param: Param, detail: Detail) -> Json:
    values: list[Json] = [_plain(value) for value in param.domain]
    own: dict[str, Json] = {"param": quoted(param.name), "domain": values, "default": _plain(param.default)}
    return {**own, "about": prose(param.about, detail.line)} if detail.line else own


def _plain(value: int | str) -> int | str:
    return quoted(value) if isinstance(value, str) else value


def _launch(launch: Launch) -> Json:
    return {
        "entry": quoted(launch.entry),
        "grid": [quoted(text, FULL.line) for text in launch.grid],
        "block": [quoted(text, FULL.line) for text in launch.block],
        "shared_bytes": quoted(launch.shared_bytes, FULL.line),
        "cooperative": launch.cooperative,
        "pdl": launch.pdl,
    }


def _sizes(template: Template, params: Params, question: Question) -> list[list[Json]]:
    """Return [blocks, threads a block, dynamic shared memory a block in bytes] of each launch on a GPU.

    They follow from the manifest; None stands for an expression without a value at these parameters.
    """
    names = scope(question.region, question.target, params)

    def product(texts: Sequence[str]) -> int | None:
        try:
            return math.prod(int(evaluate(parse(text), names)) for text in texts)
        except EvaluationError:
            return None

    return [
        [product(launch.grid), product(launch.block), product((launch.shared_bytes,))] for launch in template.launches
    ]


def _used(template: Template, candidate: Candidate, question: Question) -> Iterator[Json]:
    """Yield the size of each launch, and the registers, static shared memory and spills that the assembler reported."""
    reports = {one.entry: one for one in dict(question.resources).get(candidate.id, ())}
    for launch, size in zip(template.launches, _sizes(template, candidate.params, question), strict=True):
        yield from size
        found = reports.get(launch.entry)
        yield from (found.registers, found.shared_bytes, found.spill_bytes) if found is not None else (None,) * 3


def _point(candidate: Candidate, asked: PromptRegion) -> list[Json]:
    return [asked.template(candidate), *(_plain(value) for _, value in candidate.params)]


def _history(asked: PromptRegion, detail: Detail) -> dict[str, Json]:
    """Return the last trial of each candidate: the fastest first, then those that failed, with the reason.

    A candidate that is not listed is named by its values.
    """
    last = {trial.candidate.id: trial for trial in asked.question.history}
    told: list[Json] = []
    sizes: list[Json] = []
    for trial in _told(list(last.values()), detail):
        template = asked.templates[asked.template(trial.candidate)]
        id = quoted(asked.name(trial.candidate))
        told.append([id, *_result(trial, asked.question, detail.line)])
        if detail.notes and any(launch.grid for launch in template.launches):
            sizes.append([id, *_used(template, trial.candidate, asked.question)])
    counts: dict[str, Json] = {**Counter(trial.verdict.kind for trial in last.values())}
    found: dict[str, Json] = {"pytorch_us": _pytorch_us(last.values()), "trials": told, "trials_in_all": counts}
    if asked.question.memories and detail.memories:
        points = {candidate.id: candidate for candidate in asked.question.candidates}
        known = [one for one in asked.question.memories if one.candidate in points][: detail.memories]
        found["on_like_regions"] = [[quoted(asked.name(points[one.candidate])), *_remembered(one)] for one in known]
    return {**found, "launches_of_trials": sizes} if sizes else found


def _focus(asked: PromptRegion) -> dict[str, Json]:
    """Return where the search stands, if it does: at a candidate and those above it, or before a round."""
    told: list[Json] = [_of_focus(asked, id) for id in asked.question.focus]
    if asked.question.round:
        tries: dict[str, Json] = {"tries": asked.question.tries} if asked.question.tries else {}
        return {"round": asked.question.round, **tries, "fastest": told}
    return {"focus": told} if told else {}


def _of_focus(asked: PromptRegion, id: str) -> Json:
    """Return a candidate of the focus with what was measured of it."""
    candidate = next(one for one in asked.question.candidates if one.id == id)
    trials = [trial for trial in asked.question.history if trial.candidate.id == id]
    found = _result(trials[-1], asked.question) if trials else ["not measured"]
    return [quoted(asked.name(candidate)), *_point(candidate, asked), *found]


def _remembered(one: RecalledPoint) -> list[Json]:
    speed: list[Json] = [_rounded(one.speedup, 3), "times PyTorch"] if one.speedup else []
    return [quoted(one.verdict), *speed, *(["its text changed since: check again"] if one.stale else [])]


def _pytorch_us(trials: Iterable[Trial]) -> float | None:
    """Return the median time of PyTorch in the rounds of all trials that were timed beside it; None without one."""
    measured = (trial.verdict.measurement for trial in trials if isinstance(trial.verdict, Measured))
    times = [one.baseline_ns for one in measured if one.baseline == "pytorch"]
    return _rounded(median(times) / 1e3, 3) if times else None


def _told(trials: Sequence[Trial], detail: Detail) -> Iterator[Trial]:
    """Yield the trials that are listed: those that ran, the fastest first, then those that failed.

    A quarter of the places is kept for failed ones, one of each reason first: their reasons say what to avoid. Where a
    shorter question has no room for all that ran, the slowest of all takes the last of their places.
    """
    ran = sorted((trial for trial in trials if isinstance(trial.verdict, Measured)), key=_slowness)
    failed = sorted((trial for trial in trials if not isinstance(trial.verdict, Measured)), key=_slowness)
    first: dict[tuple[str, str], Trial] = {}
    for trial in failed:
        first.setdefault((trial.verdict.kind, reason(trial.verdict)), trial)
    again = [trial for trial in failed if first[trial.verdict.kind, reason(trial.verdict)] is not trial]
    room = min(len(failed), max(detail.trials // 4, detail.trials - len(ran)))
    shown = ran[: detail.trials - room]
    yield from (*shown[:-1], ran[-1]) if len(shown) < len(ran) and detail != FULL else shown
    yield from (*first.values(), *again)[:room]


def _slowness(trial: Trial) -> tuple[float, str]:
    verdict = trial.verdict
    return (-verdict.measurement.log_ratio if isinstance(verdict, Measured) else 0.0, trial.candidate.id)


def _result(trial: Trial, question: Question, line: int = FULL.line) -> list[Json]:
    verdict = trial.verdict
    if not isinstance(verdict, Measured):
        return [verdict.kind, quoted(reason(verdict), max(line, _REASON))]
    found, ceiling = verdict.measurement, question.ceiling
    rate = ceiling.dram_bytes_per_s if found.residency == "dram" else ceiling.cache_bytes_per_s
    return [
        *("measured", _rounded(found.median_ns / 1e3, 3), _rounded(found.speedup, 3)),
        *(
            _rounded(100 * found.half_width, 1) if found.half_width < NO_INTERVAL else None,
            _rounded(found.bytes_per_s / 1e9, 3),
            _rounded(found.bytes_per_s / rate),
        ),
    ]
