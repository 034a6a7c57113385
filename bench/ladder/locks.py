"""The locks of the upper rungs, compiled one after another with one store and one trial database.

Each compilation reuses what earlier ones built, validated and timed: three locks cost little more than one, and they
differ in what was chosen, not in what was measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.trial import Rule

from ..harness.building import build_of
from ..harness.partial import FIRST_COMPILE, PartialFile, Progress
from ..harness.times import Build
from ..harness.trial import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Locks:
    """The settings with which locks of one checkpoint are compiled, and the file that records them during the run."""

    name: str
    model: Path
    setup: Setup
    file: PartialFile
    context: int
    budget: int = 0
    seconds: float = 0
    stored: bool = False
    """Whether the user's store and trial database are used instead of empty ones."""

    @property
    def home(self) -> Path | None:
        """The folder of store and trial database; None for the user's own."""
        return None if self.stored else self.file.folder / "home"

    def of(self, rule: Rule) -> Build | None:
        """Return the lock that `rule` chooses, compiled if needed; None when that failed.

        Raises:
            AgentCompileError: the lock is not as it was compiled (usage).
        """
        how: dict[str, Any] = {
            "context": self.context,
            "seconds": self.seconds,
            "budget": self.budget,
            "home": self.home,
        }
        build = build_of(self._name(rule), self.model, self.setup, self.file, waits=False, choose=rule, **how)
        return None if self.progress(rule).failure else build

    def progress(self, rule: Rule) -> Progress:
        """Return the results so far for a rule's lock."""
        return self.file.progress(self._name(rule))

    def _name(self, rule: Rule) -> str:
        return f"{self.name}, choose = {rule}"

    def compile_s(self, rule: Rule) -> float | None:
        """Return the seconds of compiling, which reuses earlier results; None when it failed or was not done."""
        took = self.progress(rule).times.get(FIRST_COMPILE)
        return took.seconds if took else None

    def failure(self, rule: Rule) -> str:
        """Return why there is no lock."""
        reason = self.progress(rule).failure
        return f"compile --choose {rule}: {reason}" if reason else "there is no lock"

    def copied(self, rules: Sequence[Rule], folder: Path) -> Iterator[Path]:
        """Copy the locks to `folder`, so that users can replay them, and yield the copies' paths.

        Raises:
            AgentCompileError: the folder cannot be written (environment).
        """
        for rule in rules:
            build = self.of(rule)
            if build is None:
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                yield Path(shutil.copyfile(build.lock, folder / f"{rule}.lock.toml"))
            except OSError as error:
                text = f"{folder}: {error.strerror or error}"
                hint = "make room, or name another file with --out; --resume goes on from what was found"
                raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
