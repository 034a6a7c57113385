"""A run followed from outside: its events in slices that leave the screen alive, its compiler's stderr, its life.

In: a run directory. Out: what a `Scene` shows of the run. Invariant: `poll` takes no longer than it was allowed,
so a run of a hundred thousand events streams in while keys still work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from agentcompile.control.following import Follower
from agentcompile.errors import AgentCompileError
from agentcompile.events import (
    Advised,
    RoundsProgress,
    SearchProgress,
    TrialFinished,
    TrialStarted,
    Watched,
    clean,
)
from agentcompile.ir.trial import Measured, Trial
from agentcompile.runs.persistent import GrowingSequence
from agentcompile.runs.progress import State, apply
from agentcompile.runs.session import OPTIONS, EventRecord, RunDirectory

from .ink import Span
from .logs import KEPT, said
from .scene import Advice, Course, Life, LogLine, Reached

STDERR = "compiler.stderr"
"""In the run directory: what a compiler that the app started says beside its events."""
STDERR_BYTES = 64 << 10
"""How much of it is read at a time."""
ALIVE_S = 0.5
"""How often it is asked whether a compiler holds the run."""


class Feed:
    """One run, read as it grows; `speed` above 0 shows a past run again at that speed."""

    def __init__(self, path: Path, *, speed: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.run = RunDirectory(path)
        self.speed = speed
        self.caught_up = False
        self.fault = ""
        self.advice: dict[str, Advice] = {}
        self.course: Course = GrowingSequence()
        """What was measured when."""
        self.timing = False
        """Whether the last event says that candidates are being timed; then nothing is drawn until the next event."""
        self._clock = clock
        self._begin = clock()
        self._follower = Follower(self.run, clock=clock)
        self._state = State()
        self._past: Iterator[EventRecord] | None = None
        self._next: EventRecord | None = None
        self._first_ms = self._last_ms = 0
        self._log: deque[LogLine] = deque(maxlen=KEPT)
        self._shown: tuple[LogLine, ...] = ()
        self._number = 0
        self._checked = False
        self._alive = (float("-inf"), False)
        self._said_bytes = 0

    @property
    def state(self) -> State:
        """The fold of what was shown so far."""
        return self._state

    @property
    def log(self) -> tuple[LogLine, ...]:
        """The newest lines; the same tuple while nothing is new."""
        if not self._shown or len(self._shown) != len(self._log) or self._shown[-1] != self._log[-1]:
            self._shown = tuple(self._log)
        return self._shown

    @property
    def elapsed_s(self) -> float:
        """The time from the first event to the newest by their own clocks; it stands still while nothing happens."""
        return max(0.0, (self._last_ms - self._first_ms) / 1000)

    def poll(self, budget_s: float = 0.03) -> bool:
        """Read what is new for at most about `budget_s`, and return whether anything was."""
        if self.fault:
            return False
        try:
            self._check()
            news = self._again(budget_s) if self.speed else self._follow(budget_s)
        except AgentCompileError as error:
            self.fault = f"{error.message}{'; ' + error.hint if error.hint else ''}"
            self.caught_up = True
            return True
        return self._stderr() or news

    def _check(self) -> None:
        """Refuse a run of a newer version before its events are read."""
        if not self._checked and (self.path / OPTIONS).exists():
            self.run.options()
            self._checked = True

    def _follow(self, budget_s: float) -> bool:
        records = self._follower.new(budget_s)
        self._state, self.caught_up = self._follower.state, self._follower.caught_up
        for record in records:
            self._note(record)
        return bool(records)

    def _again(self, budget_s: float) -> bool:
        now, news = self._clock(), False
        if self._past is None:
            self._past, self._begin = (record for record, _ in self.run.records()), now
            self._next = next(self._past, None)
        self.caught_up = True
        while self._next is not None:
            until = (self._first_ms or self._next.at_ms) + (now - self._begin) * 1000 * self.speed
            if self._next.at_ms > until:
                break
            if news and self._clock() - now >= budget_s:
                self.caught_up = False
                break
            self._state = apply(self._state, self._next.event)
            self._note(self._next)
            self._next, news = next(self._past, None), True
        return news

    def _note(self, record: EventRecord) -> None:
        self._first_ms = self._first_ms or record.at_ms
        self._last_ms = max(self._last_ms, record.at_ms)
        match record.event:
            case Advised() as advised:
                self.advice[advised.region] = Advice(adviser=advised.adviser, note=advised.note, head=advised.head)
            case TrialFinished(trial=Trial(candidate=one, verdict=Measured(measurement=m))):
                self._reached(record.at_ms, one.region, m.speedup)
            case SearchProgress(step_ns=ns) if ns:
                self._reached(record.at_ms, "", float(ns))
            case _:
                pass
        if not isinstance(record.event, Watched):  # which comes at any time, and says nothing of the compiler
            self.timing = isinstance(record.event, (TrialStarted, RoundsProgress))
        if (line := said(record.event)) is not None:
            self._add(record.at_ms, *line)

    def _reached(self, at_ms: int, region: str, value: float) -> None:
        at_s = max(at_ms - self._first_ms, 0) / 1000
        self.course = self.course.plus(Reached(at_s=at_s, region=region, value=value))

    def _add(self, at_ms: int, source: str, span: Span) -> None:
        text, style = span
        self._log.append(LogLine(number=self._number, at_ms=at_ms, source=source, text=text, style=style))
        self._number += 1

    def _stderr(self) -> bool:
        try:
            with (self.path / STDERR).open("rb") as file:
                file.seek(self._said_bytes)
                data = file.read(STDERR_BYTES)
        except OSError:
            return False
        whole = data[: data.rfind(b"\n") + 1] if len(data) < STDERR_BYTES else data
        self._said_bytes += len(whole)
        for text in whole.decode("utf-8", "replace").splitlines():
            if text.strip():
                self._add(self._last_ms, "stderr", (clean(text), ""))
        return bool(whole)

    @property
    def held(self) -> bool:
        """Whether a compiler held the run when `life` last looked."""
        return self._alive[1]

    def life(self, starting: bool = False) -> Life:
        """Return whether a compiler works on the run; `starting` says that one was just begun."""
        if self.speed:
            return "ended"
        now = self._clock()
        if now - self._alive[0] >= ALIVE_S:
            self._alive = (now, self.run.alive())
        if self._alive[1] or starting:
            return "paused" if self.state.paused else "live"
        return "lost" if self.state.status == "running" and self.caught_up else "ended"
