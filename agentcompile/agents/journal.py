"""The journal of a session: one JSON line for each entry, on disk when `append` returns.

A line that was cut off, because the process was killed while it was written, is ignored and removed: the attempt is
made again, with the recorded answers. Everything else that cannot be read is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agentcompile.agents.tree import ROOT, Node, RoleStep
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import Contract
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import canonical

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The first entry: what the session is about, and the times that its questions name until they are taken anew."""

    kind: Literal["opened"] = "opened"
    format: int = FORMAT
    contract: str
    """Digest of the contract."""
    arm: str
    strategy: str
    seed: int
    floor_ns: float
    reference_ns: float
    incumbent_ns: float
    measured: str = "null"
    """What else was measured, as JSON."""

    def timed(self, contract: Contract) -> Contract:
        """Return `contract` with the times that the session's questions name."""
        return replace(
            contract,
            floor_ns=self.floor_ns,
            reference_ns=self.reference_ns,
            incumbent_ns=self.incumbent_ns,
            measured=json.loads(self.measured),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An answer that was refused: an attempt that made no node."""

    kind: Literal["refused"] = "refused"
    node: int
    """The node that was worked on."""
    reason: str
    log: tuple[RoleStep, ...]
    """The answers of the attempt; the last one was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """A person closed the branch that begins at a node: no attempt."""

    kind: Literal["pruned"] = "pruned"
    node: int


Entry = Opened | Node | Refused | Pruned


def opened_of(entries: Sequence[Entry]) -> Opened:
    """Return the first of a session's entries, with the times to beat as they were taken last."""
    opened = entries[0] if entries else None
    assert isinstance(opened, Opened), "a session begins with it"
    last = next((one.times for one in reversed(entries) if isinstance(one, Node) and one.times is not None), None)
    if last is None:
        return opened
    measured, arms = json.loads(opened.measured), json.loads(last.arms)
    if isinstance(measured, dict) and arms is not None:
        measured = {**measured, "baseline": arms}
    text = canonical(measured).decode()
    return replace(opened, reference_ns=last.reference_ns, incumbent_ns=last.incumbent_ns, measured=text)


def nodes_of(entries: Sequence[Entry]) -> tuple[Node, ...]:
    """Return the tree of a session: the root, and every node; nothing before the first entry.

    A node from before times were kept as shares of the reference's has its share of the first one that was taken.
    """
    if not entries:
        return ()
    first, opened = entries[0], opened_of(entries)
    assert isinstance(first, Opened)
    root = Node(id=ROOT, parent=None, ns=opened.reference_ns, over_reference=1.0)
    pruned = {entry.node for entry in entries if isinstance(entry, Pruned)}
    grown = (entry for entry in entries if isinstance(entry, Node))
    return (root, *(_whole(node, first.reference_ns, pruned=node.id in pruned) for node in grown))


def _whole(node: Node, reference_ns: float, *, pruned: bool) -> Node:
    old = node.sound and node.over_reference == math.inf
    share = node.ns / max(reference_ns, 1.0) if old else node.over_reference
    return replace(node, pruned=pruned, over_reference=share) if pruned or old else node


def attempts_of(entries: Sequence[Entry]) -> int:
    """Return how many attempts were made: evaluated, repeated and refused."""
    return sum(isinstance(entry, (Node, Refused)) for entry in entries)


def spent_of(entries: Sequence[Entry]) -> Usage:
    """Return what all answers of a session used, for the ledger of the process that goes on with it."""
    logs = [entry.log for entry in entries if isinstance(entry, (Node, Refused))]
    return sum((step.usage for log in logs for step in log), Usage())


def read_entries(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a journal that another process may be writing; none where there is no file.

    Raises:
        AgentCompileError: it is none, or has a newer format (usage), or cannot be read (environment).
    """  # noqa: DOC501
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise _unusable(path, error) from error
    return tuple(_entries(data[: data.rfind(b"\n") + 1], path))


class JournalFollower:
    """A journal that another process may be writing, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: tuple[Entry, ...] = ()
        self._offset = self._size = 0

    def poll(self) -> bool:
        """Read the lines that are new, and return whether `entries` are others than before.

        A line that is not complete yet is left for the next call. A journal that became shorter is read again.

        Raises:
            AgentCompileError: it is none, or has a newer format (usage), or cannot be read (environment).
        """  # noqa: DOC501
        try:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size == self._size:
                return False
            shorter = size < self._offset
            if shorter:
                self.entries, self._offset = (), 0
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(size - self._offset)
        except FileNotFoundError:
            data, size = b"", 0
        except OSError as error:
            raise _unusable(self.path, error) from error
        whole = data[: data.rfind(b"\n") + 1]
        found = [_entry(line, self.path, at) for at, line in enumerate(whole.split(b"\n")[:-1], len(self.entries) + 1)]
        _check((*self.entries, *found), self.path)
        self.entries, self._offset, self._size = (*self.entries, *found), self._offset + len(whole), size
        return bool(found) or shorter


class SessionJournal:
    """A journal's file; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the journal of a session, new or begun, and read its entries.

        Raises:
            AgentCompileError: it is none, or has a newer format (usage), or cannot be read or written (environment).
        """  # noqa: DOC501
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            self._entries = _entries(whole, path)
            self._file = path.open("ab", buffering=0)
            if len(whole) != len(data):
                os.ftruncate(self._file.fileno(), len(whole))
            self._end = len(whole)
        except OSError as error:
            raise _unusable(path, error) from error

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in their order."""
        return tuple(self._entries)

    def append(self, entry: Entry) -> None:
        """Write an entry; it is on disk on return.

        Raises:
            AgentCompileError: it cannot be written (environment); what was written before stays.
        """  # noqa: DOC501
        line = canonical(encode(entry)) + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), self._end)
            if isinstance(error, OSError):
                raise _unusable(self.path, error) from error
            raise
        self._end += len(line)
        self._entries.append(entry)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> SessionJournal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _entries(whole: bytes, path: Path) -> list[Entry]:
    found = [_entry(line, path, at) for at, line in enumerate(whole.split(b"\n")[:-1], 1)]
    _check(found, path)
    return found


def _check(entries: Sequence[Entry], path: Path) -> None:
    """Refuse entries that are no tree."""  # noqa: DOC501
    count = 1
    for number, entry in enumerate(entries, 1):
        wrong = ""
        if isinstance(entry, Opened) != (number == 1):
            wrong = "a session is opened once, by the first entry"
        elif isinstance(entry, Node):
            if entry.id != count or entry.parent not in range(count) or entry.written is None or entry.pruned:
                wrong = f"node {entry.id} is not the next one of the tree"
            count += 1
        elif isinstance(entry, Refused) and entry.node not in range(count):
            wrong = f"there is no node {entry.node} yet"
        elif isinstance(entry, Pruned) and entry.node not in range(1, count):
            wrong = f"node {entry.node} begins no branch"
        if wrong:
            raise AgentCompileError(f"{path}:{number}: {wrong}", hint="begin in another folder")


def _entry(line: bytes, path: Path, number: int) -> Entry:
    try:
        found = json.loads(line)
        version = found.get("format") if isinstance(found, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise AgentCompileError(
                f"{path}:{number}: format: {version} is newer than the {FORMAT} that this agentcompile reads",
                hint="install the agentcompile that wrote it",
            )
        entry: Entry = decode(Entry, found, "entry")
        if isinstance(entry, Node):
            json.loads(entry.feedback)
            json.loads(entry.times.arms if entry.times is not None else "null")
    except (CodecError, ValueError, RecursionError) as error:
        raise AgentCompileError(
            f"{path}:{number}: no entry of a session: {str(error)[:200]}", hint="begin in another folder"
        ) from error
    return entry


def _unusable(path: Path, error: OSError) -> AgentCompileError:
    return AgentCompileError(
        f"{path}: {error.strerror or error}",
        exit_code=ExitCode.ENVIRONMENT,
        hint="free some space, or make the folder writable",
    )
