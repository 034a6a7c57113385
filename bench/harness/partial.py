"""The partial result of a run, kept on disk so that an interrupted run can be resumed.

    CACHE/figures-KEY.json       all results so far, rewritten after each round and each start-up time
    CACHE/figures-KEY/MODEL-…/   the lock that was compiled in the run, and the store it was compiled with

Invariant: the file is whole at any time and holds everything found before `keep` returned. KEY is made from the run's
identity, so that results that cannot be compared are never mixed.
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
from agentcompile.system.plain_files import write_atomically

from .identity import SAME_SUBJECT, Identity, differences, key_of
from .times import Build, Imported, Took
from .trial import Outcome

VERSION = 1
"""The version of the file's format; files of other versions are refused."""
FIRST_COMPILE = "first compile"
"""The name of the start-up time whose command writes a lock."""

Accuracy = dict[str, int | float | str | dict[str, float]]


class OutOfTime(Exception):
    """The run's own time is up and work is left."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """The results so far for one checkpoint."""

    times: dict[str, Took] = field(default_factory=dict)
    """Times that a user waits for, by name."""
    folder: str = ""
    """Name of the folder, below the file's folder, with the lock and the store of the first compilation."""
    lock: str = ""
    """The digest of the bytes of the lock that was compiled; empty without one."""
    outcome: Outcome = field(default_factory=Outcome)
    accuracy: Accuracy | None = None
    accuracy_reason: str = ""
    """Why the accuracy could not be measured; empty when it was measured or not tried yet."""

    @property
    def failure(self) -> str:
        """Why the first compilation made no lock; empty when it made one or was not tried."""
        took = self.times.get(FIRST_COMPILE)
        return took.reason if took else ""

    def check(self, build: Build) -> None:
        """Check that lock and store are as the first compilation left them.

        Raises:
            AgentCompileError: the lock has changed, or the lock or the store is gone (usage).
        """
        if digest_of_lock(build.lock) != self.lock:
            what = f"{build.lock}: is not the lock that was compiled and timed"
        elif build.home is not None and not build.home.is_dir():
            what = f"{build.home}: the store of the first compilation is gone"
        else:
            return
        raise AgentCompileError(what, hint="restore it, or leave --resume out to begin anew")

    def forget_failures(self, rounds: int) -> None:
        """Forget failures so that they are tried again; those of arms only if some of all `rounds` are not done."""
        self.accuracy_reason = ""
        if len(self.outcome.rounds) < rounds:
            self.outcome.reasons = {}
            if self.failure:
                self.times = {}
        self.times = {name: took for name, took in self.times.items() if name == FIRST_COMPILE or not took.reason}

    def forget_others(self, machine: str, rounds: int) -> int:
        """Drop the rounds of an unfinished trial that another machine began, and return how many were dropped.

        Rounds of two machines are not pooled. A trial that has all its `rounds` is kept.
        """
        known = self.outcome.rounds
        if len(known) >= rounds or all(timed.machine == machine for timed in known):
            return 0
        self.outcome.rounds = ()
        return len(known)


@dataclass(slots=True, kw_only=True)
class Partial:
    """The content of a partial result's file."""

    version: int = VERSION
    identity: Identity
    resumed: int = 0
    """How many times the run was resumed."""
    imported: Imported | None = None
    models: dict[str, Progress] = field(default_factory=dict)
    """The results by name of the checkpoint."""


@dataclass(slots=True)
class PartialFile:
    """The only writer of a run's partial result: change `content`, then call `keep`."""

    path: Path
    content: Partial
    until_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    kept: int = 0

    @property
    def folder(self) -> Path:
        """The folder beside the file, for locks and stores that belong to it."""
        return self.path.with_suffix("")

    def progress(self, model: str) -> Progress:
        """Return the results of a checkpoint, which the caller may add to; made empty when there are none."""
        return self.content.models.setdefault(model, Progress())

    def write(self) -> None:
        """Replace the file with the content.

        Raises:
            AgentCompileError: the file cannot be written (environment).
        """
        try:
            write_atomically(self.path, json.dumps(encode(self.content), indent=1, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            text = f"{self.path}: {error.strerror or error}"
            hint = "make room, or see that it can be written; --resume goes on from what was kept before"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error

    def keep(self) -> None:
        """Write the content after something was found; it is on disk when this returns.

        Raises:
            AgentCompileError: the file cannot be written (environment).
        """
        self.write()
        self.kept += 1

    def pause(self) -> None:
        """Stop here if the run's own time is up; to be called before anything that takes long.

        It never stops before something was kept, so that a run that is resumed again and again gets to its end, however
        short its turns are.

        Raises:
            OutOfTime: the run's own time is up, and something was kept in this turn.
        """
        if self.until_s is not None and self.kept and self.clock() >= self.until_s:
            raise OutOfTime

    def remove(self) -> None:
        """Delete the partial result and its folder, once the run has its final result."""
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def open_partial(
    cache: Path, identity: Identity, *, resume: bool, until_s: float | None, say: Callable[[str], None]
) -> Iterator[PartialFile]:
    """Yield a run's partial result, locked (flock) while the block runs.

    With `resume` it is what the interrupted run left, or empty when none was interrupted; else it is empty. `until_s`
    is the time of `time.monotonic` at which the run should stop.

    Raises:
        AgentCompileError: the file is damaged, or the only one for these checkpoints and this device is of a run that
            differs, in ways that the message names (both usage); another process holds the file, or it cannot be
            written (environment).
    """
    path = cache / f"figures-{key_of(identity)}.json"
    with _held(path.with_suffix("")) as folder:
        content = _content(path, identity) if resume else None
        if content is None:
            if resume:
                say(f"{cache}: no run was cut there; this one begins")
            for left in folder.iterdir():  # the folder itself stays, as it is locked
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink()
            content = Partial(identity=identity)
        else:
            content.resumed += 1
            rounds = sum(len(known.outcome.rounds) for known in content.models.values())
            say(f"{path}: goes on; {rounds} rounds are there")
        file = PartialFile(path, content, until_s=until_s)
        file.write()
        yield file


def read_partial(path: Path) -> Partial:
    """Read a partial result.

    Raises:
        AgentCompileError: it cannot be read, is damaged, or has another version (usage).
    """
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
    """Return the digest of a lock file's bytes; empty when there is no such file."""
    return digest_bytes("figures-lock/1", lock.read_bytes()) if lock.is_file() else ""


def _content(path: Path, identity: Identity) -> Partial | None:
    if path.exists():
        content = read_partial(path)
        found = [(path, differences(content.identity, identity))]
    else:
        content = None
        found = []
        for other in sorted(path.parent.glob("figures-*.json")):
            with suppress(AgentCompileError):  # a damaged file of another run is skipped
                there = read_partial(other).identity
                if all(there.get(fact) == identity[fact] for fact in SAME_SUBJECT):
                    found.append((other, differences(there, identity)))
        found.sort(key=lambda one: len(one[1]))
    if found and (others := found[0][1]):
        text = f"--resume: {found[0][0]} is of another run: {'; '.join(others)}"
        raise AgentCompileError(text, hint="give what it was begun with, or leave --resume out to begin anew")
    return content


@contextmanager
def _held(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which the kernel undoes if this process dies
        except OSError as error:
            text = f"{folder}: another process makes the same figures here"
            hint = "wait for it, stop it, or name another folder with --cache"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
        yield folder
    finally:
        with suppress(OSError):  # the folder is not empty, or it was removed with the file
            folder.rmdir()
        os.close(handle)
