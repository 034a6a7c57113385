"""Progress of a search, derived from its events: candidates tried, the best step time, how busy the machine is.

In: the events of a search. Out: the same events, with progress among them at most once a second, and one warning when
other processes disturb the timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from agentcompile.evaluation.stopwatch import Stopwatch
from agentcompile.evaluation.time_budget import TimeBudget
from agentcompile.events import Emit, Event, PlanAdmitted, StageFinished, StepsTimed, TrialFinished, Warned
from agentcompile.ir.region import Regime
from agentcompile.ir.search_events import SearchProgress
from agentcompile.ir.trial import CONTENDED, Measured
from agentcompile.measure import share_disturbed, usual_ns

EVERY_S = 1.0
ENOUGH_ROUNDS = 10
"""Rounds that must be timed before the machine may be called busy."""


class Pace:
    """An `Emit` that passes events on to another and adds progress events."""

    def __init__(
        self, emit: Emit, time: TimeBudget, step_of: Callable[[Mapping[str, float]], float], waiting: Stopwatch
    ) -> None:
        """`step_of` returns the time of a step in ns from the best times of regions by id; 0 when too few are known.

        `waiting` runs while the compiler waits for its evaluator; the overhead is counted from now on.
        """
        self._emit, self._time, self._step_of, self._waiting = emit, time, step_of, waiting
        self._begin_s, self._overhead_s, self._tuned = time.elapsed_s - waiting.seconds, 0.0, False
        self._said_s = -math.inf
        self._tried: set[str] = set()
        self._rounds = 0
        self._disturbed = 0.0
        self._step_ns, self._measured = 0, False
        self._regime: Regime | None = None  # of the first plan, whose step is reported
        self._warned = False

    def __call__(self, event: Event) -> None:
        """Pass an event on, and emit progress when a second has passed since the last time."""
        self._emit(event)
        match event:
            case TrialFinished(trial=trial):
                self._tried.add(trial.candidate.id)
                if isinstance(trial.verdict, Measured) and not trial.reused:
                    m = trial.verdict.measurement
                    self._count(m.rounds + m.dropped, m.disturbed)
            case StepsTimed(timing=timing):
                rounds = sum(len(process.rounds) for process in timing.processes)
                self._count(rounds, share_disturbed(timing, range(len(timing.live))))
                if self._regime is None:  # what is timed later are steps of other regimes, and chunks of prompts
                    self._best(min((round(usual_ns(timing, arm)) for arm in timing.live), default=0), measured=True)
            case PlanAdmitted(plan=plan):
                if plan.phase == "decode" and plan.step_ns and self._regime in (None, plan.regime):
                    self._regime = plan.regime
                    self._best(plan.step_ns, measured=True)
            case StageFinished(stage="admit"):  # what a person or the check of the whole model takes comes after it
                self._said_s = -math.inf
                self.say()
                self._tuned = True
                return
            case _:
                return
        self.say()

    def improved(self, best_ns: Mapping[str, float]) -> None:
        """Note the best times of regions, by id in ns, and emit progress when it is due."""
        self._best(round(self._step_of(best_ns)), measured=False)
        self.say()

    def say(self) -> None:
        """Emit a `SearchProgress` event, at most once a second."""
        now = self._time.elapsed_s
        if now - self._said_s < EVERY_S:
            return
        self._said_s = now
        if not self._tuned:
            self._overhead_s = max(now - self._waiting.seconds - self._begin_s, 0.0)
        self._emit(
            SearchProgress(
                elapsed_s=round(now, 1),
                budget_s=self._time.seconds if self._time.seconds < math.inf else 0.0,
                candidates=len(self._tried),
                step_ns=self._step_ns,
                measured=self._measured,
                rounds=self._rounds,
                disturbed=round(self._share, 3),
                overhead_s=round(self._overhead_s, 2),
            )
        )

    @property
    def _share(self) -> float:
        return self._disturbed / self._rounds if self._rounds else 0.0

    def _count(self, rounds: int, share: float) -> None:
        self._rounds += rounds
        self._disturbed += share * rounds
        if not self._warned and self._rounds >= ENOUGH_ROUNDS and self._share > CONTENDED:
            self._warned = True
            text = f"machine busy: {self._share:.0%} of the rounds disturbed by other processes"
            self._emit(Warned(text=f"{text}; timing takes longer, and small differences stay undecided"))

    def _best(self, step_ns: int, *, measured: bool) -> None:
        if step_ns > 0 and (measured or not self._measured):
            self._step_ns, self._measured = step_ns, measured
