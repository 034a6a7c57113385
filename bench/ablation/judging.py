"""Evaluation of every candidate of a model's hot regions, and each adviser's order of those candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.advice.advisers import adviser_of
from agentcompile.advice.counsel import arranged
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.prompt import prompt_of
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Prepared, WorkerEvaluator
from agentcompile.evaluation.machine import Machine, evaluator_of
from agentcompile.events import Emit
from agentcompile.ir.advice import Question
from agentcompile.materialize import specialise
from agentcompile.measure import Timing
from agentcompile.options import Options
from agentcompile.tuning.partitions import question_of
from agentcompile.tuning.prepared import PreparedModel, prepare
from agentcompile.tuning.tasks import TuneTask, templates_of

from .result import Judged, Model, Standing, near_of, quick_ns, standing_of

SEEDS = 20
ROUNDS = 25
"""Timing rounds of a region; in each, every candidate is timed twice."""
LEAST = 8
"""The fewest candidates of a region whose order is worth comparing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An adviser that is compared with others.

    `orders` returns, for one question, the adviser's orders of the candidate ids, how many candidates a model ranked
    itself, and a note. `answered_by` names the model behind recorded answers.
    """

    name: str
    orders: Callable[[Question], tuple[Sequence[Sequence[str]], int, str]]
    answered_by: str = ""


def arms_of(text: str) -> tuple[Arm, ...]:
    """Parse a list such as ``none,heuristic,random,replay:DIR`` into arms; `random` alone stands for `SEEDS` seeds.

    Raises:
        AgentCompileError: an adviser is unknown, a recording is empty, or an adviser would ask a model (usage). Record
            the model's answers first.
    """
    return tuple(_arm(spec.strip()) for spec in text.split(",") if spec.strip())


def _arm(spec: str) -> Arm:
    if spec == "random":
        seeds = [adviser_of(f"random:{seed}") for seed in range(SEEDS)]
        return Arm(name=spec, orders=lambda asked: ([_ids(asked, one.advise(asked).order) for one in seeds], 0, ""))
    if spec.startswith("replay:"):
        cassette = Cassette(Path(spec.partition(":")[2]))
        if not len(cassette):
            raise AgentCompileError(
                f"--arms {spec}: holds no exchange", hint="record one with `agentcompile advise MODEL --record DIR`"
            )
        who = ", ".join(sorted({exchange.answered_by or exchange.model for exchange in cassette.exchanges.values()}))
        return Arm(name="replay", orders=lambda asked: _replayed(asked, cassette), answered_by=who)
    if spec.startswith("openai:"):
        hint = "record it with `agentcompile advise MODEL --record DIR`, then name replay:DIR"
        raise AgentCompileError(f"--arms {spec}: a model that answers anew each time is no arm", hint=hint)
    adviser = adviser_of(spec)
    return Arm(name=spec, orders=lambda asked: ([_ids(asked, adviser.advise(asked).order)], 0, ""))


def _ids(asked: Question, order: Sequence[str]) -> list[str]:
    """Return the ids of all candidates: those that `order` names first, the others in the order of the space."""
    named = dict.fromkeys(order)
    return list(dict.fromkeys([*named, *(candidate.id for candidate in asked.candidates)]))


def _replayed(asked: Question, cassette: Cassette) -> tuple[Sequence[Sequence[str]], int, str]:
    """Return the recorded model's order of the candidates, completed as in a run: by its hints, then the heuristic."""
    (one,) = prompt_of([asked]).asked
    found = cassette.recall(one)
    advice = found.reading.advice.get(asked.region.id) if found is not None else None
    base = Heuristic().advise(asked)
    if advice is None:
        return [_ids(asked, base.order)], 0, "nothing is recorded about it: the heuristic's order"
    return [_ids(asked, arranged(advice, base, asked.candidates).order)], len(advice.order), ""


def judged(
    options: Options,
    here: Machine,
    arms: Sequence[Arm],
    emit: Emit,
    say: Callable[[str], None],
    known: Mapping[str, Judged],
    keep: Callable[[Model], None] = lambda _: None,
) -> Model:
    """Evaluate every candidate of every hot region of `options.model`, and rank the arms' orders by the times.

    Regions whose ids are in `known` keep the times recorded there. `keep` is called with the result so far after each
    region. A region that could not be timed is left out.
    """
    with evaluator_of(here, options.seed) as judge:
        ready = prepare(options, here, judge, emit)
        found = list[Judged]()

        def model() -> Model:
            return Model(
                model=Path(options.model.removeprefix("preset:")).name,
                context=ready.model.captured.info.context,
                residency=ready.prefill.residency,
                regions=tuple(sorted(found, key=lambda one: (-one.bytes * one.sites, one.name))),
            )

        for subject in hot(ready):
            old = known.get(subject.region.id)
            times = (old.ns, old.pytorch_ns) if old is not None else _times(subject, judge, options.seed, say)
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


def _times(
    subject: TuneTask, judge: WorkerEvaluator, seed: int, say: Callable[[str], None]
) -> tuple[dict[str, float], float]:
    """Return the time of every correct candidate by label, and PyTorch's time, in ns.

    All are timed side by side in every round. Returns no times, and 0, when the timing failed.
    """
    templates = templates_of(subject)
    jobs = []
    for candidate in subject.space:
        template = templates[candidate.template]
        source = specialise(template, subject.region, candidate.params, subject.space.target)
        jobs.append(EvaluationJob(candidate=candidate, region=subject.region, template=template, source=source))
    name, ready = subject.region.name, list[Prepared]()
    for done, (_, result) in enumerate(judge.prepare(jobs), 1):
        if isinstance(result, Prepared):
            ready.append(result)
        if done % 50 == 0 or done == len(jobs):
            say(f"{name}: {done} of {len(jobs)} built and validated, {len(ready)} correct")
    timing = judge.time(
        subject.region, [Baseline(), *ready], rounds=ROUNDS, residency=subject.residency, seed=seed, processes=1
    )
    if not isinstance(timing, Timing):
        say(f"{name}: not timed: {timing}")
        return {}, 0.0
    say(f"{name}: timed")
    quick = {arm: quick_ns(timing.per_launch_ns(arm)) for arm in timing.live}
    return {one.job.candidate.label: quick[arm] for arm, one in enumerate(ready, 1) if arm in quick}, quick.get(0, 0.0)


def _region(
    ready: PreparedModel, subject: TuneTask, ns: dict[str, float], pytorch_ns: float, arms: Sequence[Arm]
) -> Judged:
    asked = question_of(subject.space, ready.ceiling, subject.residency)
    region, ids = subject.region, {candidate.label: candidate.id for candidate in asked.candidates}
    ns = {label: time for label, time in ns.items() if label in ids}
    winner, near = min(ns, key=lambda label: ns[label]), near_of(ns)
    return Judged(
        region=region.id,
        name=region.name,
        dims=dict(region.dims),
        sites=len(region.sites),
        bytes=region.cost.bytes,
        points=len(ids),
        failed=len(ids) - len(ns),
        near=len(near),
        winner=winner,
        pytorch_ns=round(pytorch_ns, 1),
        ns={label: round(time, 1) for label, time in ns.items()},
        standings=tuple(_standings(asked, arms, ids[winner], frozenset(ids[label] for label in near))),
    )


def _standings(asked: Question, arms: Sequence[Arm], winner: str, near: frozenset[str]) -> Iterator[Standing]:
    for arm in arms:
        orders, said, note = arm.orders(asked)
        yield standing_of(arm.name, orders, winner, near, said=said, note=note)


def answered(arms: Sequence[Arm]) -> Mapping[str, str]:
    """Return who answered, by arm; arms without recorded answers are absent."""
    return {arm.name: arm.answered_by for arm in arms if arm.answered_by}
