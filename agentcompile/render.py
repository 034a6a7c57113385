"""What a command shows: results on stdout, everything else on stderr. The only place that prints.

In: events, states, tables of text. Out: lines, one progress bar on a terminal, JSON. Texts of events are clean already;
messages of errors are cleaned here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TextIO

from agentcompile import progress
from agentcompile.events import DriftFound, Event, LockWritten, PlanAdmitted, StageFinished, Warned, clean, encode
from agentcompile.ir.codec import encode as encode_any
from agentcompile.ir.digest import Json
from agentcompile.ir.trial import Fallback, Kernel, Plan

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Format = Literal["text", "json", "events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where a command writes. `format` says what stdout carries: text, one JSON value, or a line of JSON an event."""

    out: TextIO
    err: TextIO
    format: Format = "text"
    quiet: bool = False
    redraws: bool = False
    """Whether stderr is a terminal on which a line can be drawn again."""
    colour: bool = False

    @staticmethod
    def standard(format: Format = "text", *, quiet: bool = False, redraws: bool = True, colour: bool = True) -> Screen:
        """The process's own streams; `redraws` and `colour` hold only on a terminal."""
        tty = sys.stderr.isatty()
        return Screen(
            out=sys.stdout, err=sys.stderr, format=format, quiet=quiet, redraws=redraws and tty, colour=colour and tty
        )

    def say(self, text: str) -> None:
        """A line for people, on stderr; none when quiet."""
        if not self.quiet:
            print(text, file=self.err, flush=True)

    def text(self, text: str, *, end: str = "\n") -> None:
        """A result for people, on stdout; none when stdout carries something else."""
        if self.format == "text":
            print(text, file=self.out, end=end, flush=True)

    def json(self, value: Json) -> None:
        """A result for programs, on stdout, when it was asked for."""
        if self.format == "json":
            print(json.dumps(value, indent=2, ensure_ascii=False), file=self.out, flush=True)

    def event(self, event: Event) -> None:
        """A line of JSON on stdout, when events were asked for."""
        if self.format == "events":
            print(json.dumps(encode(event), separators=(",", ":"), ensure_ascii=False), file=self.out, flush=True)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """Aligned columns on stdout, for people."""
        if self.format == "text" and rows:
            self.text("\n".join(columns(heads, rows, right=right)))


def complain(message: str, hint: str, *, err: TextIO | None = None) -> None:
    """Say on stderr what is wrong and what to do next."""
    err = err or sys.stderr
    print(f"error: {clean(message, lines=True)}", file=err)
    if hint:
        print(f"hint: {clean(hint, lines=True)}", file=err, flush=True)


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines with columns padded to their widest cell; `right` names the columns aligned to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    aligned = [
        [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (heads, *rows)
    ]
    return ["  ".join(row).rstrip() for row in aligned]


def duration(ns: float) -> str:
    """Nanoseconds in the unit that reads best: ``812 ns``, ``14.2 µs``, ``3.41 ms``, ``1.20 s``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            value = ns / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{ns:.0f} ns"


def size(count: float) -> str:
    """Bytes in decimal units: ``1.19 GB``."""
    for unit, per in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= per:
            return f"{count / per:.3g} {unit}"
    return f"{count:.0f} B"


REGION_HEADS = ("region", "sites", "share", "floor", "pytorch", "best", "ratio", "choice")
REGION_RIGHT = (1, 2, 3, 4, 5, 6)


def region_rows(state: progress.State) -> list[tuple[str, ...]]:
    """The region table, largest share first; a dash where nothing is known yet."""
    return [_region_row(row) for row in sorted(state.rows, key=lambda row: (-row.share, row.name))]


def _region_row(row: progress.Row) -> tuple[str, ...]:
    best = row.best
    return (
        row.name,
        str(row.sites),
        f"{row.share:.1%}",
        duration(row.floor_ns),
        duration(best.measurement.baseline_ns) if best else "-",
        duration(best.measurement.median_ns) if best else "-",
        f"{best.ratio:.2f}×" if best else "-",
        _choice(row),
    )


def _choice(row: progress.Row) -> str:
    match row.choice:
        case Kernel(candidate=candidate):
            return candidate.label
        case Fallback(reason=reason):
            return f"PyTorch: {reason}"
        case None:
            return f"{row.points} candidates" if row.points else row.state


def plan_line(plan: Plan) -> str:
    """One line on a plan: its step beside the best baseline's."""
    if not plan.step_ns:
        return f"{plan.regime.name}: {len(plan.parts)} regions, not timed"
    import math

    ratio, low, high = (math.exp(plan.log_ratio + sign * plan.half_width) for sign in (0, -1, 1))
    step = f"{duration(plan.step_ns)} a step, baseline {duration(plan.baseline_ns)}"
    return f"{plan.regime.name}: {step}: {ratio:.2f}× ({low:.2f}–{high:.2f})"


def state_json(state: progress.State) -> dict[str, Json]:
    """A run for programs: everything but the single trials."""
    return {
        "status": state.status,
        "model": state.model,
        "target": encode_any(state.target),
        "stages": encode_any(state.stages),
        "graphs": encode_any(state.graphs),
        "boundaries": encode_any(state.boundaries),
        "regions": encode_any(state.rows),
        "plans": encode_any(state.plans),
        "lock": encode_any(state.lock),
        "drift": encode_any(state.drift),
        "warnings": encode_any(state.warnings),
        "failure": encode_any(state.failure),
        "trials": encode_any(state.counts),
    }


class Reporter(AbstractContextManager["Reporter"]):
    """An `Emit` that shows events: a bar on a terminal, a line a stage otherwise, lines of JSON when asked for."""

    def __init__(self, screen: Screen, state: progress.State | None = None) -> None:
        self.screen = screen
        self.state = state or progress.State()
        self._bar: _Bar | None = None

    def __enter__(self) -> Self:
        if self.screen.redraws and not self.screen.quiet:
            self._bar = _Bar(self.screen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, event: Event) -> None:
        """Show one event and fold it into `state`."""
        self.state = progress.apply(self.state, event)
        self.screen.event(event)
        line = _line(event)
        if self._bar is not None:
            self._bar.show(self.state, line)
        elif line:
            self.screen.say(line)


def _line(event: Event) -> str:
    """What an event is worth in a log: a line, or nothing."""
    match event:
        case StageFinished():
            return f"{event.stage:<10} {event.seconds:6.1f} s  {event.detail}".rstrip()
        case DriftFound():
            return f"drift: {event.field}: locked {event.locked}, here {event.here} ({event.grade}); {event.remedy}"
        case Warned():
            return f"warning: {event.text}"
        case PlanAdmitted():
            return f"plan       {plan_line(event.plan)}"
        case LockWritten():
            return f"wrote {event.path}"
        case _:
            return ""


class _Bar:
    """One line that is drawn again: the stage, trials of the budget, what runs now."""

    def __init__(self, screen: Screen) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(file=screen.err, markup=False, highlight=False, emoji=False, no_color=not screen.colour)
        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
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
        """Draw the state again, with `line` above it when there is one."""
        if line:
            self._console.print(line, soft_wrap=True)
        done = state.counts.total
        running = next((row.running for row in state.rows if row.running), "")
        total = max(state.budget_trials, done) if done and state.budget_trials else None
        what = f"{done} trials  {running}"[:60] if done else ""
        self._progress.update(
            self._task, description=state.stage or "", total=total, completed=done, what=what, refresh=True
        )

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def tee(*emits: Callable[[Event], object]) -> Callable[[Event], None]:
    """An `Emit` that hands every event on, in order."""

    def emit(event: Event) -> None:
        for to in emits:
            to(event)

    return emit
