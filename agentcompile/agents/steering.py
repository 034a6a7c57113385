"""What a person asks of a session that works: commands are read from its folder between two attempts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from agentcompile.agents.folder import SessionFolder
from agentcompile.agents.refining import SessionSteering
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit, Steered
from agentcompile.runs.status import STOPPED

LOOK_S = 0.2
"""Seconds between two looks while a session is paused."""


class SteeredSession:
    """The steering of one process of a session; its clock stands still while the session is paused.

    Use it as a context manager around the attempts, so that the time of the last one is kept too.
    """

    def __init__(
        self,
        folder: SessionFolder,
        emit: Emit,
        *,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin; a pause or a stop that was meant for an earlier process counts no more, closed branches do."""
        self._folder, self._emit, self._sleep, self._clock = folder, emit, sleep, clock
        self._held_s = 0.0
        self.spent_s = folder.worked_s()
        """Seconds that earlier processes of the session worked."""
        self._begin = self.clock()
        self._prune = [one.node for one in folder.take() if one.what == "prune"]

    def __enter__(self) -> SteeredSession:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(AgentCompileError):  # the disk is full, which is not why the session ends
            self.keep_time()

    def clock(self) -> float:
        """Return seconds of a clock that stands still in pauses; only differences have a meaning."""
        return self._clock() - self._held_s

    def keep_time(self) -> None:
        """Write how long the session has been worked on, for the process that goes on with it.

        Raises:
            AgentCompileError: it cannot be written (environment).
        """
        self._folder.keep_worked_s(self.spent_s + self.clock() - self._begin)

    def steer(self) -> SessionSteering:
        """Return what was asked since the last call; while the session is paused, wait.

        The time is written first, so that a process that is killed loses at most that of its last attempt.

        Raises:
            AgentCompileError: the time cannot be written (environment).
        """
        self.keep_time()
        paused = False
        while True:
            for one in self._folder.take():
                match one.what:
                    case "prune":
                        self._prune.append(one.node)
                    case "stop":
                        self._emit(Steered(what="stop"))
                        return SessionSteering(stop=STOPPED, prune=self._taken())
                    case "pause" | "resume":
                        if paused != (one.what == "pause"):
                            self._emit(Steered(what=one.what))
                        paused = one.what == "pause"
            if not paused:
                return SessionSteering(prune=self._taken())
            begin = self._clock()
            self._sleep(LOOK_S)
            self._held_s += self._clock() - begin

    def _taken(self) -> tuple[int, ...]:
        found, self._prune = tuple(self._prune), []
        return found
