"""What a person decides on before a lock is written: items by region, and digests of what was seen.

In: the state of a run. Out: items with their standing, and digests of what is on the screen. Pure; only the standard
library. Invariant: a digest covers region, candidate, source, parameters, checks and measurement, so that a change of
any of them makes an approval stale; a candidate with a failed trial has no digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.codec import encode
from agentcompile.ir.digest import digest
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Decision, Kernel, Measured, Trial
from agentcompile.runs.progress import State

LATER = ("asked", "disturbed")
"""Fields of a measurement that were added after the first approvals were made."""
Standing = Literal["undecided", "stale", "approved", "rejected", "overridden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A region of the plans with the kernels that are proposed for it, in most cases one."""

    region: str
    name: str
    kernels: tuple[Kernel, ...]
    """The proposed kernels; several only where the plans of different regimes chose differently."""
    standing: Standing
    decision: Decision | None = None
    approval: str = ""
    """The digest that an approval would have now; empty when one of the kernels cannot be approved."""
    why: str = ""
    """Why it is stale, or cannot be approved."""
    safe: bool = False
    """Whether every kernel is faster beyond its interval and passed every check."""


def items(state: State) -> tuple[Item, ...]:
    """Return what may be decided on now: the regions with a kernel, chosen in the plans or, before those, alone."""
    return tuple(_item(state, region, kernels) for region, kernels in _proposed(state).items())


def item_of(state: State, region: str) -> Item | None:
    """Return the item of a region id; None when there is nothing to decide on."""
    kernels = _proposed(state).get(region)
    return None if kernels is None else _item(state, region, kernels)


def open_items(state: State) -> tuple[Item, ...]:
    """Return the items that keep a reviewed lock from being written: those that are undecided or stale."""
    return tuple(item for item in items(state) if item.standing in ("undecided", "stale"))


def trials_of(state: State, candidate: str) -> tuple[Trial, ...]:
    """Return the trials of a candidate id, oldest first."""
    return state.trials.of(_candidate, candidate)


def _candidate(trial: Trial) -> str:
    return trial.candidate.id


def fault(trials: tuple[Trial, ...]) -> str:
    """Return why a candidate with these trials cannot be selected by anyone; empty when it can."""
    if not trials:
        return "it was never measured"
    failed = next((trial.verdict for trial in trials if not isinstance(trial.verdict, Measured)), None)
    if failed is not None:
        return f"it failed: {failed.kind}"
    return ""


def seen(trials: tuple[Trial, ...]) -> Trial | None:
    """Return the trial that a screen shows of a candidate; None when it was not measured.

    It is the last confirming trial, else the last of the search.
    """
    measured = [trial for trial in trials if isinstance(trial.verdict, Measured)]
    confirmed = [trial for trial in measured if trial.fidelity == "confirm"]
    return next(iter(reversed(confirmed or measured)), None)


def approval_of(trial: Trial) -> str:
    """Return the digest of what a screen shows of one trial."""
    own, verdict = trial.candidate, encode(trial.verdict)
    if isinstance(verdict, dict) and isinstance(taken := verdict.get("measurement"), dict):
        # Older runs lack these fields: left out where empty, they keep the digests of old approvals valid.
        verdict["measurement"] = {name: value for name, value in taken.items() if value or name not in LATER}
    return digest("approval/1", own.region, own.id, trial.source, encode(own.params), verdict)


def approval(trials: tuple[Trial, ...], fidelity: str = "") -> str:
    """Return the digest of what a screen shows of a candidate, of one fidelity if given; empty when a trial failed."""
    shown = seen(tuple(trial for trial in trials if fidelity in ("", trial.fidelity)))
    return "" if fault(trials) or shown is None else approval_of(shown)


def _proposed(state: State) -> dict[str, tuple[Kernel, ...]]:
    """Return the proposed kernels by region, in the order of the plans.

    A region that a plan runs in PyTorch is included, without kernels, once a person overrode it.
    """
    found: dict[str, tuple[Kernel, ...]] = {}
    decisions = state.decisions
    chosen = [(part.region, part.choice) for plan in state.plans for part in plan.parts]
    if not state.plans:
        chosen = [(row.region, row.choice) for row in state.rows if row.choice is not None]
    for region, choice in chosen:
        if isinstance(choice, Kernel):
            known = found.get(region, ())
            if choice.candidate not in [kernel.candidate for kernel in known]:
                found[region] = (*known, choice)
        elif region in decisions and decisions[region].word == "override":
            found.setdefault(region, ())
    return found


def _item(state: State, region: str, kernels: tuple[Kernel, ...]) -> Item:
    row, decision = state.row(region), state.decisions.get(region)
    name = row.name if row is not None else region[:12]
    own = [trials_of(state, kernel.candidate.id) for kernel in kernels]
    faults = [why for trials in own if (why := fault(trials))]
    digests = [approval(trials) for trials in own]
    now = "" if faults or not own else digests[0] if len(digests) == 1 else digest("approvals/1", *digests)
    safe = bool(now) and all(map(_safe, own))
    standing, why = _standing(state, decision, now)
    return Item(
        region=region,
        name=name,
        kernels=kernels,
        standing=standing,
        decision=decision,
        approval=now,
        why=why or next(iter(faults), ""),
        safe=safe,
    )


def _standing(state: State, decision: Decision | None, now: str) -> tuple[Standing, str]:
    """Return the standing of a region, and why when its decision is stale."""
    match decision:
        case None:
            return "undecided", ""
        case Decision(word="reject"):
            return "rejected", ""
        case Decision(word="override", candidate=Candidate() as point):
            return ("overridden", "") if not (why := stale_override(state, decision, point)) else ("stale", why)
        case _:
            if decision.approval and decision.approval == now:
                return "approved", ""
            return "stale", "what was approved has changed: another kernel, source, check or measurement"


def stale_override(state: State, decision: Decision, point: Candidate) -> str:
    """Return why an override is stale; empty when it is still valid.

    The confirming trial that the override itself caused changes nothing. A newer trial of the fidelity that the person
    saw makes it stale, and so does a failed one.
    """
    trials = trials_of(state, point.id)
    if why := fault(trials):
        return f"the candidate cannot run: {why}"
    digests = [approval(trials, fidelity) for fidelity in ("confirm", "search")]
    return (
        "" if decision.approval in digests else "what was overridden has changed: another source, check or measurement"
    )


def _safe(trials: tuple[Trial, ...]) -> bool:
    shown = seen(trials)
    if shown is None or shown.fidelity != "confirm" or not isinstance(shown.verdict, Measured):
        return False
    return shown.verdict.report.ok and shown.verdict.measurement.comparison == "FASTER"
