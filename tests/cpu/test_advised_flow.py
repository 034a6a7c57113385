"""From spaces to the lock with a evaluator that knows every time: whoever advises, the lock is that of no adviser."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile import catalog
from agentcompile.advice.advisers import NoAdvice
from agentcompile.advice.client import Client
from agentcompile.advice.counsel import Counsel, prompts_of
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import ModelRequest, Reply, WireError
from agentcompile.build import Binary
from agentcompile.capture.cached import load_model
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Prepared
from agentcompile.evaluation.machine import this_machine
from agentcompile.events import AdviceTaken, silent
from agentcompile.ir.advice import Advice
from agentcompile.ir.digest import digest
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency
from agentcompile.ir.template import Depth
from agentcompile.ir.timing import Clock, Round, Samples
from agentcompile.ir.trial import BuildFailed, NumericReport, Trial, Verdict
from agentcompile.lockfile.files import render_lock
from agentcompile.lockfile.schema import Evidence
from agentcompile.measure import Timing
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.planning.plans import plan
from agentcompile.regions.kinds import facts as kinds
from agentcompile.search import STRATEGIES, Budget
from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.partitions import advise, bound, cut, question_of
from agentcompile.tuning.prepared import informed
from agentcompile.tuning.ranking import Traits, rank
from agentcompile.tuning.tasks import TuneTask, templates_of
from agentcompile.tuning.trial_database import TrialDatabase
from agentcompile.tuning.tuner import Tuner
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT

SUBJECTS = 5
"""Regions that are searched: those of the cheapest cover with the smallest spaces."""
REPORT = NumericReport(checks=(), error_ratio=1.0, cases=1, repeats=1)


def known_ns(id: str) -> int:
    """The time of a candidate, which nobody but the evaluator knows."""
    return 20_000 + int(digest("time/1", id)[:6], 16) % 400_000


class Knowing:
    """An evaluator without processes: a time for every candidate, and each eleventh does not build."""

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: Depth = "search"
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        for job in jobs:
            if known_ns(job.candidate.id) % 11 == 0:
                yield job, BuildFailed(log="error: not this one")
            else:
                binary = Binary(digest=job.source.digest)
                yield job, Prepared(job=job, binary=binary, report=REPORT)

    def time(
        self,
        region: Region,
        arms: Sequence[Prepared | Baseline],
        *,
        rounds: int,
        residency: Residency,
        seed: int,
        processes: int,
        claim: float = 0.005,
        seconds: float = 0.0,
    ) -> Timing:
        ns = [100_000 if isinstance(arm, Baseline) else known_ns(arm.job.candidate.id) for arm in arms]
        one = Round(intervals_ns=tuple((16 * time, 16 * time) for time in ns), waited_ns=(0,) * len(ns))
        clock = Clock(quantum_ns=1, doubling=(2.0,) * len(ns))
        samples = Samples(batch=16, clock=clock, rounds=(one,) * rounds)
        labels = tuple("pytorch" if isinstance(arm, Baseline) else arm.job.candidate.label for arm in arms)
        live = tuple(range(len(ns)))
        return Timing(arms=labels, live=live, processes=(samples,) * processes, residency=residency)

    def ceiling(self) -> Ceiling:
        return flows.CEILING

    def close(self) -> None:
        """Nothing."""


class Wire:
    """An adviser that says what a function makes of the regions it was asked about."""

    def __init__(self, say: Callable[[list[Any]], str]) -> None:
        self.say = say

    def send(self, ask: ModelRequest) -> Reply:
        return Reply(status=200, text=self.say(json.loads(ask.user)["regions"]))

    def close(self) -> None:
        """Nothing."""


def item(region: Any, ranking: list[Any], hints: list[Any], risks: list[Any]) -> dict[str, Any]:
    label = {"text": "x", "rationale": ""}
    return {
        "region": region["region"], "label": label, "claims": [], "ranking": ranking, "hints": hints, "risks": risks,
    }  # fmt: skip


def worst(regions: list[Any]) -> str:
    """Ranks the last candidates first, hints at the last value of every parameter, and warns of every template."""
    made = []
    for one in regions:
        ranking = [{"candidate": row[0], "rationale": "the best"} for row in one["candidates"][:-33:-1]]
        hints = [
            {"template": t["template"], "param": p["param"], "values": p["domain"][::-1], "rationale": ""}
            for t in one["templates"]
            for p in t["parameters"]
        ]
        risks = [
            {"says": "does-not-build", "template": t["template"], "value": None, "rationale": ""}
            for t in one["templates"]
        ]
        made.append(item(one, ranking, hints, risks))
    return json.dumps({"regions": made})


def widening(regions: list[Any]) -> str:
    """Names candidates, values and templates that do not exist, and brings code."""
    made = []
    for one in regions:
        ranking = [{"candidate": "c99999", "rationale": ""}, {"candidate": "c1", "rationale": "", "source": "int x;"}]
        hints = [{"template": "t1", "param": "UNROLL", "values": [3, 7, 4096], "rationale": ""}]
        made.append({**item(one, ranking, hints, []), "template": {"source": "int main;"}, "tolerance": 1e9})
    return json.dumps({"regions": made, "budget": 10**9})


def spiteful(regions: list[Any]) -> str:
    """Ranks first what it was told of trials, the failed and the slow before the fast."""
    made = []
    for one in regions:
        assert one["trials"], "an answer that is none is not taken"
        ranking = [{"candidate": row[0], "rationale": "it was so slow"} for row in one["trials"][:-33:-1]]
        made.append(item(one, ranking, [], []))
    return json.dumps({"regions": made})


def absent(regions: list[Any]) -> str:
    raise WireError("refused", sent=False)


ADVERSARIES: dict[str, Callable[[list[Any]], str]] = {
    "worst": worst,
    "widening": widening,
    "empty": lambda regions: '{"regions": []}',
    "truncated": lambda regions: worst(regions)[:500],
    "absent": absent,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What came of one adviser's order."""

    text: str
    """The lock's, but for its evidence."""
    evaluated: set[str]
    """Candidate ids with the kinds of their verdicts."""
    taken: int
    """Regions that advice was taken of."""
    trials: list[Trial]


Locked = Callable[..., Made]


@pytest.fixture(scope="module")
def locked(warm: Path, checkpoint: Callable[[str, str], Path]) -> Locked:
    """Makes the lock of the tiny Llama as one adviser orders its search, who is told of the trials that are known."""
    planted = flows.plant(warm, checkpoint("tiny-llama", "bf16"), CONTEXT, warm / "advised.lock.toml")
    asked = flows.options(warm, checkpoint("tiny-llama", "bf16"), CONTEXT)
    here = this_machine(asked)
    model = load_model(checkpoint("tiny-llama", "bf16"), CONTEXT, here.store, here.hashes)
    decode, prefill = cut(model.captured, here.target, flows.CEILING, silent)
    templates = catalog.load([catalog.default_root()], kinds=kinds(), layouts=LAYOUTS)
    spaces = bound(decode, templates, here.target, silent)
    covered = {row.region.id for row in decode[0].summary.rows if row.covered}
    every = advise(spaces, NoAdvice(), flows.CEILING, prefill.residency, silent)
    subjects = sorted((one for one in every if one.region.id in covered), key=lambda one: len(one.space))[:SUBJECTS]
    first = {one.region.id: (question_of(one.space, flows.CEILING, one.residency), one.advice) for one in subjects}

    def make(say: Callable[[list[Any]], str] | None, known: Sequence[Trial] = ()) -> Made:
        taken: list[AdviceTaken] = []

        def tell(news: object) -> None:
            if isinstance(news, AdviceTaken):
                taken.append(news)

        asks = None if say is None else Client(Wire(say), "m", Ledger(Ceilings(calls=99)))
        with Counsel(first, asks=asks, tell=tell) as counsel:
            if asks is not None:
                past = TrialDatabase(known, None, "policy")
                counsel.begin(prompts_of([informed(question, past) for question, _ in first.values()], covered))
                counsel.wait(30)
            trials = evaluated(subjects, here.target, here.store, lambda one: counsel.advice(one.region.id))
        rankings = {}
        for one in subjects:
            rankings[one.region.id] = rank(trials[one.region.id], templates_of(one), traits=lambda _: Traits())
        found = plan(decode, prefill, subjects, rankings, trials, lambda _: 1e5, flows.CEILING, "cpu")
        made = replace(planted, cuts=(*decode, prefill), planned=found, trials=trials).seal()
        every = [trial for some in trials.values() for trial in some]
        return Made(
            text=render_lock(replace(made, evidence=Evidence())).decode(),
            evaluated={f"{trial.candidate.id} {trial.verdict.kind}" for trial in every},
            taken=len(taken),
            trials=every,
        )

    return make


def evaluated(
    subjects: Sequence[TuneTask], target: Any, store: Store, advised: Callable[[TuneTask], Advice]
) -> dict[str, list[Trial]]:
    """Every candidate searched in the advised order, and the finalists confirmed."""
    evaluator: Any = Knowing()
    baselines = BaselineTimes(evaluator, Notes(store), target, "policy", 0)
    known = TrialDatabase((), None, "policy")
    tuner = Tuner(JobMaker(target), evaluator, known, baselines, Notes(store), silent, 0, advised)
    found = {}
    for one in subjects:
        trials = tuner.search(one, STRATEGIES["halving"].regions, Budget(trials=len(one.space)), [], lambda: math.inf)
        found[one.region.id] = [*trials, *tuner.confirm(one, trials)]
    return found


@pytest.fixture(scope="module")
def unadvised(locked: Locked) -> Made:
    return locked(None)


@pytest.mark.parametrize("who", ADVERSARIES)
def test_whoever_advises_every_admitted_kernel_is_that_of_no_adviser(who: str, locked: Locked, unadvised: Made) -> None:
    made = locked(ADVERSARIES[who])
    assert made.text == unadvised.text
    assert made.evaluated == unadvised.evaluated
    assert bool(made.taken) is (who in ("worst", "widening")), "some of them are heard, and change nothing"


def test_whoever_is_told_of_every_trial_every_admitted_kernel_is_that_of_no_adviser(
    locked: Locked, unadvised: Made
) -> None:
    made = locked(spiteful, unadvised.trials)
    assert made.text == unadvised.text
    assert made.evaluated == unadvised.evaluated
    points = Counter(region for region, _ in {(t.candidate.region, t.candidate.id) for t in unadvised.trials})
    assert made.taken == sum(count > 1 for count in points.values()) >= 3


def test_the_lock_of_no_adviser_holds_kernels(unadvised: Made) -> None:
    assert unadvised.text.count('use = "kernel"') >= 3
