"""How the command line shows a review to a person, and how a run that waits for one ends."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from agentcompile.cli.exits import WaitsError
from agentcompile.cli.render import Screen
from agentcompile.control.review import Item, items, open_items
from agentcompile.ir.trial import interval
from agentcompile.runs.folders import resuming
from agentcompile.runs.progress import State
from agentcompile.runs.tables import Table, plan_line

SHORT = 8
"""Digits of a candidate's id that are shown; they name it when no other id begins so."""


def to_decide(state: State, screen: Screen) -> None:
    """Show what there is to decide on, each with its speedup over the baseline, and the steps as they were measured."""
    found = items(state)
    if not found:
        screen.text("nothing to decide on yet: no region has a kernel chosen")
        return
    heads = ("", "region", "runs", "id", "ratio", "±", "status", "why")
    rows = [row for item in found for row in _rows(item)]
    screen.table(Table(heads=heads, rows=rows, right=(4, 5)))
    for plan in state.final:
        if plan.step_ns:
            screen.text(plan_line(plan))


SIGNS = {"undecided": "?", "stale": "!", "approved": "~", "rejected": "=", "overridden": "*"}


def _rows(item: Item) -> list[tuple[str, ...]]:
    said = item.decision.reason if item.decision is not None else ""
    rows: list[tuple[str, ...]] = []
    for kernel in item.kernels:
        ends = interval(0.0, kernel.half_width)
        width = f"{ends[1] - 1:.2f}" if ends else "no interval"
        figures = (kernel.candidate.id[:SHORT], f"{kernel.speedup:.2f}×", width)
        standing = "replaced" if item.standing == "overridden" else item.standing
        rows.append((SIGNS[item.standing], item.name, kernel.candidate.label, *figures, standing, item.why or said))
    if item.decision is not None and item.decision.candidate is not None:
        point = item.decision.candidate
        rows.append((SIGNS["overridden"], item.name, point.label, point.id[:SHORT], "", "", item.standing, said))
    return rows


def goes_on(run: Path) -> str:
    """Return the commands that continue a run that waits for review."""
    return (
        f"look with `agentcompile decide {quote(str(run))}`, "
        "decide with --approve-safe, --region REGION --approve and so on, "
        f"then `{resuming(run)}`"
    )


def undecided(state: State, run: Path) -> WaitsError:
    """Return the exception that says why the lock of a reviewed run is not written yet (exit 7)."""
    found = open_items(state)
    stale = sum(item.standing == "stale" for item in found)
    names = ", ".join(item.name for item in found[:4]) + (", …" if len(found) > 4 else "")
    text = f"{run}: {len(found)} regions wait for review, {stale} of them stale: {names}"
    return WaitsError(text, hint=goes_on(run))
