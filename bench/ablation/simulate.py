"""Runs a search strategy on a recorded space: every proposed candidate gets its recorded verdict at once.

Nothing is built, run or opened. An evaluation is a distinct candidate that the strategy proposed, a failed one too. The
same space, strategy, budget and seed give the same curve.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.interchange.t4 import Invalidity
from agentcompile.ir.advice import Usage
from agentcompile.ir.target import Residency
from agentcompile.ir.trial import (
    BuildFailed,
    Check,
    Crashed,
    Finding,
    Incorrect,
    Measured,
    Measurement,
    NumericReport,
    Rejected,
    TimedOut,
    Trial,
    Verdict,
)
from agentcompile.search import Budget, RegionStrategy, SearchMethod, SearchTask, strategy_of
from agentcompile.search.cost_model import LEAST, CostModel
from agentcompile.search.course import Explorer
from agentcompile.search.mcts import Mcts
from agentcompile.search.points import points_of
from agentcompile.search.strategy import reached

from .advising import ModelAnswers, advised, arm_of
from .documents import Failure
from .spaces import RecordedSpace

MOST_REPEATS = 100
"""How many proposals in a row may hold known candidates alone: halving times survivors again, once a rung."""
_MEND = "this is a fault of the strategy: leave it out with --strategies, or mend it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """How the best time of one search fell; `steps` holds the whole curve."""

    space: str
    strategy: str
    seed: int
    budget: int
    """The most evaluations that the search was allowed."""
    evaluations: int
    """The distinct candidates that were evaluated, failed ones too."""
    failed: int
    optimum_ns: float | None
    """The best time of the whole space; None when every point failed."""
    steps: tuple[tuple[int, float], ...]
    """(evaluation, counted from 1, at which the best improved; the best time in ns from then on)."""
    ended: Literal["budget", "strategy", "space"]
    """Whether the budget was spent, the strategy proposed nothing more, or every point was evaluated."""
    seconds: float = field(compare=False)
    """Processor time that the strategy itself took, in s."""
    used: Usage = Usage()  # noqa: RUF009 - frozen
    """What the model's answers took that the search heard; nothing where no model was asked."""
    answers: ModelAnswers | None = None
    """Whose answers the search used, and how legal they were; None where no model was asked."""
    correlation: float | None = None
    """How well the cost model of the strategy ranks trials of the search that it did not see (`held_out`)."""

    def best_after(self, evaluations: int) -> float:
        """Return the best time in ns after this many evaluations; infinite before the first point that ran."""
        return next((ns for at, ns in reversed(self.steps) if at <= evaluations), math.inf)

    def speed_after(self, evaluations: int) -> float:
        """Return the optimum's time over the best after this many evaluations: 0 at first, 1 at the optimum."""
        return 0.0 if self.optimum_ns is None else self.optimum_ns / self.best_after(evaluations)

    def evaluations_to(self, percent: float) -> int | None:
        """Return the evaluations until the best was at most `percent` above the optimum; None if it never was."""
        limit = (self.optimum_ns or 0.0) * (1 + percent / 100)
        return next((at for at, ns in self.steps if ns <= limit), None)

    def area(self, evaluations: int) -> float:
        """Return the mean of `speed_after` over the first `evaluations`; a search that ended keeps its best."""
        starts = [at for at, _ in self.steps if at <= evaluations]
        spans = itertools.pairwise([*starts, evaluations + 1])
        return sum((end - start) * self.speed_after(start) for start, end in spans) / evaluations


def simulate(
    space: RecordedSpace,
    strategy: str,
    budget: int,
    seed: int,
    *,
    find: Callable[[str], SearchMethod] = strategy_of,
    clock: Callable[[], float] = time.process_time,
    record: str = "",
) -> Curve:
    """Run `strategy` on `space` until `budget` evaluations, or until it proposes nothing.

    `strategy` may name an adviser (see `advising`); without one it gets candidates in the order of the file. `batch`
    and `finalists` are 1. `record` is the folder that keeps what a model answers.

    Raises:
        AgentCompileError: there is no such strategy, or no advice about this space (usage), or the strategy proposes a
            candidate that is not in the space, or known candidates again and again (internal).
    """
    arm, trials = arm_of(strategy), list[Trial]()
    method = find(arm.strategy).regions
    advising = advised(space, arm.adviser, seed, record)
    consult = None if advising.consult is None else functools.partial(advising.consult, trials)
    task = SearchTask(candidates=space.candidates, advice=advising.advice, consult=consult)
    limits = Budget(trials=budget, seed=seed, finalists=1, batch=1)
    most, answer = min(budget, len(space.candidates)), _Answers(space)
    where = f"strategy {strategy} on {space.name}"
    known, steps = set[str](), list[tuple[int, float]]()
    failures, repeats, seconds = 0, 0, 0.0
    ended: Literal["budget", "strategy", "space"] = "budget" if most == budget else "space"
    while len(known) < most:
        begun = clock()
        proposal = method.propose(task, trials, limits)
        seconds += clock() - begun
        if not proposal.candidates:
            ended = "strategy"
            break
        before = len(known)
        for candidate in proposal.candidates:
            outcome = space.outcomes.get(candidate.id)
            if outcome is None:
                fault = f"proposed {candidate.label[:120]}, which is not in the space"
                raise AgentCompileError(f"{where}: {fault}", exit_code=ExitCode.INTERNAL, hint=_MEND)
            verdict = answer.verdict(candidate.id, outcome, proposal.rounds)
            trials.append(Trial(candidate=candidate, source="", verdict=verdict))
            if candidate.id in known:
                continue
            known.add(candidate.id)
            if isinstance(outcome, Failure):
                failures += 1
            elif not steps or outcome < steps[-1][1]:
                steps.append((len(known), outcome))
            if len(known) == most:
                break
        repeats = repeats + 1 if len(known) == before else 0
        if repeats > MOST_REPEATS:
            fault = f"proposed nothing new {repeats} times in a row"
            raise AgentCompileError(f"{where}: {fault}", exit_code=ExitCode.INTERNAL, hint=_MEND)
    return Curve(
        space=space.name, strategy=strategy, seed=seed, budget=budget, evaluations=len(known), failed=failures,
        optimum_ns=space.best_ns, steps=tuple(steps), ended=ended, seconds=seconds, used=advising.used(),
        answers=advising.answers(), correlation=held_out(space, method, trials),
    )  # fmt: skip


def held_out(space: RecordedSpace, strategy: RegionStrategy, trials: Sequence[Trial]) -> float | None:
    """Return Spearman's rank correlation of a search's trials with what its cost model predicts for them unseen.

    Every third trial is held out in turn, as the model does itself when it learns. None for a strategy without a cost
    model, and for a search that ended before one is fitted.
    """
    if not isinstance(strategy, Explorer) or not isinstance(strategy.course, Mcts):
        return None
    points, scores = points_of(space.candidates), dict[int, float]()
    for trial in trials:
        place, score = points.place(trial.candidate.id), reached([trial], 0, 0)
        assert place is not None
        assert score is not None
        scores.setdefault(place, score)
    model = CostModel(points)
    model.learn(scores)
    return model.correlation if len(scores) >= LEAST else None


_PASSED = NumericReport(checks=(), error_ratio=0.0, cases=0, repeats=0)


class _Answers:
    """Makes verdicts from what a space recorded.

    A search compares candidates by their speedup over a baseline: PyTorch's time where the space has it, else its
    median time, because strategies compare candidates with one another, for which any baseline serves.
    """

    def __init__(self, space: RecordedSpace) -> None:
        self._space = space
        self._baseline_ns = space.compared_ns
        asked = space.question
        self._bytes = asked.region.cost.bytes if asked is not None else 0
        self._residency: Residency = asked.residency if asked is not None else "dram"

    def verdict(self, id: str, outcome: float | Failure, rounds: int) -> Verdict:
        """Return the verdict of a point that was asked for with `rounds` paired rounds."""
        if isinstance(outcome, Failure):
            return _failed(outcome.kind, outcome.text)
        log_ratio = math.log(self._baseline_ns / outcome)
        measurement = Measurement(
            median_ns=max(round(outcome), 1), p95_ns=max(round(outcome), 1),
            baseline_ns=max(round(self._baseline_ns), 1), baseline="pytorch" if self._space.baseline_ns else "median",
            log_ratio=log_ratio, half_width=self._space.half_widths.get(id, 0.0),
            comparison="FASTER" if log_ratio > 0 else "SLOWER" if log_ratio < 0 else "SAME",
            rounds=rounds, dropped=0, processes=1, batch=1, residency=self._residency,
            bytes_per_s=self._bytes / outcome * 1e9, asked=rounds,
        )  # fmt: skip
        return Measured(report=_PASSED, measurement=measurement)


def _failed(kind: Invalidity, text: str) -> Verdict:
    match kind:
        case "constraints":
            return Rejected(findings=(Finding(rule="recorded", severity="error", text=text),))
        case "compile":
            return BuildFailed(log=text)
        case "correctness":
            check = Check(name="recorded", ok=False, measured=1.0, allowed=0.0, detail=text)
            return Incorrect(report=NumericReport(checks=(check,), error_ratio=1.0, cases=1, repeats=1))
        case "timeout":
            return TimedOut(stage="measure", limit_s=0.0)
        case "runtime" | "correct":
            return Crashed(stage="measure", signal=0, detail=text)
