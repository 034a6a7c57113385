"""The result of a suite's run as one versioned JSON file, with functions that write and read it.

Times are in seconds, rates per second, sizes in bytes. A ratio above 1 means that the arm is faster than the baseline.
The single generations behind the medians are in a second file, whose digest is in the first.
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
"""The version of the file's format; files with a greater one are refused."""
Mode = Literal["greedy", "sampled"]
State = Literal["measured", "absent", "failed", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and 95th percentile of one quantity over the generations of all kept rounds."""

    median: float
    p95: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio, the mean of logarithms paired by round, with a two-sided 95 % t interval.

    The interval is widened by the run's design effect (`SuiteResult.luck`) where that is known.
    """

    value: float
    low: float
    high: float
    rounds: int

    @property
    def wide(self) -> bool:
        """Whether the ends are more than a factor of two apart, so that the size of the ratio is inconclusive."""
        return self.high > 2 * self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """The result of one arm in one case."""

    name: str
    state: State
    """``absent``: not installed here; ``failed``: crashed, hung or out of memory; ``wrong``: its output is wrong."""
    reason: str = ""
    """Why it was not measured; empty when it was."""
    facts: dict[str, str] = field(default_factory=dict)
    first_s: Spread | None = None
    """Time to the first new token (TTFT)."""
    token_s: Spread | None = None
    """Time per output token (TPOT): a generation's time after its first token, over the tokens after it."""
    total_s: Spread | None = None
    tokens_per_s: float | None = None
    """1 / the median time per output token."""
    peak_memory_bytes: int | None = None
    load_s: tuple[float, ...] = ()
    """Load times of all processes that loaded while no other did."""
    compile_s: float | None = None
    joules_per_token: float | None = None
    agrees: str | None = None
    """Empty: its greedy tokens hold the mutual top-5 rule against fp32; None: not compared; else what is wrong."""
    same: bool = True
    """Whether all generations of each process gave the same tokens; our own arms fail when they do not."""
    times_floor: float | None = None
    """Its median time per output token over the time that reading the case's bytes takes."""
    speedup: Interval | None = None
    """Speedup of the time per output token over the case's baseline; None for the baseline itself."""
    first_speedup: Interval | None = None
    """Speedup of the time to the first token over the case's baseline."""
    total_speedup: Interval | None = None
    """Speedup of a whole request, prompt included, over the case's baseline; None also in files older than this field.

    `agentcompile.bench.harness.means.with_totals` computes it from the rounds of such a file.
    """

    @property
    def away(self) -> str:
        """The state and the reason in words, for people; empty for a measured arm."""
        return "" if self.state == "measured" else ": ".join(filter(None, (self.state, self.reason)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """The times of one round, by arm the mean of its visits."""

    process: int
    kept: bool
    """False when other processes disturbed the round, which then counts in no median and no interval."""
    token_s: dict[str, float]
    first_s: dict[str, float]
    read_bytes_per_s: float
    machine: str = ""
    """A short digest of the machine that timed it; empty where it was not recorded."""
    others: float = 0.0
    """The largest share of all processors that other processes took during one of its visits."""
    waited: dict[str, float] = field(default_factory=dict)
    """By arm, the largest share of a visit's time that the arm's threads were ready and had no core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The bytes that a token must read at least, and how fast this machine reads them in the same process."""

    weight_bytes: int
    cache_bytes: int
    """Bytes of keys and values at the mean context of the generation."""
    read_bytes_per_s: float
    flops_per_s: float

    @property
    def token_s(self) -> float:
        """The least time of a token in seconds."""
        return (self.weight_bytes + self.cache_bytes) / self.read_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionShare:
    """The time of one region of the decode step, from its own trial."""

    name: str
    kind: str
    sites: int
    ns: float
    """Time of one site."""
    floor_ns: float
    choice: str
    """The template with its parameters, or ``pytorch``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A lock that our own arm ran."""

    lock: str
    """The lock's content hash."""
    compile_s: float | None
    """Time of its compilation; None when the lock was given and not compiled in this run."""
    regions: tuple[RegionShare, ...]
    weights: str = ""
    """SHA-256 of the checkpoint's weights, from the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindShare:
    """The share of a rung's time per token that all regions of a kind take."""

    kind: str
    sites: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of a part of a gain: operators that are whole regions in both rungs, or the change itself."""

    name: str
    before_s: float
    after_s: float

    @property
    def gain_s(self) -> float:
        """The time per token that it saves in seconds; below 0 when it takes more."""
        return self.before_s - self.after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The gain of a rung over `over`, the nearest measured rung below it, in seconds per token."""

    over: str
    before_s: float
    after_s: float
    owners: tuple[Owner, ...]
    """Parts of the gain, which together with `rest` sum to all of it."""
    rest: Owner
    """The part of the time that no region takes."""
    speedup: Interval | None = None
    """Speedup over that rung, paired by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung of a ladder; its times are those of the arm with its name."""

    name: str
    about: str
    """A precise description of what runs."""
    choose: str = ""
    """The value of `--choose` that its lock was compiled with; empty when it runs no lock."""
    lock: str = ""
    shares: tuple[KindShare, ...] = ()
    """Shares of the time per token by kind of region, largest first."""
    rest: float | None = None
    """The share that no region takes; None where shares were not measured."""
    looked: str = ""
    """How the shares were measured, or why there are none."""
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
    """The arm that speedups are relative to."""
    floor: Floor | None
    arms: tuple[ArmResult, ...]
    rounds: tuple[RoundTimes, ...]
    prompt: str = ""
    """SHA-256 of the prompt's token ids; empty in files older than this field."""
    checked_tokens: int = 0
    """The largest number of new tokens that were compared with fp32's; 0 when none were."""
    reference: str = ""
    """Why fp32 gave no tokens to compare with; empty when it did."""
    samples: str = ""
    """SHA-256 of this case's entry in the file of single generations."""
    rungs: tuple[Rung, ...] = ()
    """A ladder's rungs from the lowest to the highest; empty for a case whose arms are peers."""

    @property
    def key(self) -> str:
        """The case's name for people and for pairing two files: ``MODEL/WORKLOAD/MODE``."""
        return f"{self.model}/{self.workload}/{self.mode}"

    def arm(self, name: str) -> ArmResult | None:
        """Return the arm called `name`, or None."""
        return next((arm for arm in self.arms if arm.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """The result of one run of the suite."""

    format: int = FORMAT
    made: str
    """When it was made: UTC, in ISO 8601."""
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
    """The lock of our own arm by model."""
    luck: dict[str, float] = field(default_factory=dict)
    """By ``token`` and ``first``, the design effect: the factor by which differences between processes widen the
    variance of a mean.

    Empty where there are too few processes to estimate it, so that intervals contain the variance of rounds alone.
    """

    def sources(self, digits: int | None = None) -> str:
        """Return the first `digits` of the revision (None: all), and in words whether the sources changed since."""
        return self.revision[:digits] + (" with changes" if self.changed_since else "")


def write_result(path: Path, result: SuiteResult) -> None:
    """Write `result` as JSON.

    Raises:
        AgentCompileError: the file cannot be written (environment).
    """
    write_text(path, json.dumps(encode(result), indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file of a run, and its folder if that is missing.

    Raises:
        AgentCompileError: the file cannot be written (environment).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "make room, or name another file with --out; --resume goes on from what was found"
        raise AgentCompileError(
            f"{path}: {error.strerror or error}", exit_code=ExitCode.ENVIRONMENT, hint=hint
        ) from error


def results_in(folder: Path, pattern: str) -> list[Path]:
    """Return the results in a folder whose names match `pattern`, sorted, without the files of samples beside them."""
    return [path for path in sorted(folder.glob(pattern)) if not path.stem.endswith(".samples")]


def read_result(path: Path) -> SuiteResult:
    """Read a result file.

    Raises:
        AgentCompileError: it is missing, damaged or of a newer format (usage).
    """
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
    """Return the digest of a case's single generations."""
    return digest("suite-samples/1", encode(samples))
