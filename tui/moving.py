"""Where the cursor is after a movement: in tables by the key of a row, in texts by the first line shown. Pure."""

from __future__ import annotations

from dataclasses import replace

from .picks import columns, cursor, region_of, rows
from .regions import entries as region_entries
from .review import changes
from .scene import Mode, Page, Scene, View

_STEPS = {"down": 1, "up": -1}


def stepped(at: int, by: int, count: int) -> int:
    """`at` moved by `by` inside `count` rows."""
    return max(0, min(at + by, count - 1))


def moved(scene: Scene, view: View, name: str) -> View:
    """The view after one of the movements of the table of keys."""
    match name:
        case "focus":
            return replace(
                view, focus="detail" if view.focus == "table" else "table", detail=view.detail or not view.wide
            )
        case "sort" | "sort-back":
            return _sorted(scene, view, 1 if name == "sort" else -1)
        case "next-undecided" | "previous-undecided":
            return _region(scene, view, 1 if name == "next-undecided" else -1)
        case _ if view.focus == "detail" and (view.wide or view.detail):
            return replace(view, top=max(0, _line(view.top, name, view.height - 8)))
        case _:
            return _row(scene, view, name)


def _line(top: int, name: str, page: int) -> int:
    steps = {"down": 1, "up": -1, "page-down": page, "page-up": -page, "top": -top, "bottom": 10_000}
    return min(top + steps.get(name, 0), 10_000)


def _sorted(scene: Scene, view: View, by: int) -> View:
    count = len(columns(scene, view.mode)) + 1
    after = (view.sort.get(view.mode, -1) + 1 + by) % count - 1
    return replace(view, sort={**view.sort, view.mode: after})


def _row(scene: Scene, view: View, name: str) -> View:
    found = rows(scene, view, view.mode)
    if not found:
        return view
    page = max(view.height - 10, 1)
    steps = {"down": 1, "up": -1, "page-down": page, "page-up": -page, "top": -len(found), "bottom": len(found)}
    at = stepped(cursor(found, view, view.mode), steps.get(name, 0), len(found))
    return selected(view, view.mode, found[at].key, last=at == len(found) - 1)


def selected(view: View, mode: Mode, key: str, *, last: bool = False) -> View:
    """The view with the row `key` under the cursor; in the log, the last one means whatever comes."""
    match mode:
        case "regions" | "review":
            return replace(view, region=key, candidate="", top=0)
        case "tune":
            return replace(view, candidate=key, top=0)
        case "lock":
            return replace(view, fact=key, top=0)
        case "log":
            return replace(view, line=-1 if last else int(key), top=0)


def _region(scene: Scene, view: View, by: int) -> View:
    """The next region that is undecided; where all are decided or nothing is to be, the next one."""
    keys = [
        entry.key for entry in (rows(scene, view, "review") if view.mode == "review" else region_entries(scene.state))
    ]
    if not keys:
        return view
    open_ones = {change.row.region for change in changes(scene.state) if change.decided.open}
    now = region_of(scene, view)
    at = keys.index(now) if now in keys else 0
    turn = [keys[(at + by * step) % len(keys)] for step in range(1, len(keys) + 1)]
    after = next((key for key in turn if key in open_ones), turn[0])
    return replace(view, region=after, candidate="", top=0)


def scrolled(page: Page, key: str, height: int) -> Page:
    """A page after a key."""
    steps = {
        "j": 1, "down": 1, "k": -1, "up": -1, "pagedown": height, "space": height, "pageup": -height,
        "g": -page.top, "home": -page.top, "G": len(page.lines), "end": len(page.lines),
    }  # fmt: skip
    return replace(page, top=max(0, min(page.top + steps.get(key, 0), max(len(page.lines) - height, 0))))
