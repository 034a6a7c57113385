"""How far a run is, in one line for people and as one JSON value for programs; pure functions of its state."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.trial import CONTENDED
from agentcompile.runs.progress import TIMED, State
from agentcompile.runs.status import Status, status_of
from agentcompile.runs.tables import duration, stage_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a person wants to know of a run that works."""

    status: Status
    stage: str = ""
    """The stage that runs now; empty between two, and at the end."""
    trials: int = 0
    candidates: int = 0
    """How many candidates have a verdict: what the budget counts, where a candidate may have several trials."""
    budget_trials: int = 0
    """About how many candidates the search evaluates; 0 when it is not bounded."""
    step_ns: int = 0
    """The best step known: of the admitted plan, else the search's own word; 0 before there is one."""
    measured: bool = False
    """Whether `step_ns` was measured in the step, rather than estimated from its regions."""
    eta_s: float | None = None
    """Seconds until search and step tuning have used up their time; None where that says nothing."""
    disturbed: float | None = None
    """Share of the timed rounds that other processes disturbed; None before any was timed."""

    @property
    def machine(self) -> str:
        """Whether the machine is busy with other work; empty while that is not known."""
        if self.disturbed is None:
            return ""
        return "busy" if self.disturbed > CONTENDED else "quiet"

    @property
    def line(self) -> str:
        """One line for people."""
        tried = budgeted(self.candidates, self.budget_trials)
        parts = [f"{self.status}, {stage_name(self.stage)}" if self.stage else self.status, tried]
        if self.step_ns:
            parts.append(f"best step {'' if self.measured else 'about '}{duration(self.step_ns)}")
        if self.eta_s is not None:
            parts.append(f"{self.eta_s:.0f} s left")
        if self.disturbed is not None:
            busy = self.machine == "busy"
            parts.append(f"machine busy: {self.disturbed:.0%} of the rounds disturbed" if busy else "machine quiet")
        return "; ".join(parts)


def budgeted(candidates: int, budget: int) -> str:
    """Return the number of candidates beside the budget of a search, which the first of each region may exceed."""
    if not budget:
        return f"{candidates} candidates"
    over = candidates > budget
    return f"{candidates} candidates, budget {budget}" if over else f"{candidates} of {budget} candidates"


def candidates_of(state: State) -> int:
    """Return how many candidates have a verdict, by the trials or by the search's own word, which may come later."""
    tried = len({trial.candidate.id for trial in state.trials})
    return max(tried, state.pace.candidates) if state.pace is not None else tried


def outlook(state: State, *, alive: bool) -> Outlook:
    """Return how far a run is; `alive` says that a process works on it."""
    pace, stage = state.pace, state.stage
    admitted = next((plan for plan in state.final if plan.phase == "decode" and plan.step_ns), None)
    timing = alive and pace is not None and pace.budget_s > 0 and stage in TIMED
    return Outlook(
        status=status_of(state, alive=alive),
        stage=(stage or "") if alive else "",
        trials=state.counts.total,
        candidates=candidates_of(state),
        budget_trials=state.budget_trials,
        step_ns=admitted.step_ns if admitted is not None else pace.step_ns if pace is not None else 0,
        measured=admitted is not None or (pace is not None and pace.measured),
        eta_s=pace.eta_s if timing and pace is not None else None,
        disturbed=pace.disturbed if pace is not None and pace.rounds else None,
    )
