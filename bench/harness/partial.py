"""What a run has found so far, kept on disk so that a run that was cut goes on.

    CACHE/figures-KEY.json       everything found, written whole after each round and each fact of the start
    CACHE/figures-KEY/MODEL-…/   the lock that was compiled on the way, and the store it was compiled with

Invariant: the file is whole at any time, and what was found before `keep` returned is in it. The key is that of the
run's identity, so that nothing is mixed which cannot be compared.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, digest_bytes
from agentcompile.runs.session import write_atomically

from .identity import SAME_SUBJECT, Identity, differences, key_of
from .times import Build, Imported, Took
from .trial import Outcome

VERSION = 1
"""Of the file; another one is refused."""
FIRST_COMPILE = "first compile"
"""The name of the start-up fact that leaves a lock."""

Accuracy = dict[str, int | float | str | dict[str, float]]
"""What `accuracy.measure` returns."""


class OutOfTime(Exception):
    """The run's own time has gone, and there is still something to do."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """What is known of one checkpoint."""

    times: dict[str, Took] = field(default_factory=dict)
    """What a user waits for, by name."""
    folder: str = ""
    """Where lock and store of the first compilation lie, by name in the file's folder."""
    lock: str = ""
    """The digest of the bytes of the lock that was compiled; empty without one."""
    outcome: Outcome = field(default_factory=Outcome)
    accuracy: Accuracy | None = None
    accuracy_reason: str = ""
    """Why there is none, once it was tried."""

    def check(self, build: Build) -> None:
        """Raise AgentCompileError (usage) when lock or store are not there as the first compilation left them."""
        if digest_of_lock(build.lock) != self.lock:
            what = f"{build.lock}: is not the lock that was compiled and timed"
        elif build.home is not None and not build.home.is_dir():
            what = f"{build.home}: the store of the first compilation is gone"
        else:
            return
        raise AgentCompileError(what, hint="restore it, or leave --resume out to begin anew")

    def forget_failures(self, rounds: int) -> None:
        """What failed is tried again; an arm only when rounds are left of the `rounds` of all processes."""
        self.accuracy_reason = ""
        if len(self.outcome.rounds) < rounds:
            self.outcome.reasons = {}
            first = self.times.get(FIRST_COMPILE)
            if first is not None and first.reason:
                self.times = {}
        self.times = {name: took for name, took in self.times.items() if name == FIRST_COMPILE or not took.reason}

    def forget_others(self, machine: str, rounds: int) -> int:
        """Unless all of its `rounds` are there, drop those of a trial that another machine began: what two machines
        timed is not pooled. Returns how many."""
        known = self.outcome.rounds
        if len(known) >= rounds or all(timed.machine == machine for timed in known):
            return 0
        self.outcome.rounds = ()
        return len(known)


@dataclass(slots=True, kw_only=True)
class Partial:
    """The file's content."""

    version: int = VERSION
    identity: Identity
    resumed: int = 0
    """How many times the run was gone on with."""
    imported: Imported | None = None
    models: dict[str, Progress] = field(default_factory=dict)
    """By name of the checkpoint."""


class PartialFile:
    """The one writer of a run's partial result. Change `content`, then `keep`."""

    def __init__(
        self,
        path: Path,
        content: Partial,
        *,
        until_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.content = content
        self._until_s = until_s
        self._clock = clock
        self._kept = 0

    @property
    def folder(self) -> Path:
        """Beside the file, for what belongs to it."""
        return self.path.with_suffix("")

    def progress(self, model: str) -> Progress:
        """What is known of a checkpoint, to be added to."""
        return self.content.models.setdefault(model, Progress())

    def write(self) -> None:
        """Replace the file with the content. Raises AgentCompileError (environment) when that is impossible."""
        try:
            write_atomically(self.path, json.dumps(encode(self.content), indent=1, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            text = f"{self.path}: {error.strerror or error}"
            hint = "make room, or see that it can be written; --resume goes on from what was kept before"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error

    def keep(self) -> None:
        """Something was found, and is on disk when this returns. Raises as `write` does."""
        self.write()
        self._kept += 1

    def pause(self) -> None:
        """Called before anything that takes long. Raises OutOfTime when the run's own time has gone.

        Never before something was kept: a run that is gone on with again and again gets to its end, however short its
        turns are.
        """
        if self._until_s is not None and self._kept and self._clock() >= self._until_s:
            raise OutOfTime

    def remove(self) -> None:
        """The run has its result: nothing is left of the partial one."""
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def open_partial(
    cache: Path, identity: Identity, *, resume: bool, until_s: float | None, say: Callable[[str], None]
) -> Iterator[PartialFile]:
    """A run's partial result, held (flock) while the block runs: what a cut run left with `resume`, else empty.

    `until_s` is the time (of `time.monotonic`) when the run should stop. Raises AgentCompileError when the file is
    damaged (usage), when there is only one of a run on the same checkpoints and device that differs (usage; it names
    the differences), and when another process holds it or the folder cannot be written (environment).
    """
    path = cache / f"figures-{key_of(identity)}.json"
    with _held(path.with_suffix("")) as folder:
        content = _content(path, identity) if resume else None
        if content is None:
            if resume:
                say(f"{cache}: no run was cut there; this one begins")
            _empty(folder)
            content = Partial(identity=identity)
        else:
            content.resumed += 1
            rounds = sum(len(known.outcome.rounds) for known in content.models.values())
            say(f"{path}: goes on; {rounds} rounds are there")
        file = PartialFile(path, content, until_s=until_s)
        file.write()
        yield file


def read_partial(path: Path) -> Partial:
    """Read a partial result; raises AgentCompileError (usage) when it is damaged or of another version."""
    hint = "remove it, or leave --resume out: either begins anew"
    try:
        raw: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentCompileError(f"{path}: not a partial result ({error})", hint=hint) from error
    if isinstance(raw, dict) and raw.get("version", VERSION) != VERSION:
        text = f"{path}: version: is {raw['version']}, and this agentcompile goes on from {VERSION}"
        raise AgentCompileError(text, hint=hint)
    try:
        content: Partial = decode(Partial, raw)
    except CodecError as error:
        raise AgentCompileError(f"{path}: damaged: {str(error).removeprefix('$.')}", hint=hint) from error
    return content


def digest_of_lock(lock: Path) -> str:
    """Of a lock's bytes; empty when there is no such file."""
    return digest_bytes("figures-lock/1", lock.read_bytes()) if lock.is_file() else ""


def _content(path: Path, identity: Identity) -> Partial | None:
    """What a run of this identity left; None when no run like it left anything."""
    if path.exists():
        content = read_partial(path)
        found = [(path, differences(content.identity, identity))]
    else:
        content = None
        found = sorted(_alike(path.parent, identity), key=lambda one: len(one[1]))
    if found and (others := found[0][1]):
        text = f"--resume: {found[0][0]} is of another run: {'; '.join(others)}"
        raise AgentCompileError(text, hint="give what it was begun with, or leave --resume out to begin anew")
    return content


def _alike(cache: Path, identity: Identity) -> Iterator[tuple[Path, list[str]]]:
    """Partial results on the same checkpoints and device, each with what is different there."""
    for path in sorted(cache.glob("figures-*.json")):
        with suppress(AgentCompileError):  # a damaged one is nothing to go on from, and not what was asked for
            there = read_partial(path).identity
            if all(there.get(fact) == identity[fact] for fact in SAME_SUBJECT):
                yield path, differences(there, identity)


@contextmanager
def _held(folder: Path) -> Iterator[Path]:
    """Keep every other process of the same run out; the kernel lets go when this one dies."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = f"{folder}: another process makes the same figures here"
            hint = "wait for it, stop it, or name another folder with --cache"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
        yield folder
    finally:
        with suppress(OSError):  # there is something in it, or it was removed with the file
            folder.rmdir()
        os.close(handle)


def _empty(folder: Path) -> None:
    """The folder itself stays: it is what is held."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
