"""The vocabulary of kernels that language models write: what is asked for, what was written, what became of it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

from agentcompile.ir.digest import Json, canonical, digest
from agentcompile.ir.trial import Verdict

Role = Literal["plan", "code", "debug"]
"""What an agent does: say what to change and where, write it, or mend what failed (STARK, arXiv 2510.16996)."""
WrittenLanguage = Literal["cpp", "cuda", "triton"]


MOST_POINTS = 4
"""The most points of a written template that are evaluated beside its default."""
AGREE = 1.25
"""Ratio of two times of one program above which one of them was taken while the machine was busy, or on another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times to beat, in ns of one launch, all from the same rounds."""

    reference_ns: float
    """The time of the captured operators in PyTorch."""
    incumbent_ns: float
    """The time of the fastest kernel that is known, or of PyTorch where there is none."""
    arms: str = "null"
    """What a contract shows of PyTorch's forms, as JSON; null for a region."""

    def agree(self, other: Times) -> bool:
        """Return whether each time is that of `other`, but for a quarter."""
        return max(self._apart(other)) <= math.log(AGREE)

    def nearer(self, other: Times, seen: Times) -> bool:
        """Return whether these times are nearer to those `seen` than `other` is."""
        return sum(self._apart(seen)) < sum(other._apart(seen))

    def refuted_by(self, seen: Times, *, calm: bool) -> bool:
        """Return whether rounds with the same programs show that these times have to be taken anew.

        Other processes only lengthen times: shorter ones always count, longer ones where the machine was `calm`.
        """
        if self.agree(seen):
            return False
        return calm or seen.reference_ns * AGREE < self.reference_ns or seen.incumbent_ns * AGREE < self.incumbent_ns

    def _apart(self, other: Times) -> tuple[float, float]:
        pairs = ((self.reference_ns, other.reference_ns), (self.incumbent_ns, other.incumbent_ns))
        first, second = (abs(math.log(max(one, 1e-3) / max(two, 1e-3))) for one, two in pairs)
        return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a written kernel must do: all that an agent may know of the region, and the bars to pass."""

    region: str
    """The region's id."""
    kind: str
    language: WrittenLanguage
    interface: Json
    """Ports with shapes, dtypes, layouts and strides; operators; preconditions; tolerance; how the kernel is called."""
    floor_ns: float
    """The least time that the bytes and FLOPs allow at the machine's measured rates: the roofline; 0 for not known."""
    reference_ns: float
    """The time of the captured operators in PyTorch."""
    incumbent_ns: float
    """The time of the fastest admitted kernel, or of PyTorch where there is none: the bar."""
    measured: Json = None
    """What else was measured on this machine: its rates, which of them limits, PyTorch's arms."""

    @property
    def times(self) -> Times:
        """The times to beat."""
        arms = self.measured.get("baseline") if isinstance(self.measured, dict) else None
        told = canonical(arms).decode()
        return Times(reference_ns=self.reference_ns, incumbent_ns=self.incumbent_ns, arms=told)

    @property
    def digest(self) -> str:
        """The identity of what is asked for; what was measured is left out."""
        return digest("contract/1", self.region, self.kind, self.language, self.interface)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A template as an agent wrote it."""

    manifest: str
    """The text of ``template.toml``."""
    kernel: str
    """The text of the kernel file."""

    @functools.cached_property
    def digest(self) -> str:
        """The identity of both texts."""
        return digest("written/1", self.manifest, self.kernel)

    @property
    def variant(self) -> str:
        """The name of its folder among templates where a person gives none."""
        return f"written-{self.digest[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What the gates say of a written template."""

    verdict: Verdict
    ns: float = math.inf
    """Its time in isolation; infinity where it failed."""
    over_reference: float = math.inf
    """Its time divided by the reference's in the same rounds; infinity where they were not timed together."""
    times: Times | None = None
    """The times to beat as the evaluator knows them now; None where it knows none but the contract's."""
    feedback: Json = None
    """For the next question: log, failed check, registers, bandwidth, time against the floor."""


class AttemptEvaluator(Protocol):
    """The gates: check, build, validation, measurement."""

    def evaluate(self, written: Written) -> Evaluated:
        """Evaluate a template; a fault of the template is a verdict, never an exception."""
        ...
