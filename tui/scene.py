"""What the app knows and shows: the run as its events tell, where the person is, what a key does. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentcompile.control.commands import Command
from agentcompile.ir.template import Candidate, Param, Params
from agentcompile.runs.persistent import GrowingSequence
from agentcompile.runs.progress import State
from agentcompile.runs.recorded_searches import RecordedSearches

from .ink import Span, Style
from .refined import Refined

Baseline = Literal["pytorch", "best", "first"]
What = Literal[
    "copy", "source", "diff", "lock-text", "resume", "write", "check", "replay", "leave", "stop", "theme", "report"
]
Steering = Literal["pause", "resume", "stop", "stop-now", "prune", "promote"]
"""What a person does with a session of `refine`."""
Shown = Literal["", "fit", "whole"]
"""What is shown of a search: nothing, as much as there is room for, or all of it."""
BASELINES: tuple[Baseline, ...] = ("pytorch", "best", "first")
LEAST = (60, 16)
"""Columns and rows below which nothing is shown."""
WIDE = 120
"""Columns from which a detail pane stands beside the table."""
BENCH = (160, 48)
"""Columns and rows from which regions, candidates and detail share the screen."""
Life = Literal["live", "paused", "ended", "lost"]
"""live: a compiler holds the run; ended: it said how it ended; lost: it is gone and did not say."""
WORKS: tuple[Life, ...] = ("live", "paused")
"""The lives of a run or session that a process works on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One event or one line of the compiler's stderr."""

    number: int
    at_ms: int
    source: str
    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What an adviser said of a region, in its own words."""

    adviser: str
    note: str
    head: tuple[str, ...] = ()
    """Labels of the candidates that it would try first; a model's advice that comes later does not change them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay or a check of the lock that runs beside the app, as far as its own events tell."""

    what: Literal["check", "replay"]
    state: State = field(default_factory=State)
    exit_code: int | None = None
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A value that was measured at a time of the run: a region's ratio to PyTorch, or the best step in nanoseconds."""

    at_s: float
    """By the run's clock, from its first event."""
    region: str
    """Empty for the whole step."""
    value: float


Course = GrowingSequence[Reached]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is known of the run, of the process that works on it, and of a replay beside it."""

    run: str = ""
    """The run directory as a person would name it."""
    path: str = ""
    state: State = field(default_factory=State)
    life: Life = "ended"
    reading: bool = False
    """Whether what its events say so far is not all that is there, so that nobody can say yet how it stands."""
    log: tuple[LogLine, ...] = ()
    advice: Mapping[str, Advice] = field(default_factory=dict)
    """By region id."""
    replay: Replay | None = None
    lock_text: tuple[str, ...] = ()
    lock_path: str = ""
    lock_facts: tuple[tuple[str, str], ...] = ()
    """What a lock without its run says."""
    course: Course = field(default_factory=GrowingSequence[Reached])
    """What was measured when, in that order."""
    elapsed_s: float = 0.0
    speed: float = 0.0
    """Of a past run that is shown again; 0 for one that is followed."""
    ending: str = ""
    """Why a compiler is gone that did not say so itself; empty when nothing tells."""
    fault: str = ""
    """Why the run cannot be read any further."""
    recorded: RecordedSearches | None = None
    """Searches of a study, to draw behind the search of a region."""
    authors: Mapping[str, str] = field(default_factory=dict)
    """Who wrote a template that models wrote, by its digest."""
    refined: Refined | None = None
    """The session of `refine` that it is, where it is one."""

    @property
    def held(self) -> bool:
        """Whether it is held, or will be as soon as what was asked is read, so that the next thing is to go on."""
        asked = [one.what for one in self.refined.waiting if one.what in ("pause", "resume")] if self.refined else []
        return asked[-1] == "pause" if asked else self.life != "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question on the last line: what for, and the answer so far."""

    action: str
    title: str
    text: str = ""
    at: int = 0
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """The list of all actions, narrowed by what was typed."""

    text: str = ""
    cursor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Text over the whole body: help, a source, a difference, the lock's text."""

    title: str
    kind: Literal["help", "text", "source", "diff"]
    lines: tuple[str, ...] = ()
    language: str = ""
    top: int = 0
    screen: str = ""
    """The screen that a help is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A list to choose from: keys and labels."""

    action: str
    title: str
    options: tuple[tuple[str, str], ...] = ()
    cursor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart over the body, by its place among the charts."""

    which: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The parameters of a candidate with their domains, as a person changes them."""

    candidate: Candidate
    params: tuple[Param, ...]
    values: Params
    requires: tuple[str, ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    """Names that constraints may read beside parameters, with their values."""
    cursor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """An effect: do with a session of `refine` what the verb of that name does."""

    what: Steering
    node: int = 0
    """Of `prune` and `promote`."""
    name: str = ""
    """Of the template, for `promote`; empty for one that follows from its texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """An effect: send a command to the compiler, or write it into the run where no compiler works."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An effect that the app brings about itself; `text` is the candidate of a source or a difference."""

    what: What
    text: str = ""


Effect = Send | Call | Steer


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """A question over the whole body before something is done: what it is about, and what it does."""

    title: str
    about: tuple[Span, ...]
    does: str
    """What `enter` does, as a verb."""
    effect: Effect
    name: Ask | None = None
    """The name that a person may change; None where there is none."""
    folder: str = ""
    """The folder in which a folder of that name is made."""


Overlay = Ask | Palette | Page | Pick | Dialog | Form | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where the person is: the screen, cursors, filters, what lies over the screen, the size of the terminal."""

    width: int = 80
    height: int = 24
    mode: str = "regions"
    """The name of the screen that is shown."""
    region: str = ""
    candidate: str = ""
    cursor: Mapping[str, str] = field(default_factory=dict)
    """Screen name to the key of its entry under the cursor, for screens that list neither regions nor candidates."""
    detail: bool = False
    """Whether the detail has the whole body, where it does not stand beside the table."""
    top: int = 0
    """First line of the detail that is shown."""
    focus: Literal["table", "detail"] = "table"
    baseline: Baseline = "pytorch"
    search: Shown = ""
    """What Tune shows of the search in place of its candidates."""
    sort: Mapping[str, int] = field(default_factory=dict)
    filter: Mapping[str, str] = field(default_factory=dict)
    overlay: Overlay | None = None
    message: str = ""
    tone: Style = "dim"

    @property
    def wide(self) -> bool:
        """Whether a detail pane stands beside the table."""
        return self.width >= WIDE

    @property
    def bench(self) -> bool:
        """Whether the workbench fits."""
        return self.width >= BENCH[0] and self.height >= BENCH[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The view after a key, and the effects that follow from it."""

    view: View
    effects: tuple[Effect, ...] = ()
