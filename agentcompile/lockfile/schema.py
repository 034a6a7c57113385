"""The lock's tables as dataclasses; a field `lock_version` is the key `lock-version` in the file.

Times are integers in ns, ratios decimal strings, sets sorted lists; there are no clock times, host names, absolute
paths or secrets, so that one run directory always gives the same bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from agentcompile.ir.target import Target
from agentcompile.ir.template import ParamValue
from agentcompile.ir.trial import Rule

VERSION = 1
"""The version of the format; a greater one is refused.

A lock with a greater revision is read, ignoring its unknown keys.
"""
REVISION = 1
"""The revision of the format; from 1 on the evidence has a hash of its own."""


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
        """Return `target` in the form that a lock has it."""
        told = {**asdict(target), "isa": tuple(sorted(target.isa)), "libraries": dict(sorted(target.libraries))}
        return cls(**told)

    def target(self) -> Target:
        """Return the target as the compiler has it; digests made from it equal those of the original."""
        return Target(**{**asdict(self), "libraries": tuple(sorted(self.libraries.items()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class LockModel:
    """The checkpoint: digests decide, the name and the location are for people and for finding it again."""

    name: str
    architecture: str
    location: str = ""
    """The place of the directory or GGUF file: `preset:NAME`, or relative to the lock; empty when it is elsewhere."""
    dtype: str
    context: int
    """Tokens that the KV cache holds."""
    config: str
    graphs: dict[str, str]
    weights: str
    gguf: str = ""
    """The name of the GGUF file that the checkpoint was converted from, or of its first part; empty for none."""
    gguf_sha256: str = ""
    """The SHA-256 of that file, in hex; of a split model, that of its parts' SHA-256 in hex, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPolicy:
    """Tolerances and timing protocol in force, and their digest."""

    digest: str
    choose: Rule = "admitted"
    """The rule by which choices were made from what was measured."""
    settings: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockChoice:
    """What one region runs; `template` is empty for the fallback."""

    region: str
    name: str
    sites: int
    """Number of the region's occurrences that run it."""
    at: tuple[int, ...] = ()
    """The occurrences that run it, as indices in the order of the graph; empty for all of them."""
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
    """The choices that serve one regime, ordered by region name and id."""

    phase: Literal["decode", "prefill"]
    batch: int
    context: tuple[int, int]
    exact: bool
    chunk: int = 0
    """Of a prefill plan on a CPU, the tokens of the chunks in which prompts run.

    0 means 256, or what the KV cache holds where that is less. The kernels of longer chunks are the same choices, made
    for as many tokens. Where kernels serve all of a chunk, a token has the same bits in chunks of any length.
    """
    steps_up_to: int = 0
    """The most tokens of a prompt that run through decode steps and not as a chunk, as no more of it are left.

    Decode steps round in another order than chunks do: such tokens have the bits of decode steps.
    """
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
    """Whether other processes disturbed the rounds so much that the ratio is only an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """What was measured for a plan in the whole step."""

    phase: Literal["decode", "prefill"]
    batch: int = 1
    context: tuple[int, int] = (0, 0)
    step_ns: int
    """The median of the step; of a prefill plan, that of a chunk of 256 tokens.

    The chunk is shorter where the KV cache holds fewer tokens.
    """
    baseline_ns: int
    log_ratio: str
    half_width: str
    contended: bool = False
    """Whether it is contended, as for a region: the ratio is an estimate, with the interval that its rounds give."""
    disturbed: str = "0.000"
    """Share of its rounds that other processes disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEvidence:
    """What was measured for the length of chunks, or for the longest prompt that runs through decode steps."""

    tokens: int
    """Tokens of the prompt that was timed."""
    chunk: int
    """Tokens of its chunks; 0 for decode steps."""
    median_ns: int
    baseline_ns: int
    """The same prompt in chunks of the usual length, in the same rounds."""
    log_ratio: str
    half_width: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvidence:
    """The whole model in one phase compared with float32, over seeded prompts and completions; in nats per token."""

    phase: Literal["decode", "prefill"]
    oracle: str
    """The reference that ran in float32."""
    seed: int
    prompts: tuple[int, ...]
    """Lengths of the prompts in tokens."""
    positions: int
    """Number of positions that were compared."""
    kl: str
    """Mean KL(float32 || compiled)."""
    kl_eager: str
    kl_worst: str
    """The greatest KL at one position."""
    log_perplexity_ratio: str
    half_width: str
    mismatches: int
    beyond_top: int
    verdict: Literal["pass"] = "pass"
    """The verdict, always `pass`: no lock is written with another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured; left out of the content hash, so that measuring again does not make another lock."""

    regions: tuple[RegionEvidence, ...] = ()
    steps: tuple[StepEvidence, ...] = ()
    prompts: tuple[PromptEvidence, ...] = ()
    """Why prompts run otherwise than usual; empty where they do not."""
    model: tuple[ModelEvidence, ...] = ()
    """One row for each phase; empty in locks from before there was such a check."""
    advice: tuple[str, ...] = ()
    """Digests of the adviser's exchanges; replay needs none of them."""
    strategy: str = ""
    """The name in `agentcompile.search` of the strategy that searched; empty in locks from before it was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """One lockfile."""

    lock_version: int = VERSION
    revision: int = REVISION
    content_hash: str = ""
    """Hash of everything but the hashes and the evidence.

    It shows that the decisions are as they were written. It is not a signature: whoever can write the file can compute
    it again.
    """
    evidence_hash: str = ""
    """Hash of `evidence`, which shows that it is as it was written; empty in locks before revision 1."""
    target: LockTarget
    model: LockModel
    policy: LockPolicy
    layouts: dict[str, str]
    """Checkpoint tensor to resident layout, for those that are not row-major."""
    plan: tuple[LockPlan, ...]
    evidence: Evidence
