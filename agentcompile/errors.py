"""Errors that the user can fix: an exit code, what is wrong (file, value), and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentcompile.ir.digest import Json


class ExitCode(IntEnum):
    """What a process's exit code means; 128 + signal comes from the shell."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    DRIFT = 3
    CORRECTNESS = 4
    PERFORMANCE = 5
    ENVIRONMENT = 6
    UNDECIDED = 7


MEANINGS = {
    ExitCode.OK: "ok",
    ExitCode.INTERNAL: "a fault of agentcompile; the run directory of a compilation holds a report",
    ExitCode.USAGE: "usage, settings, an unreadable lock, checkpoint or template, a prompt longer than the cache",
    ExitCode.DRIFT: "drift: the lock does not fit this machine, model or its own hash",
    ExitCode.CORRECTNESS: "correctness",
    ExitCode.PERFORMANCE: "performance gate",
    ExitCode.ENVIRONMENT: "environment: no compiler, disk full, busy, out of memory",
    ExitCode.UNDECIDED: "undecided",
}
"""What each exit code means, for people."""


class AgentCompileError(Exception):
    """An error that the user can fix; the command line catches it once and shows it without a traceback.

    The message names the file, the key and the value; the hint names the remedy. `facts` are what programs get to know
    beside both: further fields of the JSON value that `--json` prints.
    """

    def __init__(self, message: str, *, exit_code: ExitCode = ExitCode.USAGE, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
        self.facts: Mapping[str, Json] = {}
