"""What the app knows of a session of `refine`: its settings, its tree as it grows, and what it was asked to do.

In: the session's folder. Out: a `Refined`, which a scene carries. Invariant: only a file that changed is read again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentcompile.agents.arms import models_of, replayed
from agentcompile.agents.folder import ASKED, JOURNAL, SETTINGS, Asked, Command, SessionFolder, Subject
from agentcompile.agents.journal import Entry, JournalFollower, nodes_of
from agentcompile.agents.sessions import resume_command
from agentcompile.agents.tree import Node
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode
from agentcompile.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """A session of `refine`, as far as its folder tells."""

    asked: Asked = field(default_factory=lambda: Asked(region=""))
    options: Options = field(default_factory=Options)
    subject: Subject | None = None
    """The region; None before it was opened."""
    entries: tuple[Entry, ...] = ()
    nodes: tuple[Node, ...] = ()
    """Its tree; empty before the region was opened."""
    waiting: tuple[Command, ...] = ()
    """What a person asked and the session has not read yet."""
    answers: tuple[tuple[str, str], ...] = ()
    """Role and model of all that are asked; empty where recorded answers are read."""
    replayed: str = ""
    """The folder of recorded answers; empty where models are asked."""
    goes_on: str = ""
    """The command that goes on with it."""
    written: str = ""
    """The folder of templates that a kernel is promoted to."""
    fault: str = ""
    """Why it cannot be read any further."""


class RefinedFeed:
    """One session, read as it grows."""

    def __init__(self, path: Path, written: Path) -> None:
        """Open a session; kernels are promoted to the folder `written`.

        Raises:
            AgentCompileError: the folder holds none, or one of a newer version (usage).
        """
        self.folder = SessionFolder(path)
        self.now = Refined(goes_on=resume_command(path), written=str(written))
        self._journal = JournalFollower(path / JOURNAL)
        self._settled = self._left = (0, 0)
        self._settings()

    def poll(self) -> bool:
        """Read what is new, and return whether `now` is another one."""
        before = self.now
        if before.fault:
            return False
        try:
            self._settings()
            if self.now.subject is None:
                subject = self.folder.subject()
                self.now = replace(self.now, subject=subject) if subject is not None else self.now
            if self._journal.poll():
                entries = self._journal.entries
                self.now = replace(self.now, entries=entries, nodes=nodes_of(entries))
        except AgentCompileError as error:
            self.now = replace(self.now, fault=f"{error.message}{'; ' + error.hint if error.hint else ''}")
        left = _stamp(self.folder.path / ASKED)
        if left != self._left:
            self._left, waiting = left, self.folder.waiting()
            self.now = replace(self.now, waiting=waiting) if waiting != self.now.waiting else self.now
        return self.now is not before

    def _settings(self) -> None:
        """Read the settings, which a process that goes on with the session may change."""  # noqa: DOC501
        stamp = _stamp(self.folder.path / SETTINGS)
        if stamp == self._settled and stamp != (0, 0):
            return
        found, asked = self.folder.settings()
        try:
            options: Options = decode(Options, found, "options")
        except CodecError as error:
            text = f"{self.folder.path}: its settings cannot be read: {str(error)[:200]}"
            raise AgentCompileError(text, hint="begin a session in another folder") from error
        answers: tuple[tuple[str, str], ...] = ()
        with suppress(AgentCompileError):  # an arm of a newer version, or nobody: then there is nobody to name
            answers = tuple((str(role), _name(model)) for role, model in models_of(options, asked).items() if model)
        again = replayed(options, asked)
        self._settled = stamp
        self.now = replace(self.now, asked=asked, options=options, answers=answers, replayed=again)


def _name(model: str) -> str:
    """Return what a model is called in ``openai:MODEL@BASE_URL``."""
    return model.removeprefix("openai:").partition("@")[0]


def _stamp(path: Path) -> tuple[int, int]:
    """Return what changes with a file: its size and the time of its last change; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
