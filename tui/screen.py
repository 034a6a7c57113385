"""What a screen of the app is: one row that its file makes, with its columns, entries, detail and keys. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .grid import GAP, Column, Entry, cursor_of, fitted, picked
from .ink import Ink, Line, Span
from .scene import WIDE, Call, Scene, Step, View, What

EXPLAIN = "agentcompile explain REGION --run-dir RUN"
SIDE = 44
HEAD = 4
"""Lines above the body: title, stages, modes, rule."""
FOOT = 2
"""Lines below it: what was said last, and the keys."""
RULE = 3
"""Columns of the line between a table and its detail."""
Group = Literal["modes", "move", "decide", "run", "look", "app"]


Does = Callable[[Scene, View, "ScreenSpec"], Step]
WhyNot = Callable[[Scene, View, "ScreenSpec"], str]
"""Returns the sentence that says why an action does nothing now; empty when it does something."""


@dataclass(frozen=True, slots=True)
class Act:
    """An action: its keys as a person writes them (the first is shown), one line of help, and its effect."""

    name: str
    keys: tuple[str, ...]
    help: str
    does: Does
    why_not: WhyNot = lambda scene, view, screen: ""
    group: Group = "look"
    word: str = ""
    """Its label where that is not its name."""

    @property
    def label(self) -> str:
        """What a person calls it."""
        return self.word or self.name.replace("-", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenSpec:
    """A screen of a run: a row of the table `SCREENS`. Its number key is its place in that table."""

    name: str
    title: str
    about: str
    """One line of help on the screen."""
    columns: Callable[[Scene, View], tuple[Column, ...]]
    entries: Callable[[Scene, View], list[Entry]]
    """Returns all rows of its table, which are filtered and sorted afterwards."""
    detail: Callable[[Scene, View, str, int, Ink], list[Line]]
    """Returns the entry of a key in full, in lines of a width."""
    heading: Callable[[Scene, View, int, Ink], list[Line]] = lambda scene, view, width, ink: []
    """Returns the lines above the table."""
    top: Callable[[Scene, int, Ink], list[Line]] | None = None
    """Returns the two lines above the names of the screens; None for those of a run of `compile`."""
    news: Callable[[Scene], Span] | None = None
    """Returns how the run stands, where nothing else was said; None for that of a run of `compile`."""
    keys: tuple[Act, ...] = ()
    """Its actions beside those that work on every screen."""
    foot: tuple[str, ...] = ("open",)
    """The names of the actions that the last line shows, in this order."""
    empty: str = "Nothing is here yet."
    lists: Literal["regions", "candidates", "other"] = "other"
    """What its entries are; screens that list regions share one cursor, and so do those that list candidates."""
    opens: str = ""
    """The screen that `enter` leads to, and that shares the workbench of a large terminal with this one."""
    newest: bool = False
    """Whether the cursor follows the last entry until it is moved away from it."""
    side: int = SIDE
    """Columns of the detail pane on a terminal of 120 columns; the pane grows with the terminal."""
    headless: str = "agentcompile runs status RUN"
    """The command that shows the same; RUN, REGION and LOCK stand for values."""


Screens = tuple[ScreenSpec, ...]


def shown(screens: Screens, view: View) -> ScreenSpec:
    """Return the screen that a person looks at."""
    return next(screen for screen in screens if screen.name == view.mode)


def table_width(view: View, side: int = SIDE) -> int:
    """Return the columns of a screen's table, beside which stand a rule and a detail pane on a wide terminal."""
    return view.width - side - (view.width - WIDE) // 3 - RULE if view.wide else view.width


def upper_height(height: int, lower_shown: bool) -> int:
    """Return the lines of the upper table of a workbench of `height` lines; fewer where the lower one's screen is."""
    return (height - 1) * 2 // 5 if lower_shown else (height - 1) // 2


def visible(scene: Scene, view: View, screen: ScreenSpec) -> list[int]:
    """Return the indices of the columns that a screen's table has room for."""
    return [at for at, _ in fitted(screen.columns(scene, view), table_width(view, screen.side) - GAP)]


def rows(scene: Scene, view: View, screen: ScreenSpec) -> list[Entry]:
    """Return the entries of a screen, filtered and sorted."""
    return picked(screen.entries(scene, view), view.filter.get(screen.name, ""), view.sort.get(screen.name, -1))


def cursor(found: Sequence[Entry], view: View, screen: ScreenSpec) -> int:
    """Return the place of the entry under the cursor among the `found` ones."""
    own = {"regions": view.region, "candidates": view.candidate}.get(screen.lists, view.cursor.get(screen.name, ""))
    return len(found) - 1 if screen.newest and not own else cursor_of(found, own)


def key_of(scene: Scene, view: View, screen: ScreenSpec) -> str:
    """Return the key of the entry under the cursor; empty when the screen has no entries."""
    found = rows(scene, view, screen)
    return found[cursor(found, view, screen)].key if found else ""


def selected(view: View, screen: ScreenSpec, key: str) -> View:
    """Return the view with the entry `key` of a screen under the cursor."""
    match screen.lists:
        case "regions":
            return replace(view, region=key, candidate="", top=0)
        case "candidates":
            return replace(view, candidate=key, top=0)
        case "other":
            return replace(view, cursor={**view.cursor, screen.name: key}, top=0)


def called(what: What) -> Does:
    """Return the effect of an action that the app brings about itself."""
    return lambda scene, view, screen: Step(view=view, effects=(Call(what=what),))
