"""What a command shows: results on stdout, everything else on stderr; no other module prints.

In: events, states, tables of text. Out: lines, one progress bar on a terminal, JSON. Texts of events are clean already;
messages of errors are cleaned here.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TextIO

from agentcompile.cli.fitting import columns as columns
from agentcompile.cli.fitting import fitted
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import (
    DriftFound,
    Event,
    LockWritten,
    PlanAdmitted,
    SearchProgress,
    StageFinished,
    StageStarted,
    Warned,
    clean,
    encode,
)
from agentcompile.ir.digest import Json
from agentcompile.lockfile.drift import difference
from agentcompile.runs import progress
from agentcompile.runs.tables import Table, pace_line, plan_line, stage_name

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import TaskID

PACED_S = 15.0
"""Seconds between two lines in a log that say how far a search is."""
WIDTH = 80
"""The characters of a line where nothing says how wide the terminal is."""
Format = Literal["text", "json", "events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A command's streams; `format` says what stdout carries: text, one JSON value, or one line of JSON per event."""

    out: TextIO
    err: TextIO
    format: Format = "text"
    quiet: bool = False
    redraws: bool = False
    """Whether stderr is a terminal on which a line can be drawn again."""
    colour: bool = False
    width: int = WIDTH
    """The characters that a line of a table may have."""

    @staticmethod
    def standard(format: Format = "text", *, quiet: bool = False, redraws: bool = True, colour: bool = True) -> Screen:
        """Return a screen on the process's own streams; `redraws` and `colour` hold only on a terminal."""
        tty = sys.stderr.isatty()
        return Screen(
            out=sys.stdout,
            err=sys.stderr,
            format=format,
            quiet=quiet,
            redraws=redraws and tty,
            colour=colour and tty,
            width=shutil.get_terminal_size((WIDTH, 0)).columns,
        )

    def say(self, text: str) -> None:
        """Write a line for people to stderr, unless quiet."""
        if not self.quiet:
            print(text, file=self.err, flush=True)

    def next(self, command: str) -> None:
        """Say which command follows, where text is shown to people."""
        if self.format == "text":
            self.say(f"next: {command}")

    def text(self, text: str, *, end: str = "\n") -> None:
        """Write a result for people to stdout, unless stdout carries something else."""
        if self.format == "text":
            self._print(text, end)

    def json(self, value: Json) -> None:
        """Write a result for programs to stdout, if JSON was asked for."""
        if self.format == "json":
            self._print(json.dumps(value, indent=2, ensure_ascii=False))

    def line(self, value: Json) -> None:
        """Write one of several results for programs as a line of JSON to stdout, if JSON was asked for."""
        if self.format == "json":
            self._print(json.dumps(value, separators=(",", ":"), ensure_ascii=False))

    def _print(self, text: str, end: str = "\n") -> None:
        """Write to stdout; an error says so, but for a reader that has gone, which is passed on as it is."""  # noqa: DOC501
        try:
            print(text, file=self.out, end=end, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise unwritable(error) from error

    def redraw(self, text: str) -> None:
        """Write a line for people to stderr in the place of the one before it; the terminal must redraw."""
        print(f"\r\x1b[K{text}", end="", file=self.err, flush=True)

    def event(self, event: Event) -> None:
        """Write an event as a line of JSON to stdout, if events were asked for."""
        if self.format == "events":
            self.record(encode(event))

    def record(self, value: Json) -> None:
        """Write what is no event as a line of JSON to stdout, if events were asked for."""
        if self.format == "events":
            self._print(json.dumps(value, separators=(",", ":"), ensure_ascii=False))

    def table(self, table: Table) -> None:
        """Write aligned columns to stdout, for people, as wide as the terminal; nothing when there are no rows."""
        if table.rows:
            self.text("\n".join(fitted(table, self.width)))


def unwritable(error: OSError) -> AgentCompileError:
    """Return what says that stdout takes nothing (environment)."""
    text = f"cannot write to standard output: {error.strerror or error}"
    return AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="free some space, or write to another place")


def complain(message: str, hint: str, *, label: str = "error", err: TextIO | None = None) -> None:
    """Write to stderr what is wrong, or what else the label says, and what to do next."""
    err = err or sys.stderr
    print(f"{label}: {clean(message, lines=True)}", file=err)
    if hint:
        print(f"hint: {clean(hint, lines=True)}", file=err, flush=True)


class Reporter(AbstractContextManager["Reporter"]):
    """An `Emit` that shows events: a bar on a terminal, one line per stage otherwise, lines of JSON when asked for."""

    def __init__(self, screen: Screen, state: progress.State | None = None) -> None:
        self.screen = screen
        self.state = state or progress.State()
        self._paced_s = 0.0
        self._bar: _Bar | None = None

    def __enter__(self) -> Self:
        if self.screen.redraws and not self.screen.quiet:
            self._bar = _Bar(self.screen)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, event: Event) -> None:
        """Show one event and fold it into `state`."""
        self.state = progress.apply(self.state, event)
        self.screen.event(event)
        line = "" if self._bar is not None and isinstance(event, StageStarted) else _line(event)
        if isinstance(event, SearchProgress) and self._bar is None and event.elapsed_s - self._paced_s >= PACED_S:
            self._paced_s, line = event.elapsed_s, f"           {pace_line(event)}"
        if self._bar is not None:
            self._bar.show(self.state, line)
        elif line:
            self.screen.say(line)


def _line(event: Event) -> str:
    match event:
        case StageStarted() if event.detail:
            return f"{stage_name(event.stage):<10}           {event.detail}"
        case StageFinished():
            return f"{stage_name(event.stage):<10} {event.seconds:6.1f} s  {event.detail}".rstrip()
        case DriftFound():
            differs = difference(event.field, event.locked, event.here)
            return f"drift: {differs} ({event.grade}); {event.remedy}"
        case Warned():
            return f"warning: {event.text}"
        case PlanAdmitted() if event.plan.step_ns:
            return f"plan       {plan_line(event.plan)}"
        case LockWritten():
            return f"wrote {event.path}"
        case _:
            return ""


class _Bar:
    def __init__(self, screen: Screen) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.text import Text

        class Drawn(Progress):
            """The bar, with what is evaluated now on a line below it, cut at the terminal's edge."""

            below = ""

            def get_renderables(self) -> Iterable[RenderableType]:
                yield from super().get_renderables()
                if self.below:
                    yield Text(f"{'':<10} {self.below}", no_wrap=True, overflow="ellipsis")

        self._console = Console(file=screen.err, markup=False, highlight=False, emoji=False, no_color=not screen.colour)
        self._progress = Drawn(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[what]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            # Drawn only when an event comes: nothing wakes up inside a timed round.
            auto_refresh=False,
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("starting", total=None, what="")
        self._progress.start()

    def show(self, state: progress.State, line: str) -> None:
        """Draw the state again, with `line` above it when it is not empty."""
        if line:
            self._console.print(line, soft_wrap=True)
        done = state.pace.candidates if state.pace is not None else state.counts.total
        running = next((row.running for row in state.rows if row.running), "")
        total = max(state.budget_trials, done) if done and state.budget_trials else None
        unit = "trials" if state.pace is None else "candidates"
        what = f"{done} {unit}" if done else state.working
        if state.pace is not None and state.stage in progress.TIMED:
            what = pace_line(state.pace)
        self._progress.below = running
        self._progress.update(
            self._task, description=stage_name(state.stage or ""), total=total, completed=done, what=what, refresh=True
        )

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def tee(*emits: Callable[[Event], object]) -> Callable[[Event], None]:
    """Return an `Emit` that passes every event to each of `emits`, in order."""

    def emit(event: Event) -> None:
        for to in emits:
            to(event)

    return emit
