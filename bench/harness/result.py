"""What a run of the suite found, as one versioned JSON file, and how such a file is read back.

Times are seconds, rates per second, sizes bytes. A ratio above 1 says that the arm is faster than the baseline. The
single generations that medians come from lie in a file beside, whose digest is here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import digest
from agentcompile.ir.target import Target

FORMAT = 4
"""The version of the file; a greater one is refused."""
Mode = Literal["greedy", "sampled"]
State = Literal["measured", "absent", "failed", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one quantity over the generations of all kept rounds."""

    median: float
    p95: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio as the mean of logarithms, paired by round, with a two-sided 95 % t interval, widened by the run's
    `luck` where that is known."""

    value: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm in one case."""

    name: str
    state: State
    """``absent``: not installed here; ``failed``: it crashed, hung or ran out of memory; ``wrong``: its output is."""
    reason: str = ""
    """Why it is not measured; empty when it is."""
    facts: dict[str, str] = field(default_factory=dict)
    """Versions and settings."""
    first_s: Spread | None = None
    """Until the first new token."""
    token_s: Spread | None = None
    """Time per output token: of one generation after its first token, over the tokens after it."""
    total_s: Spread | None = None
    tokens_per_s: float | None = None
    """1 / the median time per output token."""
    peak_memory_bytes: int | None = None
    load_s: tuple[float, ...] = ()
    """Of every process that loaded alone."""
    compile_s: float | None = None
    joules_per_token: float | None = None
    agrees: str | None = None
    """Empty: its greedy tokens hold the mutual top-5 rule against fp32; None: not compared; else what is wrong."""
    same: bool = True
    """Whether every generation of a process gave the same tokens; of our own arms, one that does not has failed."""
    times_floor: float | None = None
    """Its median time per output token over the time that reading the case's bytes takes."""
    speedup: Interval | None = None
    """Of its time per output token beside the case's baseline; None for the baseline itself."""
    first_speedup: Interval | None = None
    """Of its time to the first token."""

    @property
    def away(self) -> str:
        """What became of it, for people; empty for one that is measured."""
        return "" if self.state == "measured" else ": ".join(filter(None, (self.state, self.reason)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """One round: the mean of an arm's visits, by arm."""

    process: int
    kept: bool
    """False: others disturbed it, and it is in no median and no interval."""
    token_s: dict[str, float]
    first_s: dict[str, float]
    read_bytes_per_s: float
    machine: str = ""
    """Which one it was timed on, as a short digest; empty where nobody asked."""
    others: float = 0.0
    """Most that others took of all processors during one of its visits."""
    waited: dict[str, float] = field(default_factory=dict)
    """By arm, the largest share of a visit that its threads were ready and had no core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a token must read at least, and how fast this machine reads in the same process."""

    weight_bytes: int
    cache_bytes: int
    """Keys and values at the mean context of the generation."""
    read_bytes_per_s: float
    flops_per_s: float

    @property
    def token_s(self) -> float:
        """Seconds a token takes at least."""
        return (self.weight_bytes + self.cache_bytes) / self.read_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionShare:
    """What one region of the decode step takes, by its own trial."""

    name: str
    kind: str
    sites: int
    ns: float
    """Of one site."""
    floor_ns: float
    choice: str
    """The template with its parameters, or ``pytorch``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A lock that the suite's own arm ran."""

    lock: str
    """Its content hash."""
    compile_s: float | None
    """None: it was given, not compiled in this run."""
    regions: tuple[RegionShare, ...]
    weights: str = ""
    """SHA-256 of the checkpoint's weights, as the lock has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindShare:
    """What all regions of a kind take of a rung's token."""

    kind: str
    sites: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who owns a part of a gain: operators that are whole regions in both rungs, or the change itself."""

    name: str
    before_s: float
    after_s: float

    @property
    def gain_s(self) -> float:
        """Seconds of a token that it takes less; below 0 when it takes more."""
        return self.before_s - self.after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a rung gains over the nearest one below it that was measured, in seconds of a token."""

    over: str
    before_s: float
    after_s: float
    owners: tuple[Owner, ...]
    """With `rest` they sum to the whole gain."""
    rest: Owner
    """What no region takes."""
    speedup: Interval | None = None
    """Paired by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung of a ladder; its times are those of the arm of its name."""

    name: str
    about: str
    """What runs, precisely."""
    choose: str = ""
    """The rule of choice of its lock; empty: it runs none."""
    lock: str = ""
    """The lock's content hash."""
    shares: tuple[KindShare, ...] = ()
    """Of the time a token takes, by kind of region, largest first."""
    rest: float | None = None
    """The share that no region takes; None where nobody looked."""
    looked: str = ""
    """How shares were found, or why there are none."""
    gain: Gain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload on one model in one mode, with all its arms."""

    model: str
    workload: str
    mode: Mode
    prompt_tokens: int
    new_tokens: int
    baseline: str
    """The arm that speed-ups are beside."""
    floor: Floor | None
    arms: tuple[ArmResult, ...]
    rounds: tuple[RoundTimes, ...]
    prompt: str = ""
    """SHA-256 of the prompt's token ids; empty in files that are older than it."""
    checked_tokens: int = 0
    """How many of the new tokens were held against fp32's, at most."""
    reference: str = ""
    """Why fp32 said nothing to hold outputs against; empty when it did."""
    samples: str = ""
    """SHA-256 of this case's entry in the file of samples."""
    rungs: tuple[Rung, ...] = ()
    """Of a ladder, from the lowest to the highest; none for a case of arms that are peers."""

    @property
    def key(self) -> str:
        """For people and for pairing two files: ``MODEL/WORKLOAD/MODE``."""
        return f"{self.model}/{self.workload}/{self.mode}"

    def arm(self, name: str) -> ArmResult | None:
        """The arm called `name`, or None."""
        return next((arm for arm in self.arms if arm.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """One run of the suite."""

    format: int = FORMAT
    made: str
    """UTC, ISO 8601."""
    command: str
    revision: str
    changed_since: bool
    suite: str
    machine: Target
    environment: dict[str, str]
    """Versions and settings that all arms share: Python, PyTorch, driver, threads, clocks, governor."""
    policy: str
    """Digest of the timing protocol."""
    seed: int
    resumed: int = 0
    cases: tuple[Case, ...]
    compiled: dict[str, Compiled] = field(default_factory=dict)
    """By model."""
    luck: dict[str, float] = field(default_factory=dict)
    """By ``token`` and ``first``: how many times what rounds say the variance of a mean is, by how much processes
    differ; empty where there are too few processes to tell, and intervals know of rounds alone."""

    def sources(self, digits: int | None = None) -> str:
        """The revision for people, `digits` of it, and whether the sources were changed since."""
        return self.revision[:digits] + (" with changes" if self.changed_since else "")


def write_result(path: Path, result: SuiteResult) -> None:
    """Write `result` as JSON. Raises as `write_text` does."""
    write_text(path, json.dumps(encode(result), indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file of a run. Raises AgentCompileError (environment) when that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "make room, or name another file with --out; --resume goes on from what was found"
        raise AgentCompileError(
            f"{path}: {error.strerror or error}", exit_code=ExitCode.ENVIRONMENT, hint=hint
        ) from error


def read_result(path: Path) -> SuiteResult:
    """Read a result file. Raises AgentCompileError for one that is missing, damaged or of a newer format."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AgentCompileError(
            f"{path}: {error.strerror}", hint="name a file that `agentcompile bench` wrote"
        ) from error
    except ValueError as error:
        raise AgentCompileError(f"{path}: is no JSON: {error}", hint="make it again with agentcompile bench") from error
    found = data.get("format") if isinstance(data, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise AgentCompileError(f"{path}: format: is no result of the suite", hint="make it with agentcompile bench")
    if found > FORMAT:
        text = f"{path}: format: {found} is newer than {FORMAT}, the newest this version reads"
        raise AgentCompileError(text, hint="read it with the version of agentcompile that wrote it, or a later one")
    try:
        result: SuiteResult = decode(SuiteResult, data)
    except CodecError as error:
        raise AgentCompileError(f"{path}: {error}", hint="make it again with agentcompile bench") from error
    return result


def samples_digest(samples: object) -> str:
    """Identity of a case's single generations."""
    return digest("suite-samples/1", encode(samples))
