"""The actions that move through what is shown, between entries, in the detail and in pages. Pure."""

from __future__ import annotations

from dataclasses import replace

from .decided import changes
from .scene import Ask, Page, Scene, Step, View
from .screen import Act, ScreenSpec, cursor, key_of, rows, selected, visible
from .trials import ordered, region_of


def stepped(at: int, by: int, count: int) -> int:
    """Return `at` moved by `by`, inside `count` rows."""
    return max(0, min(at + by, count - 1))


def moved(scene: Scene, view: View, screen: ScreenSpec, name: str) -> View:
    """Return the view after the movement `name`."""
    in_detail = view.focus == "detail"
    match name:
        case "filter":
            text = view.filter.get(screen.name, "")
            return replace(view, overlay=Ask(action="filter", title=f"Filter {screen.name}:", text=text, at=len(text)))
        case "open" if screen.opens and (view.wide or view.detail):
            key = key_of(scene, view, screen)
            at = view if key == region_of(scene, view) else selected(view, screen, key)
            return replace(at, mode=screen.opens, detail=False, top=0)
        case "open":
            return replace(view, detail=view.detail or not view.wide, focus="detail", top=0)
        case "back" if view.detail or in_detail:
            return replace(view, detail=False, focus="table", top=0)
        case "back" if view.search and screen.lists == "candidates" and not view.filter.get(screen.name):
            return replace(view, search="", sort={**view.sort, screen.name: -1})
        case "back":
            return followed(scene, replace(view, filter={**view.filter, screen.name: ""}), screen)
        case "focus":
            return replace(view, focus="table" if in_detail else "detail", detail=view.detail or not view.wide)
        case "sort" | "sort-back":
            turn = [-1, *visible(scene, view, screen)]
            now = view.sort.get(screen.name, -1)
            place = turn.index(now) if now in turn else 0
            return sorted_by(scene, view, screen, turn[(place + (1 if name == "sort" else -1)) % len(turn)])
        case "next-undecided" | "previous-undecided":
            return _region(scene, view, screen, 1 if name == "next-undecided" else -1)
        case _ if in_detail and (view.wide or view.detail):
            return replace(view, top=max(0, _line(view.top, name, view.height - 8)))
        case _:
            return _row(scene, view, screen, name)


def sorted_by(scene: Scene, view: View, screen: ScreenSpec, column: int) -> View:
    """Return the view with a screen's rows sorted by a column, -1 for as they come; the cursor stays on its row."""
    view = selected(view, screen, key_of(scene, view, screen))
    return followed(scene, replace(view, sort={**view.sort, screen.name: column}), screen)


def followed(scene: Scene, view: View, screen: ScreenSpec) -> View:
    """Return the view with the row that is under the cursor now as the chosen one, so that its detail is shown.

    After a filter or a sort the chosen row may be another one, or gone.
    """
    key = key_of(scene, view, screen)
    return view if not key or screen.newest else selected(view, screen, key)


def _line(top: int, name: str, page: int) -> int:
    steps = {"down": 1, "up": -1, "page-down": page, "page-up": -page, "top": -top, "bottom": 10_000}
    return min(top + steps.get(name, 0), 10_000)


def _row(scene: Scene, view: View, screen: ScreenSpec, name: str) -> View:
    found = rows(scene, view, screen)
    if not found:
        return view
    page = max(view.height - 10, 1)
    steps = {"down": 1, "up": -1, "page-down": page, "page-up": -page, "top": -len(found), "bottom": len(found)}
    at = stepped(cursor(found, view, screen), steps.get(name, 0), len(found))
    return selected(view, screen, "" if screen.newest and at == len(found) - 1 else found[at].key)


def _region(scene: Scene, view: View, screen: ScreenSpec, by: int) -> View:
    found = rows(scene, view, screen) if screen.lists == "regions" else ()
    keys = [entry.key for entry in found] or [row.region for row in ordered(scene.state)]
    if not keys:
        return view
    undecided = {change.row.region for change in changes(scene.state) if change.decided.open}
    now = region_of(scene, view)
    at = keys.index(now) if now in keys else 0
    turn = [keys[(at + by * step) % len(keys)] for step in range(1, len(keys) + 1)]
    after = next((key for key in turn if key in undecided), turn[0])
    return replace(view, region=after, candidate="", top=0)


def scrolled(page: Page, key: str, height: int) -> Page:
    """Return a page after a key, where `height` lines of it are shown."""
    steps = {
        "j": 1, "down": 1, "k": -1, "up": -1, "pagedown": height, "space": height, "pageup": -height,
        "g": -page.top, "home": -page.top, "G": len(page.lines), "end": len(page.lines),
    }  # fmt: skip
    return replace(page, top=max(0, min(page.top + steps.get(key, 0), max(len(page.lines) - height, 0))))


def _move(name: str, keys: tuple[str, ...], help: str) -> Act:
    return Act(name, keys, help, lambda scene, view, screen: Step(view=moved(scene, view, screen, name)), group="move")


MOVES = (
    _move("down", ("j", "down"), "the next row, or a line further in a page"),
    _move("up", ("k", "up"), "the row before, or a line back in a page"),
    _move("top", ("g", "home"), "the first row"),
    _move("bottom", ("G", "end"), "the last row; in the log, follow what comes"),
    _move("page-down", ("pagedown",), "a page further"),
    _move("page-up", ("pageup",), "a page back"),
    _move("open", ("enter",), "the row in detail; of a region, then its candidates"),
    _move("back", ("escape",), "leave what is open, or clear the filter"),
    _move("filter", ("/",), "show only rows that hold these words"),
    _move("sort-back", ("[",), "sort by the column before"),
    _move("sort", ("]",), "sort by the next column"),
    _move("focus", ("tab",), "the table or the detail: which of them j and k move"),
)
"""Movements that every screen has."""
UNDECIDED = (
    _move("next-undecided", ("J",), "the next region to decide on, or the next region"),
    _move("previous-undecided", ("K",), "the same backwards"),
)
