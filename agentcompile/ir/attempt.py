"""The vocabulary of kernels that language models write: what is asked for, what was written, what became of it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

from agentcompile.ir.digest import Json, digest
from agentcompile.ir.trial import Verdict

Role = Literal["plan", "code", "debug"]
"""What an agent does: say what to change and where, write it, or mend what failed (STARK, arXiv 2510.16996)."""
WrittenLanguage = Literal["cpp", "cuda", "triton"]


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
class Judged:
    """What the gates say of a written template."""

    verdict: Verdict
    ns: float = math.inf
    """Its time in isolation; infinity where it failed."""
    feedback: Json = None
    """For the next question: log, failed check, registers, bandwidth, time against the floor."""


class Judge(Protocol):
    """The gates: check, build, validation, measurement."""

    def judge(self, written: Written) -> Judged:
        """Judge a template; a fault of the template is a verdict, never an exception."""
        ...
