"""The benchmark's workloads and suites, read from ``workloads.toml``."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from agentcompile.catalog.decode import from_value, hint_of, read_text
from agentcompile.errors import AgentCompileError

from .result import Mode
from .workload import Workload, make_workload

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One workload: the number of tokens of its prompt and the number of new tokens."""

    name: str
    prompt: int
    new: int
    about: str
    small: str = ""
    """The workload that it is a scaled-down version of; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The settings with which a sampled case draws its tokens."""

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The models, workloads, modes and arms that are run together."""

    name: str
    kind: Literal["cpu", "cuda"]
    models: tuple[str, ...]
    workloads: tuple[str, ...]
    modes: tuple[Mode, ...]
    arms: tuple[str, ...]
    baseline: str
    rounds: int
    """Number of rounds of every process."""
    processes: int
    context: int
    """Tokens of the KV cache that our arm is compiled for."""
    lock: dict[str, str] = field(default_factory=dict)
    """By model, a committed lock that is timed where it is valid; elsewhere one is compiled."""
    fresh: bool = True
    """Whether our lock is compiled with an empty store, so that its time is that of a first compile.

    Otherwise the user's store is used.
    """
    bounds: bool = False
    """Whether its result is compared with the committed bounds by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """The content of the file."""

    workload: tuple[Shape, ...]
    sampling: Sampling
    suite: tuple[Suite, ...]

    def shape(self, name: str) -> Shape:
        """Return the workload called `name`.

        Raises:
            AgentCompileError: there is none; the hint names the nearest (usage).
        """
        return _named(self.workload, name, "--workload")

    def of(self, name: str) -> Suite:
        """Return the suite called `name`.

        Raises:
            AgentCompileError: there is none; the hint names the nearest (usage).
        """
        return _named(self.suite, name, "--suite")


T = TypeVar("T", Shape, Suite)


def _named(known: tuple[T, ...], name: str, option: str) -> T:
    found = {one.name: one for one in known}
    if name not in found:
        raise AgentCompileError(f"{option}: {name!r}: there is none of this name", hint=hint_of(name, list(found)))
    return found[name]


@functools.cache
def load_workloads(path: Path = WORKLOADS) -> Workloads:
    """Read and check the file.

    Raises:
        AgentCompileError: it cannot be read or is invalid (usage); the message names file, key and value.
    """
    try:
        data = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise AgentCompileError(f"{path}: not TOML: {error}", hint="correct the syntax there") from error
    read = from_value(Workloads, _underscored(data), file=path.name)
    for fault in _faults(read):
        raise AgentCompileError(f"{path.name}: {fault}", hint="correct it there; every name is defined once")
    return read


def workload_of(model: str, path: Path, shape: Shape, mode: str, *, seed: int, kind: str) -> Workload:
    """Return the request of a case on the checkpoint at `path`; it samples where `mode` is ``sampled``."""
    sampling = asdict(load_workloads().sampling) if mode == "sampled" else None
    tokens = (shape.prompt, shape.new)
    return make_workload(f"{model}.{shape.name}.{mode}", path, seed=seed, kind=kind, tokens=tokens, sampling=sampling)


def _underscored(value: object) -> object:
    """Replace the dashes of all keys by underscores, but not in a table of locks, whose keys are names of models."""
    if isinstance(value, dict):
        return {key.replace("-", "_"): item if key == "lock" else _underscored(item) for key, item in value.items()}
    return [_underscored(item) for item in value] if isinstance(value, list) else value


def _faults(read: Workloads) -> list[str]:
    names = [one.name for one in read.workload]
    found = [f"workload: {name}: is defined twice" for name in _twice(names)]
    found += [f"suite: {name}: is defined twice" for name in _twice([suite.name for suite in read.suite])]
    for one in read.workload:
        found += _less(f"workload: {one.name}", "prompt", one.prompt, 1)
        found += _less(f"workload: {one.name}", "new", one.new, 2)  # TPOT is the time of the tokens after the first
        if one.small and one.small not in names:
            found.append(f"workload: {one.name}: small: {one.small!r} is no workload")
    for suite in read.suite:
        longest = max((one.prompt + one.new for one in read.workload if one.name in suite.workloads), default=0)
        found += [f"suite: {suite.name}: {name!r} is no workload" for name in suite.workloads if name not in names]
        if suite.baseline not in suite.arms:
            found.append(f"suite: {suite.name}: baseline: {suite.baseline!r} is none of its arms")
        if suite.context < longest:
            found.append(f"suite: {suite.name}: context: {suite.context} is less than the {longest} tokens it needs")
        found += _less(f"suite: {suite.name}", "rounds", suite.rounds, 1)
        found += _less(f"suite: {suite.name}", "processes", suite.processes, 1)
    if read.sampling.temperature <= 0:
        found.append(f"sampling: temperature: {read.sampling.temperature:g} is not more than 0")
    if not 0 < read.sampling.top_p <= 1:
        found.append(f"sampling: top-p: {read.sampling.top_p:g} is not in (0, 1]")
    return found


def _twice(names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _less(where: str, key: str, value: int, least: int) -> list[str]:
    return [f"{where}: {key}: {value} is less than {least}"] if value < least else []
