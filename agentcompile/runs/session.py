"""Run directories: where a run's events lie, so that it can be resumed, attached to and watched.

    RUN/options.json    the run's options, and the version of this format
    RUN/events.jsonl    one record a line: {"seq", "at_ms", "event"}
    RUN/run.lock        held (flock) by the compiler while it runs; holds its process id
    RUN/control.sock    where the compiler takes commands while it runs (see `control`)
    RUN/crash.txt       the traceback of a failure that is our fault

Invariant: trials and decisions are on disk before `append` returns, so a kill -9 at any point loses none that were
acknowledged. A last line without a line break was not acknowledged: readers skip it, writers cut it off.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import DURABLE, PROGRESS, Event, TrialFinished, clean, decode, encode, harmless
from agentcompile.ir.codec import CodecError
from agentcompile.ir.digest import Json, canonical
from agentcompile.runs import progress
from agentcompile.runs.folders import EVENTS as EVENTS
from agentcompile.runs.folders import LATEST as LATEST
from agentcompile.runs.folders import OPTIONS as OPTIONS
from agentcompile.runs.folders import named as named
from agentcompile.runs.folders import new_name as new_name
from agentcompile.runs.folders import runs_in as runs_in
from agentcompile.runs.folders import standing as standing
from agentcompile.system.plain_files import write_atomically

VERSION = 3
"""The format of a run directory; a greater one is refused.

Version 2 added a person's decisions to the events; version 3 single times of a measurement, and watching screens.
"""
PROGRESS_PER_S = 20
LOOKS, LOOK_S = 5, 0.02
"""How often the lock is tried that another process may hold for an instant, and the seconds between two tries."""
LOCK, CRASH = "run.lock", "crash.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One line of ``events.jsonl``."""

    seq: int
    at_ms: int
    """Unix time in milliseconds, for people; nothing depends on it."""
    event: Event


class RunDirectory:
    """One run on disk; readers need only a path, a writer (`Journal`) holds the lock until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path, self._made = path, False

    @staticmethod
    def create(path: Path, options: Json) -> RunDirectory:
        """Make a run directory for `options`.

        Raises:
            AgentCompileError: it holds a run already (usage), or cannot be written (environment).
        """  # noqa: DOC501
        run = RunDirectory(path)
        try:
            run._made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            if (path / EVENTS).exists() or (path / OPTIONS).exists():
                raise AgentCompileError(
                    f"{path}: already holds a run",
                    hint="continue it with --resume, or name another folder with --run-dir",
                )
            write_atomically(path / OPTIONS, options_bytes(options))
        except OSError as error:
            raise environment_error(error, path) from error
        return run

    @staticmethod
    def open(path: Path) -> RunDirectory:
        """Open a run that exists.

        Raises:
            AgentCompileError: the folder is not a run, unreadable, or of a newer version.
        """
        run = RunDirectory(path)
        run.options()
        return run

    def options(self) -> Json:
        """Return the options that the run was started with, as JSON.

        Raises:
            AgentCompileError: the folder is not a run, unreadable, or of a newer version.
        """  # noqa: DOC501
        file = self.path / OPTIONS
        try:
            data = file.read_bytes()
        except FileNotFoundError as error:
            raise AgentCompileError(
                f"{self.path}: holds no run ({OPTIONS} is missing)", hint="`agentcompile runs list` names the runs"
            ) from error
        except OSError as error:
            raise environment_error(error, file) from error
        return options_in(data, file)

    def discard(self) -> bool:
        """Delete the run with its folder and return True, where `create` made this folder; others may hold more."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        return self._made

    def alive(self) -> bool:
        """Return whether a compiler holds the run's lock now."""
        try:
            with (self.path / LOCK).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def holder(self) -> int:
        """Return the process id of the compiler that holds the run's lock; 0 when none does."""
        try:
            return int((self.path / LOCK).read_text() or 0) if self.alive() else 0
        except (OSError, ValueError):
            return 0

    def records(self, offset: int = 0) -> Iterator[tuple[EventRecord, int]]:
        """Return the records from byte `offset`, each with the offset after it; it ends before an incomplete last line.

        Raises:
            AgentCompileError: a complete line is not a record, because the file was edited or damaged.
        """
        file = self.path / EVENTS
        return ((record_in(line, file), offset) for line, offset in self.lines(offset))

    def lines(self, offset: int = 0) -> Iterator[tuple[bytes, int]]:
        """Yield the complete lines of events from byte `offset`, each with the offset after it.

        Raises:
            AgentCompileError: the file cannot be read (environment).
        """  # noqa: DOC501
        file = self.path / EVENTS
        try:
            with file.open("rb") as stream:
                stream.seek(offset)
                for line in stream:
                    if not line.endswith(b"\n"):
                        return
                    offset += len(line)
                    yield line, offset
        except FileNotFoundError:
            return
        except OSError as error:
            raise environment_error(error, file) from error

    def events(self) -> Iterator[Event]:
        """Return every event, in order."""
        return (record.event for record, _ in self.records())

    def state(self) -> progress.State:
        """Return the fold of every event."""
        return progress.fold(self.events())

    def crash_report(self, text: str) -> Path | None:
        """Write a traceback into the run directory and return its path; None when it cannot be written."""
        try:
            (self.path / CRASH).write_text(clean(text, 200_000, lines=True), encoding="utf-8")
        except OSError:
            return None
        return self.path / CRASH


class Journal:
    """The writer of a run directory; a context manager, whose `append` is an `Emit`."""

    def __init__(self, run: RunDirectory, *, clock: Callable[[], float] = time.time) -> None:
        """Take the run's lock and cut off an incomplete last line.

        Raises:
            AgentCompileError: another process holds the lock, or the folder cannot be written (environment).
        """  # noqa: DOC501
        self.run = run
        self._clock = clock
        self._last_progress = float("-inf")
        self._lock = _take_lock(run.path)
        self._file: IO[bytes] | None = None
        try:
            self._seq, self._end, last = 0, 0, b""
            for line, offset in run.lines():
                last, self._end = line, offset
            if last:
                self._seq = record_in(last, run.path / EVENTS).seq + 1
            self._file = (run.path / EVENTS).open("ab", buffering=0)
            if os.fstat(self._file.fileno()).st_size != self._end:
                os.ftruncate(self._file.fileno(), self._end)
        except OSError as error:
            self.close()
            raise environment_error(error, run.path) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def append(self, event: Event) -> bool:
        """Write one event; a durable one is on disk on return. Return False for a progress event that came too soon.

        Raises:
            AgentCompileError: the disk is full (exit 6); what was written before stays readable.
        """  # noqa: DOC501
        assert self._file is not None, "the journal is closed"
        now = self._clock()
        if isinstance(event, PROGRESS):
            if 0 <= now - self._last_progress < 1 / PROGRESS_PER_S:
                return False
            self._last_progress = now
        line = canonical({"seq": self._seq, "at_ms": int(now * 1000), "event": encode(event)}) + b"\n"
        try:
            _write_all(self._file, line)
            if isinstance(event, DURABLE) and not (isinstance(event, TrialFinished) and event.trial.reused):
                os.fsync(self._file.fileno())
            self._seq, self._end = self._seq + 1, self._end + len(line)
        except OSError as error:
            self._cut()
            raise environment_error(error, self.run.path / EVENTS) from error
        except BaseException:  # a signal: an event that was not acknowledged must not be in the file
            self._cut()
            raise
        return True

    def _cut(self) -> None:
        """Remove an incomplete line, so that a later event does not join it."""
        assert self._file is not None
        try:
            os.ftruncate(self._file.fileno(), self._end)
        except OSError:
            return

    def close(self) -> None:
        """Release the run; its events stay."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.close()


def options_in(data: bytes, file: Path) -> Json:
    """Return the options in the bytes of an ``options.json``; `file` is its name in messages.

    Raises:
        AgentCompileError: they are not the options of a run, or of a newer version (usage).
    """
    try:
        found = json.loads(data)
    except ValueError as error:
        raise AgentCompileError(f"{file}: unreadable: {error}", hint="start the run again in another folder") from error
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        raise AgentCompileError(f"{file}: version: missing", hint="start the run again in another folder")
    if version > VERSION:
        raise AgentCompileError(
            f"{file}: version: {version} is newer than the {VERSION} that this agentcompile reads",
            hint="install the agentcompile that wrote it, or start the run again in another folder",
        )
    options: Json = found.get("options")
    return options


def options_bytes(options: Json) -> bytes:
    """Return the content of an ``options.json`` with these options."""
    return canonical({"version": VERSION, "options": options}) + b"\n"


def record_in(line: bytes, file: Path) -> EventRecord:
    """Return the record in one complete line of an ``events.jsonl``; `file` is its name in messages.

    Raises:
        AgentCompileError: the line is not a record (usage).
    """  # noqa: DOC501
    try:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise CodecError("not a table")
        event = decode(data["event"], clean=harmless(line))
        return EventRecord(seq=int(data["seq"]), at_ms=int(data["at_ms"]), event=event)
    except (ValueError, KeyError, TypeError) as error:
        raise AgentCompileError(
            f"{file}: a line is no event: {clean(str(error), 200)}",
            hint="read it with the agentcompile that wrote it, or start the run again in another folder",
        ) from error


def _take_lock(path: Path) -> IO[bytes]:
    try:
        lock = (path / LOCK).open("ab")
    except OSError as error:
        raise environment_error(error, path / LOCK) from error
    for left in reversed(range(LOOKS)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if left:  # `alive` in another process holds it for an instant
                time.sleep(LOOK_S)
                continue
            lock.close()
            raise AgentCompileError(
                f"{path}: another agentcompile runs here",
                exit_code=ExitCode.ENVIRONMENT,
                hint="wait for it, stop it with `agentcompile runs stop`, or name another folder with --run-dir",
            ) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n".encode())
    lock.flush()
    return lock


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.write(file.fileno(), view)
        view = view[written:]


def environment_error(error: OSError, path: Path) -> AgentCompileError:
    """Return an operating-system error on `path` as an error with its remedy (exit 6; 2 where it is a directory)."""
    if isinstance(error, IsADirectoryError):
        return AgentCompileError(f"{path}: a directory, not a file", hint="name a file in it")
    remedies = {
        errno.ENOSPC: "free some space, or move the data with AGENTCOMPILE_HOME; nothing is lost, resume with --resume",
        errno.EDQUOT: "raise the quota, or move the data with AGENTCOMPILE_HOME; nothing is lost, resume with --resume",
        errno.EROFS: "the file system is read-only: name a writable folder with --run-dir or AGENTCOMPILE_HOME",
        errno.EACCES: "make the folder writable, or name another with --run-dir or AGENTCOMPILE_HOME",
    }
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = remedies.get(error.errno or 0, "check that the folder exists and can be written")
    return AgentCompileError(f"{path}: {reason}", exit_code=ExitCode.ENVIRONMENT, hint=hint)
