"""What the mouse does, as keys would: a click chooses what is drawn under it, the wheel moves through it. Pure."""

from __future__ import annotations

from dataclasses import replace

from . import charts, chrome
from .forms import at_cell, form_lines
from .frame import Area, areas, body_height, dialog_lines, listed_from
from .grid import column_at, shown_rows
from .ink import Ink, Line
from .keys import footer, narrowed, offers
from .moving import moved, scrolled, sorted_by, stepped
from .scene import LEAST, Ask, Chart, Dialog, Form, Page, Palette, Pick, Scene, Step, View
from .screen import HEAD, Screens, cursor, rows, selected, shown
from .screens import SCREENS
from .update import press

NOTCH = 3
"""Rows or lines that one notch of the wheel moves."""
_TABS = 2
"""The line of the screens' names."""


def clicked(scene: Scene, view: View, x: int, y: int, ink: Ink, screens: Screens = SCREENS) -> Step:
    """Return what a click on a cell does: it names a screen, presses a key of the last line, or chooses a row."""
    if view.width < LEAST[0] or view.height < LEAST[1]:
        return Step(view=view)
    if y == view.height - 1 and not isinstance(view.overlay, Ask):
        key = chrome.key_at(footer(scene, view, screens), view.width, x, ink)
        return press(scene, view, key, key if len(key) == 1 else "", screens) if key else Step(view=view)
    if y == _TABS and not isinstance(view.overlay, Ask):
        number = chrome.tab_at(screens, x, ink)
        return (
            press(scene, replace(view, overlay=None), str(number), str(number), screens) if number else Step(view=view)
        )
    height = body_height(scene, view, ink, screens)
    line = y - HEAD
    if not 0 <= line < height:
        return Step(view=view)
    if view.overlay is not None:
        return _over(scene, view, x, line, height, ink, screens)
    area = _area(view, x, line, height, screens)
    return _in(scene, view, area, x, line, ink, screens) if area is not None else Step(view=view)


def wheeled(scene: Scene, view: View, x: int, y: int, by: int, ink: Ink, screens: Screens = SCREENS) -> Step:
    """Return what one notch of the wheel over a cell does; `by` is 1 downwards and -1 upwards."""
    height = body_height(scene, view, ink, screens)
    match view.overlay:
        case Page() as page:
            for _ in range(NOTCH):
                page = scrolled(page, "down" if by > 0 else "up", view.height - 7)
            return Step(view=replace(view, overlay=page))
        case Palette() | Pick() | Chart():
            return press(scene, view, "down" if by > 0 else "up", "", screens)
        case None:
            area = _area(view, x, y - HEAD, height, screens)
        case _:
            area = None
    if area is None:
        return Step(view=view)
    if area.kind == "detail":
        return Step(view=replace(view, top=max(0, min(view.top + by * NOTCH, 10_000))))
    after = replace(view, focus="table")
    for _ in range(NOTCH):
        after = moved(scene, after, area.screen, "down" if by > 0 else "up")
    return Step(view=replace(after, message=""))


def _area(view: View, x: int, y: int, height: int, screens: Screens) -> Area | None:
    found = areas(view, height, screens)
    return next((a for a in found if a.left <= x < a.left + a.width and a.top <= y < a.top + a.height), None)


def _over(scene: Scene, view: View, x: int, line: int, height: int, ink: Ink, screens: Screens) -> Step:
    """Return what a click on what lies over the body does."""
    match view.overlay:
        case Palette() as palette:
            count = len(narrowed(offers(scene, view, screens), palette.text))
            return _listed(scene, view, palette, count, line, height, screens)
        case Pick() as pick:
            return _listed(scene, view, pick, len(pick.options), line, height, screens)
        case Dialog() as dialog:
            lines = dialog_lines(dialog, view.width, ink)
            return _answered(scene, view, lines, x, screens) if line == len(lines) - 1 else Step(view=view)
        case Form() as form:
            lines = form_lines(form, scene, view.width, ink)
            if line == len(lines) - 1:
                return _answered(scene, view, lines, x, screens)
            return Step(view=replace(view, overlay=at_cell(form, x, line, view.width)))
        case Chart():
            key = charts.name_at(x) if line == 0 else ""
            return press(scene, view, key, key, screens) if key else Step(view=view)
        case _:
            return Step(view=view)


def _answered(scene: Scene, view: View, lines: list[Line], x: int, screens: Screens) -> Step:
    """Return what a click on the last line of a question does, which names the two keys that answer it."""
    leaves = lines[-1].plain.rindex("escape")
    return press(scene, view, "escape" if x >= leaves else "enter", "", screens)


def _listed(
    scene: Scene, view: View, over: Palette | Pick, count: int, line: int, height: int, screens: Screens
) -> Step:
    """Return what a click on a list does: it chooses the row, and the chosen row is taken."""
    at = listed_from(over.cursor, count, height) + line - 2
    if line < 2 or not 0 <= at < count:
        return Step(view=view)
    if at == over.cursor:
        return press(scene, view, "enter", "", screens)
    return Step(view=replace(view, overlay=replace(over, cursor=stepped(at, 0, count))))


def _in(scene: Scene, view: View, area: Area, x: int, line: int, ink: Ink, screens: Screens) -> Step:
    """Return what a click in an area does: the detail takes the keys, a head sorts, a row is chosen, then opened."""
    view, screen = replace(view, message=""), area.screen
    if area.kind == "detail":
        return Step(view=replace(view, focus="detail"))
    found = rows(scene, view, screen)
    heading = len(screen.heading(scene, view, area.width - 2, ink))
    at = line - area.top - heading
    if at == 0:
        column = column_at(screen.columns(scene, view), area.width, x - area.left)
        again = column == view.sort.get(screen.name, -1)
        return Step(view=sorted_by(scene, view, screen, -1 if again else column))
    marked = cursor(found, view, screen) if screen is shown(screens, view) or screen.opens else -1
    drawn = shown_rows(len(found), marked, area.height - heading)
    if not found or not 1 <= at <= len(drawn):
        return Step(view=view)
    row = drawn[at - 1]
    if row == marked and screen is shown(screens, view) and view.focus == "table":
        return press(scene, view, "enter", "", screens)
    newest = screen.newest and row == len(found) - 1
    view = replace(view, mode=screen.name, focus="table")
    return Step(view=selected(view, screen, "" if newest else found[row].key))
