"""The start page: what can be opened, the settings of a new compile, the command that does the same. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Literal

from agentcompile.search import STRATEGIES

from . import chrome
from .editing import edited, named
from .frame import ask_line, too_small
from .grid import Column, Entry, cursor_of, picked, shown_rows, table
from .ink import BLANK, Ink, Line, Span, line, shaped
from .scene import LEAST, Ask, Page, View
from .source import colours

_HEAD = 2
"""Lines above the list."""
Kind = Literal["model", "preset", "run", "refine", "lock"]
_WORDS: dict[Kind, Span] = {
    "model": ("● model", "accent"),
    "preset": ("○ preset", "dim"),
    "run": ("◐ run", ""),
    "refine": ("◆ refine", ""),
    "lock": ("‖ lock", ""),
}
COLUMNS = (Column(head="open", width=9), Column(head="name", width=24, grow=2), Column(head="about", width=16, grow=3))
FIELDS = ("target", "advisor", "strategy", "budget", "seconds", "out")
CYCLES = {
    "target": ("auto", "cpu", "cuda:0"),
    "advisor": ("heuristic", "none", "random:0"),
    "strategy": tuple(STRATEGIES),
}
HELP = (
    "# The start page",
    "j k g G      choose what is opened",
    "enter        open it: a model is compiled, a run is followed or shown, a lock is looked at",
    "tab          to the settings of a new compile, and back",
    "left right   the value before or after, where there is a list of them",
    "enter        on a setting: type its value",
    "m            type the path of a model directory, a run or a lock",
    "/            show only rows that hold these words",
    "c            copy the command that does the same headlessly",
    "t            another theme: dark, light, the terminal's own colours, high contrast",
    "q            quit",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that can be opened: its kind, its name, the argument that means it, and a remark."""

    kind: Kind
    name: str
    argument: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where the person is on the start page, and the settings of a new compile."""

    found: tuple[Found, ...] = ()
    chosen: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    """The value of each setting; those at their default are left out of the command."""
    defaults: tuple[tuple[str, str], ...] = ()
    field: int = -1
    """The setting under the cursor; -1 when the cursor is in the list."""
    wanted: str = ""
    ask: Ask | None = None
    page: Page | None = None
    message: str = ""


Does = Literal["", "open", "copy", "leave", "theme"]


def entries(start: Start) -> list[Entry]:
    """Return what can be opened, as rows."""
    rows = [
        Entry(key=one.argument, cells=(_WORDS[one.kind], (one.name, ""), (one.about, "dim"))) for one in start.found
    ]
    return picked(rows, start.wanted, -1)


def chosen(start: Start) -> Found | None:
    """Return what is under the cursor; None when nothing is there."""
    rows = entries(start)
    if not rows:
        return None
    key = rows[cursor_of(rows, start.chosen)].key
    return next(one for one in start.found if one.argument == key)


def arguments(start: Start, found: Found) -> list[str]:
    """Return the arguments of the command that does what the page is about to do."""
    match found.kind:
        case "run":
            return ["runs", "status", found.argument]
        case "refine":
            return ["refine", "show", found.argument]
        case "lock":
            return ["replay", found.argument]
        case "model" | "preset":
            defaults = dict(start.defaults)
            flags = [f"--{name}={value}" for name, value in start.settings if value != defaults.get(name)]
            return ["compile", found.argument, "--review", *flags]


def command(start: Start) -> str:
    """Return the equivalent command line; empty when nothing can be opened."""
    found = chosen(start)
    return shlex.join(["agentcompile", *arguments(start, found)]) if found is not None else ""


def frame(start: Start, view: View, ink: Ink) -> list[Line]:
    """Return the start page: `view.height` lines of `view.width` cells."""
    width, height = view.width, view.height
    if width < LEAST[0] or height < LEAST[1]:
        return too_small(width, height, ink)
    head = [
        line((" agentcompile  ", "accent"), ("an inference compiler: watch it, steer it, lock what is faster", "dim")),
        chrome.rule(width, ink),
    ]
    tail = [*_settings(start, width, ink), chrome.rule(width, ink), *_foot(start, width, ink)]
    room = height - len(head) - len(tail)
    if start.page is not None:
        lines = colours(start.page, width, ink)[start.page.top :]
        body = [Line(((" ", ""), *one.spans)) for one in lines]
    else:
        rows = entries(start)
        empty = (
            "Nothing was found here: m takes the path of a model directory." if not start.wanted else "Nothing matches."
        )
        cursor = cursor_of(rows, start.chosen) if start.field < 0 else -1
        body = table(COLUMNS, rows, width=width, height=room, cursor=cursor, ink=ink, empty=empty)
    return shaped([*head, *shaped(body, width, room, ink), *tail], width, height, ink)


def _settings(start: Start, width: int, ink: Ink) -> list[Line]:
    values = dict(start.settings)
    rows: list[list[Span]] = [[("  ", "")]]
    for at, name in enumerate(FIELDS):
        value = values.get(name, "")
        if name == "out":
            value = value.rpartition("/")[2]
        shown: Span = (f" {value} ", "bar" if at == start.field else "title")
        field: list[Span] = [(f"{name} ", "dim"), shown, ("  ", "")]
        if sum(len(text) for text, _ in (*rows[-1], *field)) > width and len(rows[-1]) > 1:
            rows.append([("  ", "")])
        rows[-1] += field
    compiles = (found := chosen(start)) is not None and found.kind in ("model", "preset")
    note = "" if compiles else "  (of a new compile; a run and a lock keep their own)"
    return [line(("  Settings", "head"), (note, "dim")), *(line(*spans) for spans in rows)]


def _foot(start: Start, width: int, ink: Ink) -> list[Line]:
    text = command(start)
    second = ask_line(start.ask, width, ink) if start.ask is not None else line((f" {start.message}", "dim"))
    return [
        line(("  $ ", "accent"), (text, "")),
        second if start.ask or start.message else BLANK,
        chrome.keys(_keys(start), width, ink),
    ]


def _keys(start: Start) -> list[tuple[str, str, bool]]:
    able = chosen(start) is not None
    return [
        ("enter", "open", able),
        ("tab", "settings", True),
        ("m", "path", True),
        ("/", "filter", True),
        ("c", "copy", able),
        ("t", "theme", True),
    ]


def press(start: Start, key: str, character: str, height: int) -> tuple[Start, Does]:
    """Return the page after a key, and what the app is to do."""
    start = replace(start, message="")
    if start.ask is not None:
        return _asked(start, start.ask, key, character)
    if start.page is not None:
        return replace(start, page=None), ""
    key = named(key, character)
    match key:
        case "q" | "ctrl+c" | "ctrl+q":
            return start, "leave"
        case "?":
            return replace(start, page=Page(title="Keys", kind="help", lines=HELP)), ""
        case "c":
            return start, "copy" if chosen(start) else ""
        case "t":
            return start, "theme"
        case "/":
            return replace(
                start, field=-1, ask=Ask(action="filter", title="Filter:", text=start.wanted, at=len(start.wanted))
            ), ""
        case "m":
            return replace(start, ask=Ask(action="path", title="Path of a model, run or lock, or preset:NAME:")), ""
        case "tab":
            return replace(start, field=0 if start.field < 0 else -1), ""
        case _:
            return _on_field(start, key) if start.field >= 0 else _on_list(start, key, height)


def clicked(start: Start, view: View, x: int, y: int, ink: Ink) -> tuple[str, ...]:
    """Return the keys that do what a click on a cell means: those of the last line, or those that choose a row."""
    if y == view.height - 1 and start.ask is None:
        key = chrome.key_at(_keys(start), view.width, x, ink)
        return (key,) if key else ()
    found = entries(start)
    if start.ask is not None or start.page is not None or not found:
        return ()
    tail = len(_settings(start, view.width, ink)) + 1 + len(_foot(start, view.width, ink))
    cursor = cursor_of(found, start.chosen)
    drawn = shown_rows(len(found), cursor if start.field < 0 else -1, view.height - _HEAD - tail)
    at = y - _HEAD - 1
    if not 0 <= at < len(drawn):
        return ()
    by = drawn[at] - cursor
    leaves = ("tab",) if start.field >= 0 else ()
    return (*leaves, *("down" if by > 0 else "up" for _ in range(abs(by)))) if by or leaves else ("enter",)


def _on_list(start: Start, key: str, height: int) -> tuple[Start, Does]:
    rows = entries(start)
    if key == "enter":
        return (start, "open") if rows else (replace(start, message="There is nothing to open."), "")
    page = max(height - 10, 1)
    steps = {
        "j": 1, "down": 1, "k": -1, "up": -1, "pagedown": page, "pageup": -page,
        "g": -len(rows), "home": -len(rows), "G": len(rows), "end": len(rows),
    }  # fmt: skip
    if key in steps and rows:
        at = max(0, min(cursor_of(rows, start.chosen) + steps[key], len(rows) - 1))
        return replace(start, chosen=rows[at].key), ""
    return start, ""


def _on_field(start: Start, key: str) -> tuple[Start, Does]:
    name = FIELDS[start.field]
    value = dict(start.settings)[name]
    match key:
        case "escape":
            return replace(start, field=-1), ""
        case "j" | "down":
            return replace(start, field=min(start.field + 1, len(FIELDS) - 1)), ""
        case "k" | "up":
            return replace(start, field=max(start.field - 1, 0)), ""
        case "left" | "right":
            turn = CYCLES.get(name)
            if turn is None:
                after = start.field + (1 if key == "right" else -1)
                return replace(start, field=max(0, min(after, len(FIELDS) - 1))), ""
            at = turn.index(value) if value in turn else 0
            return _set(start, name, turn[(at + (1 if key == "right" else -1)) % len(turn)]), ""
        case "enter":
            return replace(start, ask=Ask(action=name, title=f"{name}:", text=value, at=len(value))), ""
        case _:
            return start, ""


def _set(start: Start, name: str, value: str) -> Start:
    return replace(start, settings=tuple((one, value if one == name else old) for one, old in start.settings))


def _asked(start: Start, ask: Ask, key: str, character: str) -> tuple[Start, Does]:
    if key == "escape":
        return replace(start, ask=None), ""
    if key != "enter":
        after = edited(ask, key, character)
        wanted = after.text if ask.action == "filter" else start.wanted
        return replace(start, ask=after, wanted=wanted), ""
    text = ask.text.strip()
    start = replace(start, ask=None)
    match ask.action:
        case "filter":
            return replace(start, wanted=text), ""
        case "path":
            return (replace(start, chosen=text), "open") if text else (start, "")
        case name:
            return _set(start, name, text or dict(start.defaults)[name]), ""
