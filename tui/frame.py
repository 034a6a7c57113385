"""The whole screen as lines: a pure function of what is known, where the person is, and what the terminal can show."""

from __future__ import annotations

from collections.abc import Sequence

from . import chrome, locking, logs, regions, review, tuning
from .constraints import worth
from .grid import table
from .ink import BLANK, Ink, Line, Span, beside, line, shaped
from .keys import Offer, footer, offers
from .picks import columns, cursor, key_of, region_of, rows
from .scene import LEAST, Ask, Mode, Page, Palette, Pick, Scene, View
from .source import colours

HEAD = 4
"""Lines above the body: title, stages, modes, rule."""
FOOT = 2
"""Lines below it: what was said last, and the keys."""
SAID = 3
"""Lines that what was said may take, at the cost of the body."""
_SIDE = {"regions": 44, "tune": 44, "review": 42, "lock": 42, "log": 50}
"""Columns of the detail pane of a mode, on a screen of 120; it grows with the screen."""
_EMPTY: dict[Mode, str] = {
    "regions": "No regions yet: they appear when the model is cut.",
    "tune": "No candidate was tried in this region yet.",
    "review": "No plan yet.",
    "lock": "Nothing to lock yet.",
    "log": "Nothing was said yet.",
}


def frame(scene: Scene, view: View, ink: Ink) -> list[Line]:
    """`view.height` lines of `view.width` cells."""
    width, height = view.width, view.height
    if width < LEAST[0] or height < LEAST[1]:
        return _too_small(width, height, ink)
    alone = not scene.path and bool(scene.lock_path)
    head = [
        chrome.title(scene, width, ink),
        chrome.stages(scene.replay.state if alone and scene.replay else scene.state, width, ink),
        chrome.tabs(view, _note(scene, view), width, ink),
        chrome.rule(width, ink),
    ]
    said = _said(scene, view, width, ink)
    room = height - HEAD - FOOT + 1 - len(said)
    body = _overlay(scene, view, width, room, ink) or _body(scene, view, width, room, ink)
    foot = [*said, chrome.keys(footer(scene, view), width, ink)]
    return shaped([*head, *shaped(body, width, room, ink), *foot], width, height, ink)


def _too_small(width: int, height: int, ink: Ink) -> list[Line]:
    text = f"agentcompile needs {LEAST[0]}×{LEAST[1]}; this terminal is {width}×{height}. Make it larger; q quits."
    return shaped([line((piece, "warn")) for piece in ink.wrap(text, max(width, 1))], width, height, ink)


def _note(scene: Scene, view: View) -> str:
    notes = []
    if wanted := view.filter.get(view.mode):
        notes.append(f"filter: {wanted}")
    sort, heads = view.sort.get(view.mode, -1), [column.head for column in columns(scene, view.mode)]
    if 0 <= sort < len(heads):
        notes.append(f"by {heads[sort]}")
    return " · ".join(notes)


def _said(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """What was said last, or how the run stands: one line, a few where it is long."""
    if isinstance(view.overlay, Ask):
        return [ask_line(view.overlay, width, ink)]
    text, style = _news(scene, view)
    pieces = ink.wrap(text, width - 2)
    cut = [*pieces[: SAID - 1], ink.fit(" ".join(pieces[SAID - 1 :]), width - 2)] if len(pieces) > SAID else pieces
    return [line((f" {piece}", style)) for piece in cut]


def _news(scene: Scene, view: View) -> Span:
    if view.message:
        return view.message, view.tone
    if scene.fault:
        return scene.fault, "bad"
    if scene.life == "lost":
        why = f": {scene.ending.rstrip('.')}" if scene.ending else ""
        return (
            f"The compiler is gone{why}. What it acknowledged is kept: space starts it again where it stopped.",
            "bad",
        )
    if scene.state.status == "review":
        waits = sum(change.decided.open for change in review.changes(scene.state))
        if waits:
            return f"{waits} regions wait for you: 3 shows them, y approves, a approves all that is safe.", "warn"
        return "All is decided: W writes the lock.", "good"
    failure = scene.state.failure
    if failure is not None and scene.state.status == "failed" and scene.life == "ended":
        return f"{failure.message}{'; ' + failure.hint if failure.hint else ''}", "warn"
    return (f"▲ {scene.state.warnings[-1]}", "warn") if scene.state.warnings else ("", "")


def ask_line(ask: Ask, width: int, ink: Ink) -> Line:
    """A question with the answer so far and the place where typing goes on."""
    title = f" {ask.title} "
    room = max(width - ink.width(title) - 2, 8)
    before, after = ask.text[: ask.at], ask.text[ask.at :]
    while ink.width(before) > room - 1:
        before = before[max(1, (ink.width(before) - room) // 2) :]
    at, rest = (after[:1] or " "), after[1:]
    return line((title, "accent"), before, (at, "bar"), rest[: max(room - ink.width(before), 0)])


def _overlay(scene: Scene, view: View, width: int, height: int, ink: Ink) -> list[Line]:
    match view.overlay:
        case Palette(text=text, cursor=at):
            return palette(text, at, offers(scene, view), width, height, ink)
        case Page() as page:
            return shown(page, width, height, ink)
        case Pick() as pick:
            return picking(pick, width, height, ink)
        case _:
            return []


def palette(text: str, at: int, able: Sequence[Offer], width: int, height: int, ink: Ink) -> list[Line]:
    """The actions whose name holds what was typed; those that do nothing now say why."""
    found = narrowed(able, text)
    lines = [line((" : ", "accent"), text, (" ", "bar"), ("   enter does it, escape leaves", "dim")), BLANK]
    start = max(0, min(at - (height - 4) // 2, len(found) - (height - 3)))
    for number, offer in enumerate(found[start : start + height - 3], start):
        chosen = number == at
        name: Span = (
            f" {ink.fit(offer.keys, 9)} {ink.fit(offer.label, 20)} ",
            "bar" if chosen else "" if offer.able else "dim",
        )
        lines.append(line(("▌" if chosen else " ", "accent"), name, " ", (offer.why or offer.help, "dim")))
    return lines if found else [*lines, line(("   no action is called so", "dim"))]


def picking(pick: Pick, width: int, height: int, ink: Ink) -> list[Line]:
    """A list to choose from, with a mark at the cursor."""
    lines = [line((f" {pick.title}", "title"), ("   enter takes it, escape leaves", "dim")), BLANK]
    start = max(0, min(pick.cursor - (height - 4) // 2, len(pick.options) - (height - 3)))
    for number, (_, label) in enumerate(pick.options[start : start + height - 3], start):
        chosen = number == pick.cursor
        text: Span = (f" {ink.fit(label, width - 4)}", "bar" if chosen else "")
        lines.append(line(("▌" if chosen else " ", "accent"), text))
    return lines


def narrowed(able: Sequence[Offer], text: str) -> list[Offer]:
    """The actions whose name, label or help holds every word of `text`."""
    words = text.lower().split()
    return [
        offer for offer in able if all(word in f"{offer.name} {offer.label} {offer.help}".lower() for word in words)
    ]


def shown(page: Page, width: int, height: int, ink: Ink) -> list[Line]:
    """A page from its first shown line on, with where that is."""
    lines = colours(page, width - 2, ink)
    top = max(0, min(page.top, len(lines) - (height - 1)))
    stop = min(top + height - 1, len(lines))
    where = (
        f"{top + 1}–{stop} of {len(lines)}   j k scroll, escape leaves" if lines else "nothing to show   escape leaves"
    )
    head = line((f" {ink.fit(page.title, max(width - ink.width(where) - 3, 10))} ", "title"), (where, "dim"))
    return [head, *(Line(((" ", ""), *one.spans)) for one in lines[top:stop])]


def _body(scene: Scene, view: View, width: int, height: int, ink: Ink) -> list[Line]:
    if view.bench and view.mode in ("regions", "tune"):
        return _bench(scene, view, width, height, ink)
    if view.wide:
        right = _SIDE[view.mode] + (width - 120) // 3
        left = width - right - 3
        return beside(
            _table(scene, view, view.mode, left, height, ink),
            _detail(scene, view, right, height, ink),
            left,
            right,
            height,
            ink,
        )
    if view.detail:
        return [Line(((" ", ""), *one.spans)) for one in _detail(scene, view, width - 2, height, ink)]
    return _table(scene, view, view.mode, width, height, ink)


def _bench(scene: Scene, view: View, width: int, height: int, ink: Ink) -> list[Line]:
    """Regions over candidates at the left, the detail of the one in focus at the right."""
    right = _SIDE[view.mode] + (width - 120) // 3
    left = width - right - 3
    over = (height - 1) * 2 // 5 if view.mode == "tune" else (height - 1) // 2
    tables = [
        *shaped(_table(scene, view, "regions", left, over, ink, view.mode == "regions"), left, over, ink),
        chrome.rule(left, ink),
        *_table(scene, view, "tune", left, height - over - 1, ink, view.mode == "tune"),
    ]
    return beside(tables, _detail(scene, view, right, height, ink), left, right, height, ink)


def _table(scene: Scene, view: View, mode: Mode, width: int, height: int, ink: Ink, focused: bool = True) -> list[Line]:
    found = rows(scene, view, mode)
    head = heading(scene, view, mode, width - 2, ink)
    wanted = view.filter.get(mode, "")
    lines = table(
        columns(scene, mode),
        found,
        width=width,
        height=height - len(head),
        cursor=cursor(found, view, mode) if focused or mode == "regions" else -1,
        ink=ink,
        sort=view.sort.get(mode, -1),
        empty=f"Nothing matches {wanted!r}; / then enter shows all again." if wanted else _EMPTY[mode],
    )
    return [*(Line((("  ", ""), *one.spans)) for one in head), *lines]


def heading(scene: Scene, view: View, mode: Mode, width: int, ink: Ink) -> list[Line]:
    """What stands over a mode's table."""
    match mode:
        case "tune":
            region, candidate = region_of(scene, view), key_of(scene, view, "tune")
            return tuning.heading(scene.state, region, view.baseline, candidate, width, ink)
        case "review":
            return review.heading(scene.state, width, ink)
        case "lock":
            return locking.heading(scene, width, ink)
        case "regions" | "log":
            return []


def _detail(scene: Scene, view: View, width: int, height: int, ink: Ink) -> list[Line]:
    lines = detail(scene, view, width, ink)
    top = max(0, min(view.top, len(lines) - height))
    shown = lines[top : top + height]
    if len(lines) > top + height:
        more = len(lines) - top - height + 1
        how = "J K scroll" if view.focus == "detail" else "tab, then j k scroll"
        shown = [*shown[: height - 1], line((f"… {more} more lines: {how}", "dim"))]
    return shown


def detail(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """The row under the cursor in full."""
    match view.mode:
        case "regions":
            region = region_of(scene, view)
            return regions.detail(scene.state, region, scene.advice.get(region), width, ink)
        case "tune":
            candidate = key_of(scene, view, "tune")
            scope = worth(scene.state, region_of(scene, view), candidate)
            return tuning.detail(scene.state, region_of(scene, view), candidate, scope, width, ink)
        case "review":
            return review.detail(scene.state, key_of(scene, view, "review"), width, ink)
        case "lock":
            return locking.detail(scene, key_of(scene, view, "lock"), width, ink)
        case "log":
            wanted = key_of(scene, view, "log")
            return logs.detail(next((one for one in scene.log if str(one.number) == wanted), None), width, ink)
