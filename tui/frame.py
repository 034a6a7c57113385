"""The whole screen as lines: a pure function of what is known, where the person is, and what the terminal can show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from agentcompile.runs.progress import State

from . import chrome
from .charts import chart_lines
from .confirming import counted
from .decided import changes
from .forms import form_lines
from .grid import pairs, table
from .ink import BLANK, Ink, Line, Span, beside, line, shaped
from .keys import Offer, footer, narrowed, offers
from .scene import LEAST, Ask, Chart, Dialog, Form, Page, Palette, Pick, Scene, View
from .screen import FOOT, HEAD, RULE, Screens, ScreenSpec, cursor, key_of, rows, shown, table_width, upper_height
from .screens import SCREENS
from .source import colours

SAID = 3
"""Lines that what was said may take, at the cost of the body."""


def frame(scene: Scene, view: View, ink: Ink, screens: Screens = SCREENS) -> list[Line]:
    """Return the whole terminal: `view.height` lines of `view.width` cells."""
    width, height, screen = view.width, view.height, shown(screens, view)
    if width < LEAST[0] or height < LEAST[1]:
        return too_small(width, height, ink)
    alone = not scene.path and bool(scene.lock_path)
    top = screen.top or partial(_top, scene.replay.state if alone and scene.replay else scene.state)
    head = [
        *top(scene, width, ink),
        chrome.tabs(screens, screen, _note(scene, view, screen, ink), width, ink),
        chrome.rule(width, ink),
    ]
    said = _said(scene, view, screen, width, ink)
    room = body_height(scene, view, ink, screens)
    body = _overlay(scene, view, width, room, ink, screens) or _body(scene, view, screen, width, room, ink, screens)
    foot = [*said, chrome.keys(footer(scene, view, screens), width, ink)]
    return shaped([*head, *shaped(body, width, room, ink), *foot], width, height, ink)


def body_height(scene: Scene, view: View, ink: Ink, screens: Screens) -> int:
    """Return the lines between the rule at the top and what was said."""
    return view.height - HEAD - FOOT + 1 - len(_said(scene, view, shown(screens, view), view.width, ink))


def _top(state: State, scene: Scene, width: int, ink: Ink) -> list[Line]:
    return [chrome.title(scene, width, ink), chrome.stages(state, width, ink)]


def too_small(width: int, height: int, ink: Ink) -> list[Line]:
    """Return the whole of a terminal that has no room for the app."""
    text = f"agentcompile needs {LEAST[0]}×{LEAST[1]}; this terminal is {width}×{height}. Make it larger; q quits."
    return shaped([line((piece, "warn")) for piece in ink.wrap(text, max(width, 1))], width, height, ink)


def _note(scene: Scene, view: View, screen: ScreenSpec, ink: Ink) -> str:
    """Return what is filtered and sorted, else what the first line had no room for."""
    notes = []
    if wanted := view.filter.get(screen.name):
        notes.append(f"filter: {wanted}")
    sort, columns = view.sort.get(screen.name, -1), screen.columns(scene, view)
    if 0 <= sort < len(columns):
        notes.append(f"by {columns[sort].head}")
    if notes or screen.top is not None:
        return " · ".join(notes)
    return chrome.left_over(scene, view.width, ink)


def _said(scene: Scene, view: View, screen: ScreenSpec, width: int, ink: Ink) -> list[Line]:
    """Return what was said last, or how the run stands: one line, a few where it is long."""
    if isinstance(view.overlay, Ask):
        return [ask_line(view.overlay, width, ink)]
    text, style = _news(scene, view, screen.news)
    pieces = ink.wrap(text, width - 2)
    cut = [*pieces[: SAID - 1], ink.fit(" ".join(pieces[SAID - 1 :]), width - 2)] if len(pieces) > SAID else pieces
    return [line((f" {piece}", style)) for piece in cut]


def _news(scene: Scene, view: View, news: Callable[[Scene], Span] | None) -> Span:
    if view.message:
        return view.message, view.tone
    if news is not None:
        return news(scene)
    if scene.fault:
        return scene.fault, "bad"
    if scene.life == "lost":
        why = f": {scene.ending.rstrip('.')}" if scene.ending else ""
        return (
            f"The compiler is gone{why}. What it acknowledged is kept: space starts it again where it stopped.",
            "bad",
        )
    if scene.state.status == "review" and scene.life in ("live", "paused"):
        return "The compiler starts: it captures the model, checks it as a whole, then writes the lock.", "accent"
    if scene.state.status == "review":
        waits = sum(change.decided.open for change in changes(scene.state))
        if waits:
            wait = f"{counted(waits)} wait{'s' if waits == 1 else ''} for you"
            return f"{wait}: 3 shows them, y approves, a approves all that is safe.", "warn"
        return "All is decided: W writes the lock.", "good"
    failure = scene.state.failure
    if failure is not None and scene.state.status == "failed" and scene.life == "ended":
        return f"{failure.message}{'; ' + failure.hint if failure.hint else ''}", "warn"
    return (f"▲ {scene.state.warnings[-1]}", "warn") if scene.state.warnings else ("", "")


def ask_line(ask: Ask, width: int, ink: Ink) -> Line:
    """Return a question with the answer so far and the place where typing goes on."""
    title = f" {ask.title} "
    room = max(width - ink.width(title) - 2, 8)
    before, after = ask.text[: ask.at], ask.text[ask.at :]
    while ink.width(before) > room - 1:
        before = before[max(1, (ink.width(before) - room) // 2) :]
    at, rest = (after[:1] or " "), after[1:]
    return line((title, "accent"), before, (at, "bar"), rest[: max(room - ink.width(before), 0)])


def _overlay(scene: Scene, view: View, width: int, height: int, ink: Ink, screens: Screens) -> list[Line]:
    match view.overlay:
        case Palette() as palette:
            return _palette(palette, offers(scene, view, screens), height, ink)
        case Page() as page:
            return _page(page, width, height, ink)
        case Pick() as pick:
            return _picking(pick, width, height, ink)
        case Dialog() as dialog:
            return dialog_lines(dialog, width, ink)
        case Form() as form:
            return form_lines(form, scene, width, ink)
        case Chart() as chart:
            return chart_lines(chart, scene, view, width, height, ink)
        case _:
            return []


def _palette(palette: Palette, able: Sequence[Offer], height: int, ink: Ink) -> list[Line]:
    head = line((" : ", "accent"), palette.text, (" ", "bar"), ("   enter does it, escape leaves", "dim"))
    rows: list[tuple[Span, str]] = [
        ((f" {ink.fit(' '.join(act.keys[:2]), 9)} {ink.fit(act.label, 20)} ", "dim" if why else ""), why or act.help)
        for act, why in narrowed(able, palette.text)
    ]
    return (
        _listed(head, rows, palette.cursor, height)
        if rows
        else [head, BLANK, line(("   no action is called so", "dim"))]
    )


def _picking(pick: Pick, width: int, height: int, ink: Ink) -> list[Line]:
    head = line((f" {pick.title}", "title"), ("   enter takes it, escape leaves", "dim"))
    rows: list[tuple[Span, str]] = [((f" {ink.fit(label, width - 4)}", ""), "") for _, label in pick.options]
    return _listed(head, rows, pick.cursor, height)


def dialog_lines(dialog: Dialog, width: int, ink: Ink) -> list[Line]:
    """Return a question over the body; its last line names the two keys that answer it."""
    lines = [BLANK, line((f"  {dialog.title}", "title")), BLANK]
    if dialog.name is not None:
        folder = pairs([("folder", f"{dialog.folder}/{dialog.name.text}")], ink, width - 4)
        lines += [Line((("  ", ""), *one.spans)) for one in folder]
    for text, style in dialog.about:
        lines += [line((f"  {piece}", style)) for piece in ink.wrap(text, width - 4)]
    if dialog.name is not None:
        lines += [BLANK, Line((("  ", ""), *ask_line(dialog.name, width - 4, ink).spans))]
    return [*lines, BLANK, line("  ", ("enter", "key"), f" {dialog.does}   ", ("escape", "key"), " leaves it")]


def listed_from(at: int, count: int, height: int) -> int:
    """Return the first row of a list of `count` that is shown below its head and a blank, in `height` lines."""
    return max(0, min(at - (height - 4) // 2, count - (height - 3)))


def _listed(head: Line, rows: Sequence[tuple[Span, str]], at: int, height: int) -> list[Line]:
    lines = [head, BLANK]
    start = listed_from(at, len(rows), height)
    for number, ((text, style), remark) in enumerate(rows[start : start + height - 3], start):
        mark: Span = ("▌" if number == at else " ", "accent")
        lines.append(line(mark, (text, "bar" if number == at else style), " ", (remark, "dim")))
    return lines


def _page(page: Page, width: int, height: int, ink: Ink) -> list[Line]:
    lines = colours(page, width - 2, ink)
    top = max(0, min(page.top, len(lines) - (height - 1)))
    stop = min(top + height - 1, len(lines))
    more = "tab next screen, " if page.screen else ""
    place = f"{top + 1}–{stop} of {len(lines)}   {more}j k scroll" if lines else "nothing to show"
    where = f"{place}, escape leaves"
    head = line((f" {ink.fit(page.title, max(width - ink.width(where) - 3, 10))} ", "title"), (where, "dim"))
    return [head, *(Line(((" ", ""), *one.spans)) for one in lines[top:stop])]


def _body(
    scene: Scene, view: View, screen: ScreenSpec, width: int, height: int, ink: Ink, screens: Screens
) -> list[Line]:
    left = table_width(view, screen.side)
    right = width - left - RULE
    pair = _pair(screen, screens)
    if view.bench and pair:
        tables = _bench(scene, view, screen, pair, left, height, ink)
    elif view.wide:
        tables = _table(scene, view, screen, left, height, ink)
    elif view.detail:
        return [Line(((" ", ""), *one.spans)) for one in _detail(scene, view, screen, width - 2, height, ink)]
    else:
        return _table(scene, view, screen, width, height, ink)
    return beside(tables, _detail(scene, view, screen, right, height, ink), left, right, height, ink)


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Where a screen's table or detail is drawn in the body: its cells, counted from the body's own corner."""

    screen: ScreenSpec
    kind: Literal["table", "detail"]
    left: int = 0
    top: int = 0
    width: int
    height: int


def areas(view: View, height: int, screens: Screens) -> list[Area]:
    """Return the areas of a body of `height` lines, where nothing lies over it."""
    screen = shown(screens, view)
    if not view.wide:
        return [Area(screen=screen, kind="detail" if view.detail else "table", width=view.width, height=height)]
    left = table_width(view, screen.side)
    detail = Area(screen=screen, kind="detail", left=left, width=view.width - left, height=height)
    pair = _pair(screen, screens)
    if not (view.bench and pair):
        return [Area(screen=screen, kind="table", width=left, height=height), detail]
    over = upper_height(height, screen is pair[1])
    upper = Area(screen=pair[0], kind="table", width=left, height=over)
    lower = Area(screen=pair[1], kind="table", top=over + 1, width=left, height=height - over - 1)
    return [upper, lower, detail]


def _pair(screen: ScreenSpec, screens: Screens) -> tuple[ScreenSpec, ...]:
    """Return the two screens that share a workbench, where `screen` is one of them."""
    found = ((one, two) for one in screens for two in screens if one.opens == two.name and screen in (one, two))
    return next(found, ())


def _bench(
    scene: Scene, view: View, screen: ScreenSpec, pair: Sequence[ScreenSpec], width: int, height: int, ink: Ink
) -> list[Line]:
    upper, lower = pair
    over = upper_height(height, screen is lower)
    return [
        *shaped(_table(scene, view, upper, width, over, ink), width, over, ink),
        chrome.rule(width, ink),
        *_table(scene, view, lower, width, height - over - 1, ink, marked=screen is lower),
    ]


def _table(
    scene: Scene, view: View, screen: ScreenSpec, width: int, height: int, ink: Ink, *, marked: bool = True
) -> list[Line]:
    found = rows(scene, view, screen)
    head = screen.heading(scene, view, width - 2, ink)
    wanted = view.filter.get(screen.name, "")
    lines = table(
        screen.columns(scene, view),
        found,
        width=width,
        height=height - len(head),
        cursor=cursor(found, view, screen) if marked else -1,
        ink=ink,
        sort=view.sort.get(screen.name, -1),
        empty=f"Nothing matches {wanted!r}; / then enter shows all again." if wanted else screen.empty,
    )
    return [*(Line((("  ", ""), *one.spans)) for one in head), *lines]


def _detail(scene: Scene, view: View, screen: ScreenSpec, width: int, height: int, ink: Ink) -> list[Line]:
    lines = screen.detail(scene, view, key_of(scene, view, screen), width, ink)
    top = max(0, min(view.top, len(lines) - height))
    found = lines[top : top + height]
    if len(lines) > top + height:
        more = len(lines) - top - height + 1
        how = "J K scroll" if view.focus == "detail" else "tab, then j k scroll"
        found = [*found[: height - 1], line((f"… {more} more lines: {how}", "dim"))]
    return found
