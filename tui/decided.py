"""What a plan changes, what a person decided on each of its regions, and whether that still holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agentcompile.control.review import Item, items
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Choice, Fallback, Kernel, Measured, Measurement, Part
from agentcompile.runs.progress import RegionProgress, State

from .ink import Span
from .trials import trials_of

Word = Literal["undecided", "measured", "stale", "approved", "rejected", "overridden", "kept"]

_SPANS: dict[Word, Span] = {
    "undecided": ("? undecided", "warn"),
    "measured": ("● measured", "dim"),
    "stale": ("≠ stale", "bad"),
    "approved": ("✓ approved", "good"),
    "rejected": ("✗ rejected", "bad"),
    "overridden": ("§ override", "accent"),
    "kept": ("- nothing", "dim"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision: its word, a sentence on it, and the candidate that a person put in place of the measured one."""

    word: Word = "kept"
    detail: str = "It runs as captured: there is nothing to decide."
    instead: Candidate | None = None
    reason: str = ""
    safe: bool = False

    @property
    def span(self) -> Span:
        """The decision as glyph and word."""
        return _SPANS[self.word]

    @property
    def open(self) -> bool:
        """Whether it keeps a reviewed lock from being written."""
        return self.word in ("undecided", "stale")


NOTHING = Decided()


def decisions(state: State) -> Mapping[str, Decided]:
    """Return the decision on every region that there is something to decide on, by region id."""
    asked = state.review is not None or state.lock is None
    return {item.region: _decided(item, asked) for item in items(state)}


def _decided(item: Item, asked: bool) -> Decided:
    """Return the decision on an item; `asked` says whether a person is waited for.

    A lock that was written without a person was decided by measurement.
    """
    if item.standing == "undecided" and not asked:
        return Decided(word="measured", detail="Nobody was asked: the measurement decided.", safe=item.safe)
    decision = item.decision
    instead = decision.candidate if decision is not None and decision.word == "override" else None
    reason = decision.reason if decision is not None else ""
    match item.standing:
        case "undecided":
            text = "Safe to approve: faster beyond its interval, every check passed." if item.safe else item.why
            detail = text or "Not safe to approve blindly: its interval or its checks leave a doubt."
        case "stale":
            detail = item.why
        case "approved":
            detail = f"What was on the screen then is what is chosen now ({item.approval[:12]})."
        case "rejected":
            detail = f"It runs as captured, in PyTorch{': ' + reason if reason else '.'}"
        case "overridden":
            detail = f"{instead.label if instead else 'Another candidate'} runs instead: {reason}"
    return Decided(word=item.standing, detail=detail, instead=instead, reason=reason, safe=item.safe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One region of the plan: what it runs, how much that saves in a step, and what was decided."""

    row: RegionProgress
    choice: Choice
    sites: int
    measurement: Measurement | None
    proposed_ns: float
    """What the kernel that was measured best would save, whatever was decided; below 0 for PyTorch."""
    decided: Decided

    @property
    def saved_ns(self) -> float:
        """The time that its kernel saves in a step, estimated from the kernel's own measurement beside PyTorch."""
        m = self.measurement
        return self.sites * float(m.baseline_ns - m.median_ns) if m and isinstance(self.choice, Kernel) else 0.0

    @property
    def expected_ns(self) -> float:
        """Its time in a step, as the kernel or PyTorch was measured by itself; the roofline floor where neither was."""
        if isinstance(self.choice, Kernel) and self.measurement is not None:
            return self.sites * float(self.measurement.median_ns)
        best = self.row.best
        return self.sites * (float(best.measurement.baseline_ns) if best is not None else self.row.floor_ns)


def parts(state: State) -> tuple[Part, ...]:
    """Return the parts of all decode plans, each region once; before there is a plan, every region with a choice."""
    if not state.plans:
        return tuple(Part(region=row.region, choice=row.choice) for row in state.rows if row.choice is not None)
    found: dict[str, Part] = {}
    for plan in sorted(state.plans, key=lambda plan: (plan.regime.batch, plan.regime.context)):
        for part in plan.parts if plan.phase == "decode" else ():
            found.setdefault(part.region, part)
    return tuple(found.values())


def changes(state: State) -> list[Change]:
    """Return the regions of the plan, the largest measured saving first; a decision does not change the order."""
    found = []
    standing = decisions(state)
    for part in parts(state):
        row = state.row(part.region)
        if row is None:
            continue
        word = standing.get(row.region, NOTHING)
        choice = _choice(state, part.choice, word)
        found.append(
            Change(
                row=row,
                choice=choice,
                sites=len(part.sites) or row.sites,
                measurement=_measurement(state, choice),
                proposed_ns=_saved_ns(len(part.sites) or row.sites, _measurement(state, part.choice)),
                decided=word,
            )
        )
    return sorted(found, key=lambda one: (-one.proposed_ns, one.row.name))


def _saved_ns(sites: int, measurement: Measurement | None) -> float:
    return sites * float(measurement.baseline_ns - measurement.median_ns) if measurement else -1.0


def _choice(state: State, measured: Choice, word: Decided) -> Choice:
    if word.word == "rejected":
        return Fallback(reason=word.reason or "rejected by user", decided_by="human")
    point = word.instead
    if word.word != "overridden" or point is None:
        return measured
    trial = next((one for one in reversed(trials_of(state, point.region)) if one.candidate == point), None)
    if trial is None or not isinstance(trial.verdict, Measured):
        return measured
    m = trial.verdict.measurement
    return Kernel(
        candidate=point, source=trial.source, speedup=m.speedup, half_width=m.half_width, decided_by="human",
        reason=word.reason,
    )  # fmt: skip


def _measurement(state: State, choice: Choice) -> Measurement | None:
    if not isinstance(choice, Kernel):
        return None
    last: dict[str, Measurement] = {}
    for trial in trials_of(state, choice.candidate.region):
        if trial.candidate.id == choice.candidate.id and isinstance(trial.verdict, Measured):
            last[trial.fidelity] = trial.verdict.measurement
    return last.get("confirm") or last.get("search")


def approval_of(state: State, region: str) -> str:
    """Return the digest of what the screen shows of a region; empty when it cannot be approved."""
    return next((item.approval for item in items(state) if item.region == region), "")
