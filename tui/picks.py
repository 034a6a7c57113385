"""Which rows a mode has, and which of them is under the cursor. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from . import locking, logs, regions, review, tuning
from .grid import Column, Entry, cursor_of, picked
from .scene import BENCH, Mode, Scene, View

_COLUMNS: dict[Mode, tuple[Column, ...]] = {
    "regions": regions.COLUMNS,
    "tune": tuning.COLUMNS,
    "review": review.COLUMNS,
    "lock": locking.COLUMNS,
    "log": logs.COLUMNS,
}


def columns(scene: Scene, mode: Mode) -> tuple[Column, ...]:
    """The columns of a mode's table."""
    return locking.columns(scene) if mode == "lock" else _COLUMNS[mode]


def region_of(scene: Scene, view: View) -> str:
    """The region under the cursor; the first one before anything was picked."""
    if any(row.region == view.region for row in scene.state.rows):
        return view.region
    found = regions.entries(scene.state)
    return found[0].key if found else ""


def rows(scene: Scene, view: View, mode: Mode) -> list[Entry]:
    """The rows of a mode's table, filtered and sorted."""
    match mode:
        case "regions":
            found = regions.entries(scene.state)
        case "tune":
            found = tuning.entries(scene.state, region_of(scene, view), view.baseline, narrow=not view.bench)
        case "review":
            found = review.entries(scene.state, narrow=view.width < BENCH[0])
        case "lock":
            found = locking.entries(scene)
        case "log":
            found = logs.entries(scene.log)
    return picked(found, view.filter.get(mode, ""), view.sort.get(mode, -1))


def key_of(scene: Scene, view: View, mode: Mode) -> str:
    """The key of the row under the cursor of a mode; empty when there is none."""
    found = rows(scene, view, mode)
    return found[cursor(found, view, mode)].key if found else ""


def cursor(found: Sequence[Entry], view: View, mode: Mode) -> int:
    """Which row is under the cursor."""
    if mode == "log":
        return len(found) - 1 if view.line < 0 else cursor_of(found, str(view.line))
    wanted = {"regions": view.region, "tune": view.candidate, "review": view.region, "lock": view.fact}[mode]
    return cursor_of(found, wanted)
