"""What recipes that time arms share: what they say, how they are cut and gone on with, and the command that is kept."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from agentcompile.cli.exits import Stopped, Terminated
from agentcompile.evaluation.machine import Machine

from .partial import OutOfTime, PartialFile

T = TypeVar("T")
_OF_THE_RESUMED = ("--resume", "--retry-failed")


def whole(
    find: Callable[[], T], file: PartialFile, command: Sequence[str], *, minutes: float | None, rounds: int
) -> T | None:
    """What `find` returns; None, once it is said how to go on, when the run's own `minutes` ended it before all
    `rounds` were timed. `command` is what the user typed. Raises Stopped for a signal."""
    words = [word for word in command if word not in _OF_THE_RESUMED]
    goes_on = "go on with: " + shlex.join([*words, "--resume"])
    try:
        return find()
    except OutOfTime:
        done = sum(len(progress.outcome.rounds) for progress in file.content.models.values())
        say(f"stopped after {minutes:g} minutes with {done} of {rounds} rounds; {goes_on}")
        return None
    except KeyboardInterrupt as ended:
        number = ended.number if isinstance(ended, Terminated) else int(signal.SIGINT)
        raise Stopped(number, f"finished rounds are kept; {goes_on}") from None


def threads_of(machine: Machine) -> int:
    """Of every arm: on a GPU, where the host only feeds it, one a processor that this process may run on."""
    return machine.target.threads if machine.device == "cpu" else len(os.sched_getaffinity(0))


def say(text: str) -> None:
    """A line for whoever watches."""
    print(text, file=sys.stderr, flush=True)
