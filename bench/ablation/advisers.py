"""`agentcompile ablate MODEL… --arms none,heuristic,random,replay:DIR`: what each adviser's order is worth.

In: checkpoints or presets. Every candidate of every hot region is built, validated and timed once, on this machine, all
of a region beside one another; `--times` takes the times of an earlier result. Out: a table, and with `--out` the
result as JSON with a plot beside it.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import agentcompile
from agentcompile.advice.advisers import adviser_of
from agentcompile.advice.counsel import arranged
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.prompt import prompt_of
from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import Baseline, Prepared, WorkerEvaluator
from agentcompile.evaluation.machine import Machine, evaluator_of, this_machine
from agentcompile.events import silent
from agentcompile.ir.advice import Question
from agentcompile.ir.codec import encode
from agentcompile.measure import Timing
from agentcompile.options import Options, resolve
from agentcompile.runs.tables import Table
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.partitions import question_of
from agentcompile.tuning.prepared import PreparedModel, prepare
from agentcompile.tuning.tasks import TuneTask

from .files import figure, read_result, write_beside, write_result
from .result import FORMAT, WITHIN, Ablation, Evaluated, Model, near_of, quick_ns, standing_of

SEEDS = 20
ROUNDS = 25
"""Timing rounds of a region; in each, every candidate is timed twice."""
LEAST = 8
"""The fewest candidates of a region whose order is worth comparing."""


Orders = tuple[Sequence[Sequence[str]], int, str]
"""An adviser's orders of the candidate ids of a question, how many candidates a model ranked itself, and a note."""


class Arm(NamedTuple):
    """An adviser that is compared with others; `answered_by` names the model behind recorded answers."""

    name: str
    orders: Callable[[Question], Orders]
    answered_by: str = ""


def arms_of(text: str) -> tuple[Arm, ...]:
    """Parse a list such as ``none,heuristic,random,replay:DIR`` into arms; `random` alone stands for `SEEDS` seeds.

    Raises:
        AgentCompileError: an adviser is unknown, a recording is empty, or an adviser would ask a model (usage). Record
            the model's answers first.
    """
    return tuple(_arm(spec.strip()) for spec in text.split(",") if spec.strip())


def _arm(spec: str) -> Arm:
    if spec.startswith("replay:"):
        cassette = Cassette(Path(spec.partition(":")[2]))
        if not len(cassette):
            hint = "record one with `agentcompile advise MODEL --record DIR`"
            raise AgentCompileError(f"--arms {spec}: holds no exchange", hint=hint)
        who = ", ".join(sorted({exchange.answered_by or exchange.model for exchange in cassette.exchanges.values()}))
        return Arm("replay", lambda asked: _replayed(asked, cassette), who)
    if spec.startswith("openai:"):
        hint = "record it with `agentcompile advise MODEL --record DIR`, then name replay:DIR"
        raise AgentCompileError(f"--arms {spec}: a model that answers anew each time is no arm", hint=hint)
    advisers = [
        adviser_of(one) for one in ([f"random:{seed}" for seed in range(SEEDS)] if spec == "random" else [spec])
    ]
    return Arm(spec, lambda asked: ([_ids(asked, one.advise(asked).order) for one in advisers], 0, ""))


def _ids(asked: Question, order: Sequence[str]) -> list[str]:
    """Return the ids of all candidates: those that `order` names first, the others in the order of the space."""
    return list(dict.fromkeys([*order, *(candidate.id for candidate in asked.candidates)]))


def _replayed(asked: Question, cassette: Cassette) -> Orders:
    """Return the recorded model's order of the candidates, completed as in a run: by its hints, then the heuristic."""
    (one,) = prompt_of([asked]).asked
    found, base = cassette.recall(one), Heuristic().advise(asked)
    advice = found.reading.advice.get(asked.region.id) if found is not None else None
    if advice is None:
        return [_ids(asked, base.order)], 0, "nothing is recorded about it: the heuristic's order"
    return [_ids(asked, arranged(advice, base, asked.candidates).order)], len(advice.order), ""


def evaluated(
    options: Options, here: Machine, arms: Sequence[Arm], known: Mapping[str, Evaluated], keep: Callable[[Model], None]
) -> Model:
    """Evaluate every candidate of every hot region of `options.model`, and rank the arms' orders by the times.

    Regions whose ids are in `known` keep the times recorded there. `keep` is called with the result so far after each
    region. A region that could not be timed is left out.
    """
    with evaluator_of(here, options.seed) as evaluator:
        ready = prepare(options, here, evaluator, silent)
        found = list[Evaluated]()

        def model() -> Model:
            return Model(
                model=Path(options.model.removeprefix("preset:")).name,
                context=ready.model.captured.info.context,
                residency=ready.prefill.residency,
                regions=tuple(sorted(found, key=lambda one: (-one.bytes * one.sites, one.name))),
            )

        for subject in hot(ready):
            old = known.get(subject.region.id)
            times = (old.ns, old.pytorch_ns) if old is not None else _times(subject, evaluator, options.seed)
            if times[0]:
                found.append(_region(ready, subject, *times, arms))
                keep(model())
    return model()


def hot(ready: PreparedModel) -> list[TuneTask]:
    """Return the tasks of the decode step's cheapest cover (by roofline floor) that have at least `LEAST` candidates.

    They are ordered by the bytes that they move, fewest first, because those are evaluated soonest.
    """
    own = {subject.region.id: subject for subject in ready.tasks}
    rows = [row for row in ready.decode[0].summary.rows if row.covered and row.region.id in own]
    rows.sort(key=lambda row: row.region.cost.bytes)
    return [own[row.region.id] for row in rows if len(own[row.region.id].space) >= LEAST]


def _times(subject: TuneTask, evaluator: WorkerEvaluator, seed: int) -> tuple[dict[str, float], float]:
    """Return the time of every correct candidate by label, and PyTorch's time, in ns.

    All are timed side by side in every round. Returns no times, and 0, when the timing failed.
    """
    region, maker = subject.region, JobMaker(subject.space.target)
    jobs = [maker.job(subject, candidate) for candidate in subject.space]
    name, ready = region.name, list[Prepared]()
    for done, (_, result) in enumerate(evaluator.prepare(jobs), 1):
        if isinstance(result, Prepared):
            ready.append(result)
        if done % 50 == 0 or done == len(jobs):
            _say(f"{name}: {done} of {len(jobs)} built and validated, {len(ready)} correct")
    timing = evaluator.time(
        region, [Baseline(), *ready], rounds=ROUNDS, residency=subject.residency, seed=seed, processes=1
    )
    if not isinstance(timing, Timing):
        _say(f"{name}: not timed: {timing}")
        return {}, 0.0
    _say(f"{name}: timed")
    quick = {arm: quick_ns(timing.per_launch_ns(arm)) for arm in timing.live}
    return {one.job.candidate.label: quick[arm] for arm, one in enumerate(ready, 1) if arm in quick}, quick.get(0, 0.0)


def _region(
    ready: PreparedModel, subject: TuneTask, ns: dict[str, float], pytorch_ns: float, arms: Sequence[Arm]
) -> Evaluated:
    asked = question_of(subject.space, ready.ceiling, subject.residency)
    region, ids = subject.region, {candidate.label: candidate.id for candidate in asked.candidates}
    ns = {label: time for label, time in ns.items() if label in ids}
    winner, near = min(ns, key=lambda label: ns[label]), {ids[label] for label in near_of(ns)}
    standings = []
    for arm in arms:
        orders, said, note = arm.orders(asked)
        standings.append(standing_of(arm.name, orders, ids[winner], near, said=said, note=note))
    return Evaluated(
        region=region.id, name=region.name, dims=dict(region.dims), sites=len(region.sites), bytes=region.cost.bytes,
        points=len(ids), failed=len(ids) - len(ns), near=len(near), winner=winner, pytorch_ns=round(pytorch_ns, 1),
        ns={label: round(time, 1) for label, time in ns.items()}, standings=tuple(standings),
    )  # fmt: skip


def run(asked: argparse.Namespace) -> int:
    """Evaluate the candidates, compare the arms, and write the requested outputs; return an exit code.

    Raises:
        AgentCompileError: no model was named, an argument is wrong, a result cannot be read or written, or a model has
            no hot region with candidates to order.
    """
    if asked.show:
        results = [read(path) for path in asked.show]
        result = replace(results[0], models=tuple(model for one in results for model in one.models))
    else:
        if not asked.models:
            raise AgentCompileError("ablate: no model was named", hint="agentcompile ablate bench/models/sample")
        result = _made(asked)
    if asked.out is not None:
        write_result(result, asked.out)
        from .plot import draw

        write_beside(asked.out, figure(lambda: draw(result), _say))
    print(json.dumps(encode(result), indent=1) if asked.json else "\n".join(report(result)))
    return ExitCode.OK


def _made(asked: argparse.Namespace) -> Ablation:
    arms, made = arms_of(asked.arms or "none,heuristic,random"), list[Ablation]()
    known = {region.region: region for path in asked.times for region in read(path).regions}
    for model in asked.models:
        flags = {"model": model, "context": asked.context, "threads": asked.threads, "target": "cpu"}
        options = resolve(flags).options
        here = this_machine(options)
        before = Ablation(
            device=here.target.device,
            threads=here.target.threads,
            toolchain=here.target.toolchain,
            version=agentcompile.__version__,
            arms=tuple(arm.name for arm in arms),
            answered_by={arm.name: arm.answered_by for arm in arms if arm.answered_by},
            models=made[-1].models if made else (),
        )
        found = evaluated(options, here, arms, known, functools.partial(_keep, before, asked.out))
        if not found.regions:
            hint = "`agentcompile inspect MODEL` shows its regions"
            raise AgentCompileError(f"{model}: no hot region has candidates to order", hint=hint)
        made.append(replace(before, models=(*before.models, found)))
    return made[-1]


def _keep(before: Ablation, out: Path | None, model: Model) -> None:
    if out is not None:
        write_result(replace(before, models=(*before.models, model)), out)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read(path: Path) -> Ablation:
    """Read a result file.

    Raises:
        AgentCompileError: the file cannot be read, is not the result of an ablation, or has a newer format (usage).
    """
    hint = "name a file that `agentcompile ablate --out` wrote"
    return read_result(path, Ablation, "an ablation", newest=FORMAT, hint=hint)


def report(result: Ablation) -> Iterator[str]:
    """Yield the lines of the report: a table for each model, then each arm's median over all regions."""
    for model in result.models:
        yield f"{model.model}, context {model.context}, weights in {model.residency}"
        heads = ("region", "points", "near", "winner", "× PyTorch", *result.arms)
        rows = [_row(region, result.arms) for region in model.regions]
        yield from columns(Table(heads=heads, rows=rows, right=(1, 2, 4, *range(5, 5 + len(result.arms)))))
    yield "An arm's cell: the place of the first candidate within 5 % of the fastest / the winner's place."
    for arm in result.arms:
        share = result.median_share(arm)
        who = f", answered by {result.answered_by[arm]}" if arm in result.answered_by else ""
        verdict = "within" if share <= WITHIN else "not within"
        yield f"{arm}: median {share:.1%} of the space to the neighbourhood, {verdict} {WITHIN:.0%}{who}"


def _row(region: Evaluated, arms: Sequence[str]) -> tuple[str, ...]:
    cells = []
    for arm in arms:
        found = region.standing(arm)
        cells.append("-" if found is None else f"{found.near_at:g} / {found.winner_at:g}{'*' if found.note else ''}")
    times = f"{region.pytorch_ns / region.ns[region.winner]:.2f}"
    return (region.name, str(region.points), str(region.near), region.winner.partition("/")[2], times, *cells)
