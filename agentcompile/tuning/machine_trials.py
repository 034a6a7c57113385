"""The measurement database: verdicts of earlier runs on this machine, by candidate, source, policy and fidelity.

A verdict is reused only when nothing that it depends on changed: the candidate's id covers the target and the
template, the source digest the program text, the policy digest the protocol and the tolerances. Several processes may
use one file at once.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import canonical
from agentcompile.ir.shape import Shape
from agentcompile.ir.trial import Trial

_VERSION = 2
_BUSY_S = 20.0
_AGAIN_S = 0.01
_TOGETHER = 500
"""Candidates of one query: SQLite before 3.32 (2020) takes at most 999 values."""
_REGIONS = "create table if not exists region (id text primary key, shape text not null) without rowid"
_SCHEMA = """
create table if not exists trial (
    candidate text not null,
    source text not null,
    policy text not null,
    fidelity text not null,
    rounds integer not null,
    trial text not null,
    primary key (candidate, source, policy, fidelity, rounds)
) without rowid
"""


class MachineTrials:
    """The measurement database in one file. Close it, or use it as a context manager.

    `warning` says why a damaged file was renamed or cannot be read; it is empty when nothing is wrong.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file; a damaged or foreign one is renamed to ``….damaged`` and a new one created.

        Raises:
            AgentCompileError: the file can neither be written nor created (environment).
        """  # noqa: DOC501
        self._path, self._warning = path, ""
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._db = self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._put_aside(str(error))
                self._db = self._open()

    @property
    def warning(self) -> str:
        """A message for people about what is wrong with the file; empty when nothing is."""
        return self._warning

    def __enter__(self) -> MachineTrials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self._db.close()

    def get(
        self, candidate_id: str, source_digest: str, policy_digest: str, fidelity: str = "", rounds: int = 0
    ) -> Trial | None:
        """Return the shortest trial of this key with at least `rounds` rounds; None when there is none.

        The shortest is taken so that a search whose trials are all known takes the same steps again. Without `fidelity`
        confirming trials come before search trials.
        """
        found = self.find(candidate_id, source_digest, policy_digest)
        return next((t for t in found if fidelity in ("", t.fidelity) and t.rounds >= rounds), None)

    def find(self, candidate_id: str, source_digest: str, policy_digest: str) -> tuple[Trial, ...]:
        """Return the trials of this key with `reused` set: confirming before search trials, then short before long.

        A row that does not decode is left out.
        """
        where = "candidate = ? and source = ? and policy = ? order by fidelity, rounds"
        return tuple(self._decoded(where, candidate_id, source_digest, policy_digest))

    def about(self, candidates: Sequence[str], policy_digest: str) -> tuple[Trial, ...]:
        """Return the trials of these candidate ids under a policy, made from any source, with `reused` set.

        Search trials come before confirming ones, then short before long. A row that does not decode is left out.
        """
        found: list[Trial] = []
        for at in range(0, len(candidates), _TOGETHER):
            some = candidates[at : at + _TOGETHER]
            where = f"policy = ? and candidate in ({', '.join('?' * len(some))}) order by fidelity desc, rounds"
            found += self._decoded(where, policy_digest, *some)
        return tuple(found)

    def on_regions(self, regions: Collection[str], policy_digest: str) -> tuple[Trial, ...]:
        """Return the trials under a policy on the regions of these ids, with `reused` set."""
        found: list[Trial] = []
        for at in range(0, len(regions), _TOGETHER):
            some = sorted(regions)[at : at + _TOGETHER]
            marks = ", ".join("?" * len(some))
            where = f"policy = ? and json_extract(trial, '$.candidate.region') in ({marks}) order by candidate, rounds"
            found += self._decoded(where, policy_digest, *some)
        return tuple(found)

    def note_shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Write the shapes of regions by id, and return these and those that earlier runs wrote.

        One that does not decode is left out.

        Raises:
            AgentCompileError: the disk is full or the file is read-only (environment).
        """
        rows = [(id, canonical(encode(shape)).decode()) for id, shape in shapes.items()]
        found: dict[str, Shape] = {}
        with self._explained(), self._db:
            self._db.executemany("insert or ignore into region values (?, ?)", rows)
            noted = self._db.execute("select id, shape from region").fetchall()
        for id, text in noted:
            with contextlib.suppress(CodecError, ValueError):
                found[id] = decode(Shape, json.loads(text))
        return found

    def put(self, trial: Trial, policy_digest: str) -> None:
        """Write a trial, replacing an earlier one of the same key and length; it is on disk when this returns.

        Raises:
            AgentCompileError: the disk is full or the file is read-only (environment).
        """
        key = (trial.candidate.id, trial.source, policy_digest, trial.fidelity, trial.rounds)
        with self._explained(), self._db:
            text = canonical(encode(trial)).decode()
            self._db.execute("insert or replace into trial values (?, ?, ?, ?, ?, ?)", (*key, text))

    def __len__(self) -> int:
        """Return the number of trials in the file."""
        with self._explained():
            return int(self._db.execute("select count(*) from trial").fetchone()[0])

    def _decoded(self, where: str, *values: str) -> Iterator[Trial]:
        for text in self._rows(where, values):
            with contextlib.suppress(CodecError, ValueError):
                trial: Trial = decode(Trial, json.loads(text))
                yield replace(trial, reused=True)

    def _rows(self, where: str, values: Sequence[str]) -> list[str]:
        try:
            with self._explained():
                return [str(text) for (text,) in self._db.execute(f"select trial from trial where {where}", values)]
        except sqlite3.DatabaseError as error:
            self._warning = self._warning or f"{self._path}: unreadable: {error}"
            return []

    def _open(self) -> sqlite3.Connection:
        # Autocommit but for `with db`; one connection is used by one thread at a time.
        db = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
        try:
            _write_ahead(db)
            db.execute("pragma synchronous = full")
            version = db.execute("pragma user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"its version is {version}, this program knows {_VERSION}")
            if version == 0:
                with db:
                    db.execute(_SCHEMA)
                    db.execute(f"pragma user_version = {_VERSION}")
            with db:  # files of earlier versions have none
                db.execute(_REGIONS)
            if (said := db.execute("pragma quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(str(said))
            db.execute("select candidate, source, policy, fidelity, rounds, trial from trial limit 1")
        except BaseException:
            db.close()
            raise
        return db

    def _put_aside(self, why: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        self._path.replace(aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + suffix).unlink()
        self._warning = f"{self._path}: {why}; put aside as {aside.name}, and a new database begun"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise AgentCompileError(
                f"{self._path}: the measurement database cannot be used: {error}",
                exit_code=ExitCode.ENVIRONMENT,
                hint="free some space or make the file writable, or point the cache to another directory",
            ) from error


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to write-ahead logging, retrying for `_BUSY_S` seconds.

    While another process switches, SQLite fails at once, whatever its time limit.
    """  # noqa: DOC501
    end = time.monotonic() + _BUSY_S
    while True:
        try:
            db.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(_AGAIN_S)
        else:
            return
