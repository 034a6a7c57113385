"""The results of candidates: findings, reports, measurements, verdicts, trials, choices, plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from agentcompile.ir.graph import Phase
from agentcompile.ir.region import Regime
from agentcompile.ir.rule import Rule as Rule
from agentcompile.ir.target import Residency
from agentcompile.ir.template import Candidate

Stage = Literal["check", "build", "validate", "measure", "admit"]
CONTENDED = 0.2
"""Share of disturbed rounds above which a measurement is only an estimate."""
NO_INTERVAL = 1e9
"""Half width of a ratio that has no interval, because too few rounds count: JSON has no infinity."""
WIDEST = 10.0
"""Half width, of the logarithm of a ratio, from which an interval says nothing: each end is 22,000 times away."""


def interval(log_ratio: float, half_width: float) -> tuple[float, float] | None:
    """Return the ends of a ratio's interval; None where there is none, or one that says nothing."""
    import math

    if not (half_width < WIDEST and math.isfinite(log_ratio)):
        return None
    return math.exp(log_ratio - half_width), math.exp(log_ratio + half_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of a static rule; errors stop a candidate before a compiler runs."""

    rule: str
    severity: Literal["error", "warning", "note"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One numeric check: what it measured against what it allows (1 against 0 for a yes/no check that failed)."""

    name: str
    ok: bool
    measured: float
    allowed: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericReport:
    """Every check of the correctness suite on one candidate."""

    checks: tuple[Check, ...]
    error_ratio: float
    """rms(y − r) / max(rms(eager − r), rms(round(r) − r)), the worst over the cases."""
    cases: int
    repeats: int

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    def and_of(self, other: NumericReport, where: str) -> NumericReport:
        """Return this report with the failed checks of `other`, of the same candidate at another length, `where`."""
        wrong = [replace(check, detail=f"{where}: {check.detail}") for check in other.checks if not check.ok]
        return NumericReport(
            checks=(*(check for check in self.checks if check.name not in {one.name for one in wrong}), *wrong),
            error_ratio=max(self.error_ratio, other.error_ratio),
            cases=self.cases + other.cases,
            repeats=self.repeats,
        )


Comparison = Literal["FASTER", "SLOWER", "SAME", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One candidate timed beside a baseline in paired rounds; times are per launch."""

    median_ns: int
    """Median over the rounds that count, as is the baseline's."""
    p95_ns: int
    """95th percentile over all intervals."""
    baseline_ns: int
    baseline: str
    """The other arm: `pytorch` or a candidate's label."""
    log_ratio: float
    """Mean of ln(baseline / candidate) over rounds: above 0 is faster."""
    half_width: float
    """Half the confidence interval of `log_ratio`."""
    comparison: Comparison
    rounds: int
    dropped: int
    processes: int
    batch: int
    """Launches in one sample."""
    residency: Residency
    bytes_per_s: float
    """Compulsory bytes of the region over the median."""
    times_ns: tuple[int, ...] = ()
    """The candidate's own intervals in the order in which they were taken, contended ones too.

    They are picked evenly where there are more than are kept; empty in runs from before they were kept.
    """
    disturbed: float = 0.0
    """Share of the rounds that other processes disturbed: `dropped` ones, and those that were repeated."""
    asked: int = 0
    """Rounds that were requested: more than were taken where time was up; 0 in runs from before it was kept."""

    @property
    def contended(self) -> bool:
        """Whether other processes disturbed so many rounds that the ratio is an estimate."""
        return self.disturbed > CONTENDED

    @property
    def speedup(self) -> float:
        """The speedup over the baseline of the same rounds; above 1 is faster."""
        import math

        return math.exp(self.log_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A verdict: a static check rejected the candidate before a compiler ran."""

    kind: Literal["rejected"] = "rejected"
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailed:
    """A verdict: the compiler rejected the candidate."""

    kind: Literal["build-failed"] = "build-failed"
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incorrect:
    """A verdict: the candidate ran and failed a check of the correctness suite."""

    kind: Literal["incorrect"] = "incorrect"
    report: NumericReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """A verdict: the worker died in this stage; `signal` is 0 when it left with an exit code."""

    kind: Literal["crashed"] = "crashed"
    stage: Stage
    signal: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """A verdict: the stage exceeded its limit and the worker was killed."""

    kind: Literal["timed-out"] = "timed-out"
    stage: Stage
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A verdict: the worker was killed from outside in this stage (by a person, or out of memory), twice.

    It says nothing about the candidate, which does not ship unevaluated.
    """

    kind: Literal["disturbed"] = "disturbed"
    stage: Stage
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A verdict: a person cancelled the candidate in this stage, which says nothing about it."""

    kind: Literal["cancelled"] = "cancelled"
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A verdict: the candidate is correct and has a time beside its baseline."""

    kind: Literal["measured"] = "measured"
    report: NumericReport
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A verdict: the candidate is correct, but its time is below 0.9 of the floor at its own residency.

    It is quarantined, because the clock or the floor must be wrong.
    """

    kind: Literal["impossible"] = "impossible"
    report: NumericReport
    measurement: Measurement
    floor_ns: int


Verdict = Rejected | BuildFailed | Incorrect | Crashed | TimedOut | Disturbed | Cancelled | Impossible | Measured
Death = Crashed | TimedOut | Disturbed
"""Verdicts of a process that was timed and gave no time."""


def reason(verdict: Verdict) -> str:
    """Return why a candidate failed, on one line of at most 160 characters; empty for one that was measured."""
    match verdict:
        case Rejected(findings=findings):
            return "; ".join(f"{f.rule}: {f.text}" for f in findings if f.severity == "error")[:160]
        case BuildFailed(log=log):
            return next((line for line in log.splitlines() if "error" in line), log).strip()[:160]
        case Incorrect(report=report):
            failed = [check for check in report.checks if not check.ok]
            return "; ".join(f"{c.name}: {c.measured:.3g} > {c.allowed:.3g} {c.detail}".strip() for c in failed)[:160]
        case Crashed(stage=stage, signal=number, detail=detail):
            last = detail.strip().rpartition("\n")[2] if detail.lstrip().startswith("Traceback") else detail
            return f"in {stage}: {f'signal {number}' if number else '' if detail else 'exit'} {last}".strip()[:160]
        case TimedOut(stage=stage, limit_s=limit):
            return f"in {stage}, after {limit:g} s"
        case Disturbed(stage=stage, detail=detail):
            return f"in {stage}, twice, from outside: {detail}"[:160]
        case Cancelled(stage=stage):
            return f"in {stage}"
        case Impossible(measurement=measurement, floor_ns=floor_ns):
            return f"{measurement.median_ns} ns is below its roofline of {floor_ns} ns: the clock must be wrong"
        case Measured():
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate, the digest of its source and its verdict: the unit of history."""

    candidate: Candidate
    source: str
    verdict: Verdict
    fidelity: Literal["search", "confirm"] = "search"
    """`search` numbers only choose what to time again; `confirm` numbers decide."""
    reused: bool = False
    """Whether it came from the measurement database."""

    @property
    def rounds(self) -> int:
        """The paired rounds that were requested for it; a failure counts for any number."""
        if not isinstance(self.verdict, Measured):
            return 1 << 30
        m = self.verdict.measurement
        return max(m.asked, m.rounds + m.dropped)

    @property
    def cut(self) -> bool:
        """Whether time was up before all its rounds were taken."""
        if not isinstance(self.verdict, Measured):
            return False
        m = self.verdict.measurement
        return m.rounds + m.dropped < m.asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A choice: the region runs this candidate, because it measured faster, or somebody chose it without timing."""

    kind: Literal["kernel"] = "kernel"
    candidate: Candidate
    source: str
    speedup: float
    half_width: float
    decided_by: Literal["measured", "adviser", "human"] = "measured"
    reason: str = ""
    approval: str = ""
    """Digest of what a person saw who approved or chose it; empty when nobody did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A choice: the region runs as captured, in PyTorch, for this reason."""

    kind: Literal["fallback"] = "fallback"
    reason: str
    decided_by: Literal["fallback", "human"] = "fallback"
    approval: str = ""
    """Digest of what a person saw who rejected a kernel for it; empty when nobody did."""


Choice = Kernel | Fallback


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A person's decision on one region: an approval, a rejection (run it as captured), or an override."""

    region: str
    word: Literal["approve", "reject", "override"]
    candidate: Candidate | None = None
    """Candidate that an override runs; None for the others."""
    approval: str = ""
    """Digest of what was on the screen."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One region of a plan, the choice that serves it, and its sites; other sites may be partitioned otherwise."""

    region: str
    choice: Choice
    sites: tuple[int, ...] = ()
    """Indices into `Region.sites`; empty means every site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTime:
    """A prompt of `tokens` tokens timed in one way, beside chunks of the usual length in the same rounds."""

    tokens: int
    chunk: int
    """Tokens of its chunks; 0 for decode steps."""
    median_ns: int
    baseline_ns: int
    """Median in chunks of the usual length."""
    log_ratio: float
    half_width: float
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLengths:
    """How prompts run: the length of their chunks, and what is short enough for decode steps; by default as usual."""

    chunk: int = 0
    """Tokens of a chunk; 0 for the usual length, `CHUNK`, or what the cache holds where that is less."""
    steps_up_to: int = 0
    """The most tokens, of a prompt or left of it behind its last whole chunk, that run through decode steps."""
    times: tuple[PromptTime, ...] = ()
    """Every way that was timed; empty where the lengths are not measured."""

    @property
    def deciding(self) -> tuple[PromptTime, ...]:
        """The times that the lengths follow from, where they are not the usual ones."""
        return tuple(
            one
            for one in self.times
            if (one.chunk and one.chunk == self.chunk) or (not one.chunk and one.tokens == self.steps_up_to)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An exact partition of one regime's graph into regions whose quotient graph is acyclic."""

    regime: Regime
    parts: tuple[Part, ...]
    exact: bool
    """Whether the cover was solved exactly, or heuristically beyond the frontier width."""
    step_ns: int = 0
    """Median of the whole step as admitted, of a chunk for a prefill plan; 0 before admission."""
    baseline_ns: int = 0
    """Best baseline step of the same rounds."""
    log_ratio: float = 0.0
    half_width: float = 0.0
    chunk: int = 0
    """Tokens of the chunk that a prefill plan was admitted at; 0 for a decode plan, and for one that was not timed."""
    comparison: Comparison | None = None
    """Result of the rounds against the baseline; None before admission and in runs from before it was kept."""
    disturbed: float = 0.0
    """Share of those rounds that other processes on the machine disturbed."""
    prompts: PromptLengths = PromptLengths()
    """How prompts run through a prefill plan; as usual for a decode plan, which has none."""

    @property
    def phase(self) -> Phase:
        """The regime's phase."""
        return self.regime.phase

    @property
    def contended(self) -> bool:
        """Whether the timing was inconclusive or so disturbed by other processes that its ratio is an estimate."""
        return self.step_ns > 0 and (self.comparison == "INCONCLUSIVE" or self.disturbed > CONTENDED)


Layouts = tuple[tuple[str, str], ...]
"""Tensor name to resident layout, sorted, only those that are not `row-major`."""
