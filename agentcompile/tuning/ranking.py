"""Rankings made from the trials of a region: the best kernels of each layout, and the fallback with its reason.

Pure functions. `search` trials only pick the finalists; `confirm` trials alone decide. A kernel that is FASTER than the
baseline replaces it. On a busy machine so does one that is inconclusive because of other processes but faster by its
estimate: its reason says so, and timing in the whole step decides. Kernels are ranked within each layout signature,
because the cover agrees on layouts over all regions that share a weight, and because a winner that the step rejects is
replaced by the next one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentcompile.ir.graph import Phase
from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import Choice, Fallback, Kernel, Measured, Measurement, Trial
from agentcompile.measure.policy import POLICY
from agentcompile.runs.tables import estimate

TIE = 0.005
"""Relative difference: kernels nearer than this to the best are tied, and traits decide between them."""

LEAVING_NS: Mapping[Phase, float] = {"decode": 20_000.0, "prefill": 50_000.0}
"""Extra time in ns that a region in PyTorch costs a CPU's decode step, or a chunk of a prompt, between kernels, beside
its own time: the step leaves native code for it, and threads that went to sleep must be woken. Measured on two cores:
51 us more for a table of positions in a decode step, 64 us for an argmax; the operators themselves take less than half
of that. In a chunk a small operator costs no more than there, a larger one some 100 us, as PyTorch's threads begin for
it and end: the number lies between."""

UNCONFIRMED = 2
"""The kernels of each layout that a plan may take though there was no time to confirm any of their region's."""

Signature = tuple[tuple[str, str], ...]
"""Sorted (port family, layout) pairs, without those that are `row-major`."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Traits:
    """Tie-breakers between kernels: fewer risk flags, then less workspace."""

    risks: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Kernels of one region that beat its baseline, by layout signature and best first, and the fallback."""

    kernels: tuple[tuple[Signature, tuple[Kernel, ...]], ...]
    fallback: Fallback
    near: tuple[tuple[Signature, tuple[Kernel, ...]], ...] = ()
    """Correct kernels that do not beat PyTorch in isolation, but are slower than it by less than `LEAVING_NS`; and the
    fastest in search, of a region for which there was no time to confirm any. The whole step, or chunk, decides."""

    @property
    def best(self) -> Kernel | Fallback:
        """The fastest kernel of all layouts, or the fallback where there is none."""
        heads = [kernels[0] for _, kernels in self.kernels]
        return max(heads, key=lambda kernel: kernel.speedup, default=self.fallback)

    def is_near(self, choice: Choice) -> bool:
        """Return whether `choice` is a kernel of `near`, chosen only because it keeps the step in native code."""
        return any(choice in kernels for _, kernels in self.near)


def signature_of(template: Template) -> Signature:
    """Return the layout signature of a template: the layouts other than row-major that it asks for."""
    return tuple(sorted((family, layout) for family, layout in template.layouts if layout != "row-major"))


def finalists(
    trials: Sequence[Trial], templates: Mapping[str, Template], *, each: int, others: int | None = None
) -> tuple[Candidate, ...]:
    """Return the candidates to confirm on fresh data: the best `each` of every layout signature, best first.

    `others`, where given, is the number for signatures other than the best candidate's. A candidate is ordered by its
    longest search measurement, and left out when any of its search trials failed.
    """
    searched = [trial for trial in trials if trial.fidelity == "search"]
    failed = {trial.candidate.id for trial in searched if not isinstance(trial.verdict, Measured)}
    longest: dict[str, Trial] = {}
    for trial in searched:
        known = longest.get(trial.candidate.id, trial)
        if trial.candidate.id not in failed and _measurement(trial).rounds >= _measurement(known).rounds:
            longest[trial.candidate.id] = trial
    taken = Counter[Signature]()
    kept = list[Candidate]()
    for trial in sorted(longest.values(), key=lambda trial: (-_log_ratio(trial), trial.candidate.id)):
        signature = signature_of(templates[trial.candidate.template])
        taken[signature] += 1
        most = each if others is None or signature == next(iter(taken)) else others
        if taken[signature] <= most:
            kept.append(trial.candidate)
    return tuple(kept)


def rank(
    trials: Sequence[Trial], templates: Mapping[str, Template], *, traits: Callable[[Candidate], Traits]
) -> Ranking:
    """Rank the confirmed kernels that are FASTER than the baseline, or seem faster on a busy machine.

    The fallback's reason says why the other candidates are not used. The last confirm trial of a candidate counts.
    `trials` may hold every trial of the region: where one is confirmed, search trials only enter the fallback's reason.
    """
    last = {trial.candidate.id: trial for trial in trials if trial.fidelity == "confirm"}
    timed = [(trial, trial.verdict.measurement) for trial in last.values() if isinstance(trial.verdict, Measured)]

    def ordered(some: Sequence[Trial]) -> tuple[tuple[Signature, tuple[Kernel, ...]], ...]:
        by_layout: dict[Signature, list[Trial]] = {}
        for trial in some:
            by_layout.setdefault(signature_of(templates[trial.candidate.template]), []).append(trial)
        return tuple(
            (signature, tuple(_kernel(trial) for trial in _ordered(by_layout[signature], traits)))
            for signature in sorted(by_layout)
        )

    near = [trial for trial, m in timed if not _wins(m) and _is_near(trial, m)]
    return Ranking(
        kernels=ordered([trial for trial, m in timed if _wins(m)]),
        fallback=Fallback(reason=why_fallback(trials)),
        near=ordered(near if last else _fastest(trials, templates)),
    )


def _fastest(trials: Sequence[Trial], templates: Mapping[str, Template]) -> list[Trial]:
    """Return the search trials of those finalists that were faster than the baseline."""
    wanted = {candidate.id for candidate in finalists(trials, templates, each=UNCONFIRMED)}
    last = {trial.candidate.id: trial for trial in trials if trial.candidate.id in wanted}
    return [trial for trial in last.values() if _measurement(trial).comparison == "FASTER"]


def _is_near(trial: Trial, m: Measurement) -> bool:
    return m.median_ns - m.baseline_ns < LEAVING_NS[trial.candidate.regime.phase]


def _wins(m: Measurement) -> bool:
    return m.comparison == "FASTER" or seems_faster(m)


def seems_faster(m: Measurement) -> bool:
    """Return whether a kernel is faster by its estimate, but inconclusive because the timing was disturbed."""
    return m.comparison == "INCONCLUSIVE" and m.contended and m.log_ratio > math.log1p(POLICY.claim)


def _ordered(trials: Sequence[Trial], traits: Callable[[Candidate], Traits]) -> list[Trial]:
    """Return the trials best first; of those tied with the best, the one with the better traits comes first."""
    left, ordered = sorted(trials, key=lambda trial: -_log_ratio(trial)), list[Trial]()
    while left:
        best = _log_ratio(left[0])
        equals = [trial for trial in left if best - _log_ratio(trial) <= math.log1p(TIE)]
        chosen = min(equals, key=lambda trial: (traits(trial.candidate), trial.candidate.id))
        ordered.append(chosen)
        left.remove(chosen)
    return ordered


def _kernel(trial: Trial) -> Kernel:
    assert isinstance(trial.verdict, Measured)
    m = trial.verdict.measurement
    about = estimate(m)
    reason = f"{f'about {about}' if about else f'{m.speedup:.3f}'}x {m.baseline}"
    if trial.fidelity == "search":
        reason += " in search"
    elif not m.contended:
        reason += f" in {m.rounds} paired rounds of {m.processes} processes"
    if m.contended:
        reason += f", contended: {m.disturbed:.0%} of the rounds disturbed"
    if trial.fidelity == "search":
        reason += "; there was no time to confirm it"
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


def why_fallback(trials: Sequence[Trial]) -> str:
    """Return why no kernel is used: how many candidates ended in which way by their last trial, and the nearest one.

    ``no kernel is faster: of 40 candidates 3 failed to build, 1 incorrect, 36 slower; the nearest, …, ran at
    0.970x pytorch``. Where some are inconclusive it says that no kernel was shown to be faster.
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
_FAILED = {
    "rejected": "rejected", "build-failed": "failed to build", "incorrect": "incorrect", "crashed": "crashed",
    "timed-out": "timed out", "disturbed": "disturbed", "cancelled": "cancelled", "impossible": "impossibly fast",
}  # fmt: skip
FATES = (*_FAILED.values(), *TIMED)
"""Every way in which a candidate can end, in the order of the stages of its evaluation."""


def _fate(trial: Trial) -> str:
    if not isinstance(trial.verdict, Measured):
        return _FAILED[trial.verdict.kind]
    comparison = trial.verdict.measurement.comparison
    if comparison == "FASTER":
        return "faster" if trial.fidelity == "confirm" else "faster in search alone"
    return {"SLOWER": "slower", "SAME": "the same"}.get(comparison, "inconclusive")
