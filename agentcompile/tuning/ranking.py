"""From the trials of a region to what runs there: the best kernel of each layout, or the fallback with its reason.

Pure functions. `search` trials only pick the finalists; `confirm` trials alone decide. What is FASTER than the
baseline replaces it, and on a busy machine what others kept from being told apart though its estimate is faster: such a
kernel says so, and the whole step has the last word. Kernels are ranked within each layout signature, because the cover
agrees on layouts over all regions that share a weight, and because a winner that the step rejects yields to the
next one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import (
    BuildFailed,
    Cancelled,
    Choice,
    Crashed,
    Disturbed,
    Fallback,
    Impossible,
    Incorrect,
    Kernel,
    Measured,
    Measurement,
    Rejected,
    TimedOut,
    Trial,
    Verdict,
)
from agentcompile.measure.policy import POLICY

TIE = 0.005
"""Relative: kernels nearer than this to the best are equals, and traits decide between them."""

LEAVING_NS = 20_000.0
"""What a region in PyTorch costs a CPU's step beside its own time, where what stands around it is kernels: the step
leaves native code for it, and threads that went to sleep are woken. Seen on two cores: 51 us more for a table of
positions, 64 us for an argmax, of which the operators themselves are less than half."""

Signature = tuple[tuple[str, str], ...]
"""Port family to layout, sorted, only those that are not `row-major`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What breaks a tie: fewer risk flags, then less workspace."""

    risks: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Kernels of one region that beat its baseline, by layout signature and best first, and what runs otherwise."""

    kernels: tuple[tuple[Signature, tuple[Kernel, ...]], ...]
    fallback: Fallback
    near: tuple[tuple[Signature, tuple[Kernel, ...]], ...] = ()
    """Right kernels that PyTorch beats by itself, or ties, by less than what leaving native code for it costs."""

    @property
    def best(self) -> Kernel | Fallback:
        """The fastest of all layouts, or the fallback."""
        heads = [kernels[0] for _, kernels in self.kernels]
        return max(heads, key=lambda kernel: kernel.speedup, default=self.fallback)

    def is_near(self, choice: Choice) -> bool:
        """Whether it is a kernel that is chosen for what stands around it alone."""
        return any(choice in kernels for _, kernels in self.near)

    def kernels_of(self, signature: Signature) -> tuple[Kernel, ...]:
        """The kernels that want exactly these layouts, best first; empty when none does."""
        return dict(self.kernels).get(signature, ())


def signature_of(template: Template) -> Signature:
    """The layouts that a template asks for."""
    return tuple(sorted((family, layout) for family, layout in template.layouts if layout != "row-major"))


def finalists(trials: Sequence[Trial], templates: Mapping[str, Template], *, each: int) -> tuple[Candidate, ...]:
    """The candidates to re-time on fresh data: the best `each` of every layout signature, best first.

    A candidate stands by its longest search measurement, and is left out when any of its trials failed.
    """
    searched = [trial for trial in trials if trial.fidelity == "search"]
    failed = {trial.candidate.id for trial in searched if not isinstance(trial.verdict, Measured)}
    longest: dict[str, Trial] = {}
    for trial in searched:
        known = longest.get(trial.candidate.id)
        if trial.candidate.id not in failed and (known is None or _rounds(trial) >= _rounds(known)):
            longest[trial.candidate.id] = trial
    taken = Counter[Signature]()
    kept = list[Candidate]()
    for trial in sorted(longest.values(), key=lambda trial: (-_log_ratio(trial), trial.candidate.id)):
        signature = signature_of(templates[trial.candidate.template])
        taken[signature] += 1
        if taken[signature] <= each:
            kept.append(trial.candidate)
    return tuple(kept)


def rank(
    trials: Sequence[Trial], templates: Mapping[str, Template], *, traits: Callable[[Candidate], Traits]
) -> Ranking:
    """Rank the confirmed kernels that are FASTER than the baseline, or seem so and could not be told because of others
    on the machine, and say why the rest is not used.

    A candidate with several confirm trials stands by its last one. `trials` may hold every trial of the region: the
    search trials only enter the fallback's reason.
    """
    last = {trial.candidate.id: trial for trial in trials if trial.fidelity == "confirm"}

    def ordered(some: Sequence[Trial]) -> tuple[tuple[Signature, tuple[Kernel, ...]], ...]:
        by_layout: dict[Signature, list[Trial]] = {}
        for trial in some:
            by_layout.setdefault(signature_of(templates[trial.candidate.template]), []).append(trial)
        return tuple(
            (signature, tuple(_kernel(trial) for trial in _ordered(by_layout[signature], traits)))
            for signature in sorted(by_layout)
        )

    return Ranking(
        kernels=ordered([trial for trial in last.values() if _wins(trial.verdict)]),
        fallback=Fallback(reason=why_fallback(trials)),
        near=ordered([trial for trial in last.values() if not _wins(trial.verdict) and _is_near(trial.verdict)]),
    )


def _is_near(verdict: Verdict) -> bool:
    if not isinstance(verdict, Measured):
        return False
    return verdict.measurement.median_ns - verdict.measurement.baseline_ns < LEAVING_NS


def _wins(verdict: Verdict) -> bool:
    if not isinstance(verdict, Measured):
        return False
    return verdict.measurement.comparison == "FASTER" or seems_faster(verdict.measurement)


def seems_faster(m: Measurement) -> bool:
    """Whether others on the machine kept a kernel from being told from its baseline that is faster by its estimate."""
    return m.comparison == "INCONCLUSIVE" and m.contended and m.log_ratio > math.log1p(POLICY.claim)


def _ordered(trials: Sequence[Trial], traits: Callable[[Candidate], Traits]) -> list[Trial]:
    """Best first; among equals of the best that is left, the one with the better traits."""
    left, ordered = sorted(trials, key=lambda trial: -_log_ratio(trial)), list[Trial]()
    while left:
        best = _log_ratio(left[0])
        equals = [trial for trial in left if best - _log_ratio(trial) <= math.log1p(TIE)]
        chosen = min(equals, key=lambda trial: _tie_key(trial.candidate, traits))
        ordered.append(chosen)
        left.remove(chosen)
    return ordered


def _tie_key(candidate: Candidate, traits: Callable[[Candidate], Traits]) -> tuple[int, int, str]:
    own = traits(candidate)
    return own.risks, own.workspace_bytes, candidate.id


def _kernel(trial: Trial) -> Kernel:
    assert isinstance(trial.verdict, Measured)
    m = trial.verdict.measurement
    reason = f"{m.speedup:.3f}x {m.baseline} in {m.rounds} paired rounds of {m.processes} processes"
    if m.contended:
        reason = f"about {m.speedup:.2f}x {m.baseline}, contended: {m.disturbed:.0%} of the rounds were disturbed"
    return Kernel(
        candidate=trial.candidate,
        source=trial.source,
        speedup=m.speedup,
        half_width=m.half_width,
        decided_by="measured",
        reason=reason,
    )


def _measurement(trial: Trial) -> Measurement:
    assert isinstance(trial.verdict, Measured)
    return trial.verdict.measurement


def _log_ratio(trial: Trial) -> float:
    return _measurement(trial).log_ratio


def _rounds(trial: Trial) -> int:
    return _measurement(trial).rounds


def why_fallback(trials: Sequence[Trial]) -> str:
    """What became of the candidates, counted, each by its last word, and the one that came nearest.

    ``no kernel is faster: of 40 candidates 3 failed to build, 1 was incorrect, 36 were slower; the nearest, …, ran at
    0.97x pytorch``. Where some are undecided it says that none was shown to be faster.
    """
    last = {trial.candidate.id: trial for trial in trials}
    if not last:
        return "no template serves this region here"
    fates = Counter(_fate(trial) for trial in last.values())
    parts = ", ".join(f"{fates[fate]} {fate}" for fate in FATES if fates[fate])
    measured = [trial for trial in last.values() if _fate(trial) in TIMED]
    count = f"{len(last)} candidate{'s' if len(last) > 1 else ''}"
    undecided = fates["inconclusive"] + fates["faster in search alone"]
    text = f"no kernel {'was shown to be' if undecided else 'is'} faster: of {count} {parts}"
    if measured:
        near = min(measured, key=lambda trial: (-_log_ratio(trial), trial.candidate.id))
        m = _measurement(near)
        text += f"; the nearest, {near.candidate.label}, ran at {m.speedup:.3f}x {m.baseline}"
    return text


TIMED = ("slower", "the same", "inconclusive", "faster in search alone", "faster")
FATES = (
    "rejected",
    "failed to build",
    "incorrect",
    "crashed",
    "timed out",
    "disturbed",
    "cancelled",
    "impossibly fast",
    *TIMED,
)
"""Every way a candidate can end, in the order of the stages."""


def _fate(trial: Trial) -> str:
    match trial.verdict:
        case Rejected():
            return "rejected"
        case BuildFailed():
            return "failed to build"
        case Incorrect():
            return "incorrect"
        case Crashed():
            return "crashed"
        case TimedOut():
            return "timed out"
        case Disturbed():
            return "disturbed"
        case Cancelled():
            return "cancelled"
        case Impossible():
            return "impossibly fast"
        case Measured(measurement=m):
            if m.comparison == "FASTER":
                return "faster" if trial.fidelity == "confirm" else "faster in search alone"
            return {"SLOWER": "slower", "SAME": "the same"}.get(m.comparison, "inconclusive")
