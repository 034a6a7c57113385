"""A session on disk: what it was asked to do, its tree, its exchanges, and what a person asks of it while it works.

    RUN/session.json            the settings of the model and of the session, and the version of this format
    RUN/subject.json            the region or task that is refined, once it was opened: names, times to beat, machine
    RUN/contract.json           what is asked of a kernel, for people
    RUN/principles.toml         the principles that every question of the session shows
    RUN/refine.jsonl            the tree (see `journal`)
    RUN/exchanges/              every question and its answer
    RUN/kernels/NODE/           template.toml, the kernel and what the gates said of it, for people
    RUN/asked/                  commands that the session reads between two attempts
    RUN/worked.json             how long processes worked on the session, for its budget of seconds
    RUN/summary.json            the tree and the leaderboard, when a process of the session ended
    RUN/events.jsonl, run.lock  as in every run (see `runs.session`)

Nothing here needs PyTorch, so that a screen may read a session.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from agentcompile.agents.journal import Entry, read_entries
from agentcompile.agents.tree import Node
from agentcompile.catalog.aliases import KERNEL_FILES
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Contract, WrittenLanguage
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, canonical
from agentcompile.runs.folders import started
from agentcompile.runs.session import RunDirectory, environment_error
from agentcompile.system.plain_files import write_atomically

VERSION = 1
SETTINGS, SUBJECT, CONTRACT, PRINCIPLES = "session.json", "subject.json", "contract.json", "principles.toml"
JOURNAL, EXCHANGES, KERNELS, ASKED, SUMMARY = "refine.jsonl", "exchanges", "kernels", "asked", "summary.json"
WORKED = "worked.json"
T = TypeVar("T", "Asked", "Subject", "Command", "Worked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a session was asked to do, beside the settings of the model."""

    region: str
    """Empty for a task."""
    task: str = ""
    """The SHA-256 of the task's file, whose path is the model of the settings; empty for a region of a model."""
    language: str = ""
    """Empty for the usual one of the target."""
    arm: str = "stark"
    strategy: str = "epsilon-greedy"
    attempts: int = 30
    patience: int = 0
    plan: str = ""
    """Who answers for a role, as ``openai:MODEL[@BASE_URL]``; empty for the adviser of the settings."""
    code: str = ""
    debug: str = ""
    plan_temperature: str = ""
    """A number, ``none`` to leave it to the server, or empty for that of the arm."""
    code_temperature: str = ""
    debug_temperature: str = ""
    plan_key: str = ""
    """The variable that holds the key of a role's model; empty for that of the settings."""
    code_key: str = ""
    debug_key: str = ""
    plan_price: str = ""
    """Dollars for a million tokens of prompt and of answer, IN,OUT; empty for those of the settings."""
    code_price: str = ""
    debug_price: str = ""
    record: str = ""
    """Folder of the exchanges; empty for that of the session."""
    replay: str = ""
    """Folder of exchanges that answer in place of models."""
    answered_by: str = ""
    promote: bool = False
    unsafe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The region or task that a session refines, as a person and a promotion need it later."""

    region: str
    """Its name; of a task that of its file."""
    kind: str
    language: WrittenLanguage
    contract: str
    """Digest of what is asked for."""
    floor_ns: float
    reference_ns: float
    incumbent_ns: float
    incumbent: str
    """The name of what has to be beaten."""
    machine: dict[str, str] = field(default_factory=dict)
    """What a provenance says about the machine."""
    task: str = ""
    """The SHA-256 of the task's file; empty for a region of a model."""

    @property
    def bar(self) -> str:
        """What has to be beaten is called this: a task's baseline is PyTorch, a region's incumbent any kernel."""
        return "baseline" if self.task else "incumbent"

    @property
    def text(self) -> str:
        """What is refined, and in which language, for people."""
        return f"{'task ' if self.task else ''}{self.region} in {self.language}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a person asks of a session that works."""

    what: Literal["pause", "resume", "stop", "prune"]
    node: int = 0
    """The node whose branch is closed, for `prune`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """How long processes worked on a session; pauses and the times between processes do not count."""

    seconds: float


class SessionFolder:
    """One session on disk; readers need only the path, a writer holds the run's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = RunDirectory(path)

    @staticmethod
    def create(path: Path, options: Json, asked: Asked) -> SessionFolder:
        """Make a session's folder.

        Raises:
            AgentCompileError: it holds a run already (usage), or cannot be written (environment).
        """  # noqa: DOC501
        made = SessionFolder(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any((path / name).exists() for name in (SETTINGS, JOURNAL, "options.json", "events.jsonl")):
                raise AgentCompileError(
                    f"{path}: already holds a run",
                    hint="go on with a session by `refine --resume`, or name another folder with --run-dir",
                )
            made.settle(options, asked)
        except OSError as error:
            raise environment_error(error, path) from error
        return made

    @staticmethod
    def open(path: Path) -> SessionFolder:
        """Open a session that exists.

        Raises:
            AgentCompileError: the folder is none, or of a newer version (usage).
        """
        made = SessionFolder(path)
        made.settings()
        return made

    def settle(self, options: Json, asked: Asked) -> None:
        """Write the settings.

        Raises:
            OSError: they cannot be written.
        """
        value: Json = {"version": VERSION, "options": options, "session": encode(asked)}
        write_atomically(self.path / SETTINGS, canonical(value) + b"\n")

    def settings(self) -> tuple[Json, Asked]:
        """Return the settings of the model as JSON, and those of the session.

        Raises:
            AgentCompileError: the folder is no session, or of a newer version (usage).
        """
        file = self.path / SETTINGS
        found = _read(file)
        if found is None:
            hint = "`agentcompile runs list` names the sessions"
            raise AgentCompileError(f"{self.path}: holds no session of `refine` ({SETTINGS} is missing)", hint=hint)
        version = found.get("version")
        if not isinstance(version, int) or version > VERSION:
            text = f"{file}: version: {version!r}, and this agentcompile reads {VERSION}"
            raise AgentCompileError(text, hint="install the agentcompile that wrote it, or begin in another folder")
        return found.get("options"), _decoded(Asked, found.get("session"), file)

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries of the tree so far; none before its region or task was opened.

        Raises:
            AgentCompileError: the journal is none, or of a newer version (usage).
        """
        return read_entries(self.path / JOURNAL)

    def subject(self) -> Subject | None:
        """Return the region or task that is refined; None as long as it was not opened.

        Raises:
            AgentCompileError: the file cannot be understood (usage).
        """
        found = _read(self.path / SUBJECT)
        return None if found is None else _decoded(Subject, found, self.path / SUBJECT)

    def worked_s(self) -> float:
        """Return the seconds that processes worked on the session until now.

        Raises:
            AgentCompileError: the file cannot be understood (usage).
        """
        found = _read(self.path / WORKED)
        return 0.0 if found is None else _decoded(Worked, found, self.path / WORKED).seconds

    def keep_worked_s(self, seconds: float) -> None:
        """Write how long processes worked on the session.

        Raises:
            AgentCompileError: it cannot be written (environment).
        """
        self._write(WORKED, canonical(encode(Worked(seconds=seconds))) + b"\n")

    def introduce(self, subject: Subject, contract: Contract) -> None:
        """Write what is refined.

        Raises:
            AgentCompileError: it cannot be written (environment).
        """
        self._write(CONTRACT, json.dumps(encode(contract), indent=1, ensure_ascii=False).encode() + b"\n")
        self._write(SUBJECT, canonical(encode(subject)) + b"\n")

    def keep_summary(self, summary: Json) -> None:
        """Write the tree and the leaderboard.

        Raises:
            AgentCompileError: it cannot be written (environment).
        """
        self._write(SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False).encode() + b"\n")

    def principles(self, text: str) -> Path:
        """Return the file of the session's principles, with `text` where the session has none yet.

        Raises:
            AgentCompileError: it cannot be written (environment).
        """
        if not (self.path / PRINCIPLES).exists():
            self._write(PRINCIPLES, text.encode())
        return self.path / PRINCIPLES

    def show_kernel(self, node: Node, language: WrittenLanguage) -> None:
        """Write a node's texts for people; nothing reads them again.

        Raises:
            AgentCompileError: they cannot be written (environment).
        """
        if node.written is None:
            return
        folder = f"{KERNELS}/{node.id}"
        texts = {
            "template.toml": node.written.manifest,
            KERNEL_FILES[language]: node.written.kernel,
            "feedback.json": json.dumps(json.loads(node.feedback), indent=1),
        }
        for name, text in texts.items():
            self._write(f"{folder}/{name}", text.encode(errors="replace"))

    def _write(self, name: str, data: bytes) -> None:
        file = self.path / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, data)
        except OSError as error:
            raise environment_error(error, file) from error

    def ask(self, command: Command) -> None:
        """Leave a command for the process that works on the session.

        Raises:
            AgentCompileError: it cannot be written (environment).
        """
        self._write(f"{ASKED}/{time.time_ns():020}-{os.getpid()}.json", canonical(encode(command)) + b"\n")

    def take(self) -> tuple[Command, ...]:
        """Return the commands that were left, in their order, and remove them; what is no command is dropped."""
        found = list[Command]()
        for file in self._asked():
            found += _command(file)
            file.unlink(missing_ok=True)
        return tuple(found)

    def waiting(self) -> tuple[Command, ...]:
        """Return the commands that were left and not taken yet, in their order."""
        return tuple(one for file in self._asked() for one in _command(file))

    def _asked(self) -> list[Path]:
        return sorted((self.path / ASKED).glob("*.json"))


def sessions_in(runs: Path) -> tuple[Path, ...]:
    """Return the folders of sessions below `runs`, oldest first; empty when there are none."""
    if not runs.is_dir():
        return ()
    return tuple(sorted((path.parent for path in runs.glob(f"*/{SETTINGS}")), key=started))


def _command(file: Path) -> list[Command]:
    """Return the command in a file; none where it is no command, or was taken."""
    with contextlib.suppress(AgentCompileError):
        return [_decoded(Command, _read(file), file)]
    return []


def _read(file: Path) -> dict[str, Json] | None:
    """Return the JSON object in a file; None where there is no file."""  # noqa: DOC501
    try:
        found = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise environment_error(error, file) from error
    except ValueError as error:
        raise AgentCompileError(f"{file}: unreadable: {error}", hint="begin in another folder") from error
    return found if isinstance(found, dict) else {}


def _decoded(cls: type[T], found: Json, file: Path) -> T:
    try:
        value: T = decode(cls, found, "session")
    except CodecError as error:
        raise AgentCompileError(f"{file}: {str(error)[:200]}", hint="begin in another folder") from error
    return value
