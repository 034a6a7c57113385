"""The lock's tables as dataclasses. A field `lock_version` is the key `lock-version` in the file.

Times are integers in ns, ratios decimal strings, sets sorted lists; there are no clock times, host names,
absolute paths or secrets, so that one run directory always gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.target import Target
from agentcompile.ir.template import ParamValue
from agentcompile.ir.trial import Rule

VERSION = 1
"""A lock with a greater version is refused; one with a greater revision is read, unknown keys and all."""
REVISION = 1
"""From 1 on the evidence has a hash of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTarget:
    """The machine and toolchain that the choices were measured on."""

    kind: Literal["cpu", "cuda"]
    device: str
    arch: str
    isa: tuple[str, ...]
    threads: int
    cache_bytes: tuple[int, ...]
    line_bytes: int
    toolchain: str
    libraries: dict[str, str]

    @classmethod
    def of(cls, target: Target) -> LockTarget:
        """The lock's form of `target`."""
        return cls(
            kind=target.kind,
            device=target.device,
            arch=target.arch,
            isa=tuple(sorted(target.isa)),
            threads=target.threads,
            cache_bytes=target.cache_bytes,
            line_bytes=target.line_bytes,
            toolchain=target.toolchain,
            libraries=dict(sorted(target.libraries)),
        )

    def target(self) -> Target:
        """The target as the compiler knows it: digests made from it equal the original's."""
        return Target(
            kind=self.kind,
            device=self.device,
            arch=self.arch,
            isa=self.isa,
            threads=self.threads,
            cache_bytes=self.cache_bytes,
            line_bytes=self.line_bytes,
            toolchain=self.toolchain,
            libraries=tuple(sorted(self.libraries.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockModel:
    """Which checkpoint: digests decide, the name and the location are for people and for finding it again."""

    name: str
    architecture: str
    location: str = ""
    """`preset:NAME`, or a path relative to the lock; empty when the checkpoint is elsewhere."""
    dtype: str
    context: int
    """Tokens of the KV cache."""
    config: str
    graphs: dict[str, str]
    """Phase to graph digest."""
    weights: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPolicy:
    """Tolerances and timing protocol in force, and their digest."""

    digest: str
    choose: Rule = "admitted"
    """How choices were made of what was found."""
    settings: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChoice:
    """What one region runs. `template` is empty for the fallback."""

    region: str
    name: str
    sites: int
    """Occurrences that run it."""
    at: tuple[int, ...] = ()
    """Which ones, as indices in the order of the graph; empty: all of the region's."""
    use: Literal["kernel", "fallback"]
    template: str = ""
    template_digest: str = ""
    params: dict[str, ParamValue]
    source: str = ""
    decided_by: Literal["measured", "adviser", "human", "fallback"]
    reason: str = ""
    approval: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """The choices that serve one regime, in the order of the regions' ids."""

    phase: Literal["decode", "prefill"]
    batch: int
    context: tuple[int, int]
    exact: bool
    choices: tuple[LockChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEvidence:
    """What was measured for a choice; `samples` is a digest over the trials of its region."""

    region: str
    median_ns: int
    baseline_ns: int
    baseline: str
    log_ratio: str
    half_width: str
    error_ratio: str
    samples: str
    contended: bool = False
    """Whether others on the machine kept it from being told from its baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """What was measured for a whole step, in the step."""

    phase: Literal["decode", "prefill"]
    batch: int = 1
    context: tuple[int, int] = (0, 0)
    step_ns: int
    """Of a prefill plan, which has one on a GPU alone: a chunk of 256 tokens, or of all that the cache holds."""
    baseline_ns: int
    log_ratio: str
    half_width: str
    contended: bool = False
    """As of a region: the ratio is an estimate, with the interval that its rounds give."""
    disturbed: str = "0.000"
    """Share of its rounds that others on the machine disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvidence:
    """The whole model of one phase beside float32, over seeded prompts and what follows them; in nats a token."""

    phase: Literal["decode", "prefill"]
    oracle: str
    """What ran in float32."""
    seed: int
    prompts: tuple[int, ...]
    """Their lengths in tokens."""
    positions: int
    """Compared."""
    kl: str
    """Mean KL(float32 || compiled)."""
    kl_eager: str
    kl_worst: str
    """The greatest at one position."""
    log_perplexity_ratio: str
    half_width: str
    mismatches: int
    beyond_top: int
    verdict: Literal["pass"] = "pass"
    """No lock is written with another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Left out of the content hash: re-measuring on the same machine does not make another lock."""

    regions: tuple[RegionEvidence, ...] = ()
    steps: tuple[StepEvidence, ...] = ()
    model: tuple[ModelEvidence, ...] = ()
    """Of both phases; empty in locks from before there was such a check."""
    advice: tuple[str, ...] = ()
    """Digests of the adviser's exchanges; replay needs none of them."""
    strategy: str = ""
    """What searched the regions, by its name in `agentcompile.search`; empty in locks from before it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """One lockfile."""

    lock_version: int = VERSION
    revision: int = REVISION
    content_hash: str = ""
    """Over everything but itself and the evidence. It says that the decisions are as they were written; it is no
    signature: whoever can write the file can seal it again."""
    evidence_hash: str = ""
    """Over `evidence`, which thus is as it was written too. Empty in locks before revision 1."""
    target: LockTarget
    model: LockModel
    policy: LockPolicy
    layouts: dict[str, str]
    """Checkpoint tensor to resident layout, for those that are not row-major."""
    plan: tuple[LockPlan, ...]
    evidence: Evidence
