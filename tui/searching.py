"""The search of the region that Tune shows: its best so far as a curve, and what was proposed from what. Pure.

Where candidates were made from others the rows are their tree; where they were not, they are the rungs, that with the
most rounds first, each with the candidates that got no further.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentcompile.events import Proposed
from agentcompile.ir.search_events import Transformation
from agentcompile.ir.template import Params
from agentcompile.ir.trial import Choice, Trial
from agentcompile.runs.persistent import GrowingSequence
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.rows import trials_in
from agentcompile.runs.searches import Rung, Search, search_of

from . import branches
from .backdrop import Backdrop, backdrop
from .branches import Branch, Worth
from .grid import GAP, Column, Entry, fitted, pairs
from .ink import Ink, Line, Span, Style, line
from .plotting import AROUND, LABEL, legend, plot
from .scene import Scene, Shown, Step, View
from .screen import FOOT, HEAD, Act, ScreenSpec, table_width, upper_height
from .trials import SEVERAL, Same, brief, latest, placed, region_of, short, state_of, times, tone

COLUMNS = (
    Column(head="state", width=12),
    Column(head="change", width=28, grow=3),
    Column(head="visits", width=6, right=True),
    Column(head="mean", width=6, right=True, drop=1),
    Column(head="ratio", width=6, right=True),
    Column(head="origin", width=8, drop=2),
)
_RUNG, _MORE, _BETWEEN = f"rung{SEVERAL}", f"more{SEVERAL}", f"between{SEVERAL}"
_LEAST_ROWS = 4
_NAMED = 44
"""Cells of a change from which a candidate is shown with the names of its parameters."""
_TALL, _NAMES = 36, 3
"""Lines of a terminal from which the curves behind are explained, and lines that their names may take there."""
_LISTED = 200
"""Candidates that the detail of a row lists at most."""


def searched(state: State, region: str) -> Search:
    """Return the search of a region; it is folded once for what was tried and proposed until now."""
    row = state.row(region)
    if row is None:
        return Search()
    return _searched(Same(state.trials), Same(row.proposed), region, row.best.candidate if row.best else "")


@functools.lru_cache(maxsize=4)
def _searched(
    trials: Same[GrowingSequence[Trial]], proposed: Same[tuple[Proposed, ...]], region: str, best: str
) -> Search:
    return search_of(trials_in(trials.value, region), proposed.value, best)


def shows(scene: Scene, view: View) -> bool:
    """Return whether the rows are what was proposed: that is wanted, and the run says it."""
    return bool(view.search and searched(scene.state, region_of(scene, view)).nodes)


def entries(scene: Scene, view: View) -> list[Entry]:
    """Return the tree of what was proposed, or its rungs, as rows that the screen has room for; or all of it."""
    return list(_entries(Same(scene.state), region_of(scene, view), _room(scene, view), _cells(view)))


def _cells(view: View) -> int:
    """Return how wide the column of changes is."""
    return dict(fitted(COLUMNS, table_width(view) - GAP))[1]


def rows_of(search: Search, room: int) -> list[Branch]:
    """Return what was proposed as a tree of at most about `room` rows, 0 for all of it."""
    children: dict[str, Sequence[str]]
    worth: dict[str, Worth]
    if search.branched:
        children = {"": search.roots}
        children.update((id, node.children) for id, node in search.nodes.items())
        worth = {id: (node.best,) for id, node in search.nodes.items()}
        return branches.fitted(children, worth, search.path, room)
    children, worth = {"": [f"{_RUNG}{rung.rounds}" for rung in reversed(search.rungs)]}, {}
    placed_in: dict[str, str] = {}
    for rung in search.rungs:
        key, on = f"{_RUNG}{rung.rounds}", set(rung.survivors)
        own = [id for id in rung.proposed if id not in on]
        children[key] = sorted(own, key=lambda id: -_speedup(search, id))
        worth[key] = (1.0, float(rung.rounds))
        worth |= {id: (0.0, float(rung.rounds), _speedup(search, id)) for id in own}
        placed_in |= dict.fromkeys(own, key)
    path = (placed_in[search.path[-1]], search.path[-1]) if search.path else ()
    return branches.fitted(children, worth, path, room)


def _speedup(search: Search, id: str) -> float:
    return search.tried[id].speedup if id in search.tried else 0.0


@functools.lru_cache(maxsize=4)
def _branches(search: Same[Search], room: int) -> list[Branch]:
    return rows_of(search.value, room)


@functools.lru_cache(maxsize=4)
def _entries(same: Same[State], region: str, room: int, cells: int) -> list[Entry]:
    state = same.value
    search, row, known = searched(state, region), state.row(region), latest(state, region)
    assert row is not None
    runs = placed(state).get(region, row.choice)
    rungs = {f"{_RUNG}{rung.rounds}": rung for rung in search.rungs}
    rows: list[Entry] = []
    for branch in _branches(Same(search), room):
        if branch.between or not branch.id:
            rows.append(_hidden(branch, search))
        elif branch.id in rungs:
            rows.append(_rung(branch, rungs[branch.id], search, cells))
        else:
            rows.append(_node(branch, search, known.get(branch.id), row, runs, cells))
    return rows


def _node(
    branch: Branch, search: Search, trial: Trial | None, row: RegionProgress, runs: Choice | None, width: int
) -> Entry:
    node, ratio = search.nodes[branch.id], _speedup(search, branch.id)
    style: Style = "accent" if branch.id in search.path else "" if ratio else "dim"
    if trial is not None:
        state = state_of(trial, row.best.candidate if row.best else "", runs)
    else:
        state = ("◐ timing", "accent") if any(id == branch.id for id, _ in row.under_way) else ("○ waiting", "dim")
    cells: tuple[Span, ...] = (
        state,
        (_with_more(branch, _name(branch.id, search, row, width < _NAMED), width), style),
        (str(node.visits), "dim"),
        (times(node.value) if node.value else "-", "dim"),
        (times(ratio) if ratio else "-", tone(ratio) if ratio else "dim"),
        (node.node.origin, "dim"),
    )
    order = (state[0], cells[1][0], -node.visits, -node.value, -ratio, node.node.origin)
    return Entry(key=branch.id, cells=cells, order=order)


def _with_more(branch: Branch, name: str, width: int) -> str:
    """Return a row's text in `width` characters; where it is long, the number of hidden candidates stays."""
    if not branch.hidden:
        return branch.lines + name
    more = f"… {len(branch.hidden)} more"
    return (branch.lines + name + " ")[: max(width - len(more), 0)] + more


def _name(id: str, search: Search, row: RegionProgress, narrow: bool) -> str:
    """Return what was changed in a node's parent to make it; without a parent, what it is itself."""
    node = search.nodes[id]
    if node.parent and node.node.trace:
        above = search.tried.get(node.parent)
        return trace_text(node.node.trace, above.candidate.params if above else ())
    return _label(id, search, row, narrow)


def _label(id: str, search: Search, row: RegionProgress, narrow: bool) -> str:
    if id in search.tried:
        candidate = search.tried[id].candidate
        return brief(candidate) if narrow else short(candidate.label)
    return short(next((label for one, label in row.under_way if one == id), id[:12]))


def trace_text(trace: Sequence[Transformation], params: Params) -> str:
    """Return transformations of a candidate with these parameters as text: ``ROWS 4 → 8, VEC 1 → 2``."""
    known = dict(params)
    parts: list[str] = []
    for step in trace:
        if step.change in ("template", "layout"):
            parts.append(f"{short(step.name)} → {short(str(step.value))}")
            known = {} if step.change == "template" else known
        else:
            old = f" {known[step.name]}" if step.name in known else ""
            parts.append(f"{step.name}{old} → {step.value}")
            known[step.name] = step.value
    return ", ".join(parts)


def _rung(branch: Branch, rung: Rung, search: Search, width: int) -> Entry:
    known = [search.tried[id] for id in rung.proposed if id in search.tried and search.tried[id].result != "unknown"]
    ratios = [one.speedup for one in known]
    mean, best = (sum(ratios) / len(ratios), max(ratios)) if ratios else (0.0, 0.0)
    survivors = f" → {len(rung.survivors)} survived" if rung.survivors else " candidates"
    text, failed = f"{len(rung.proposed)}{survivors}", f"{rung.failed} failed" if rung.failed else ""
    cells: tuple[Span, ...] = (
        (f"{rung.rounds} rounds", "title"),
        (_with_more(branch, text, width), "title"),
        (str(len(known)), "dim"),
        (times(mean) if mean else "-", "dim"),
        (times(best) if best else "-", tone(best) if best else "dim"),
        (failed, "bad"),
    )
    return Entry(key=branch.id, cells=cells, order=(float(rung.rounds), text, -len(known), -mean, -best, failed))


def _hidden(branch: Branch, search: Search) -> Entry:
    best = max((_speedup(search, id) for id in branch.hidden), default=0.0)
    text = f"… {len(branch.hidden)} between" if branch.between else f"… {len(branch.hidden)} more"
    cells: tuple[Span, ...] = (
        ("", ""), (branch.lines + text, "dim"), ("", ""), ("", ""), (times(best) if best else "-", "dim"), ("", ""),
    )  # fmt: skip
    return Entry(key=_key(branch), cells=cells, order=("", text, 0.0, 0.0, -best, ""))


def _key(branch: Branch) -> str:
    return f"{_BETWEEN}{branch.id}" if branch.between else branch.id or _MORE


def _body(view: View) -> int:
    """Return how many lines Tune has for its heading and its rows."""
    height = view.height - HEAD - FOOT
    return height - 1 - upper_height(height, lower_shown=True) if view.bench else height


def _curve_height(view: View) -> int:
    return max(2, min((_body(view) - 6) // 3, 10))


def _room(scene: Scene, view: View) -> int:
    """Return how many rows the tree may have; 0 where all of it is wanted."""
    if view.search == "whole":
        return 0
    region = region_of(scene, view)
    search, row = searched(scene.state, region), scene.state.row(region)
    over = len(_facts(search, row)) + _curve_height(view) + AROUND
    over += len(_legend(view, _behind(scene, row, search), table_width(view) - GAP, Ink()))
    return max(_body(view) - over - 1, _LEAST_ROWS)


def heading(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """Return the lines over the rows: the region, what was proposed from where, and the best so far as a curve."""
    region = region_of(scene, view)
    search, row = searched(scene.state, region), scene.state.row(region)
    behind = _behind(scene, row, search)
    curve = _plotted(Same(search), behind, width, _curve_height(view), ink)
    return [*_facts(search, row), *curve, *_legend(view, behind, width, ink)]


@functools.lru_cache(maxsize=4)
def _plotted(search: Same[Search], behind: Backdrop, width: int, height: int, ink: Ink) -> list[Line]:
    return plot(search.value.curve, width, height, ink, behind.curves)


def _behind(scene: Scene, row: RegionProgress | None, search: Search) -> Backdrop:
    return backdrop(scene.recorded, row.name, search.curve) if row is not None else Backdrop()


def _legend(view: View, behind: Backdrop, width: int, ink: Ink) -> list[Line]:
    """Return what the curves behind are: the first of their names where a terminal has few lines."""
    if view.height < _TALL:
        return legend(behind.curves, width, 1, ink)
    about = [line((" " * (LABEL + 1), ""), (behind.about, "dim"))] if behind.curves else []
    return [*legend(behind.curves, width, _NAMES, ink), *about]


def _facts(search: Search, row: RegionProgress | None) -> list[Line]:
    if row is None:
        return [line(("No region yet", "dim"))]
    strategy = f"  {search.strategy}" if search.strategy else ""
    lines = [line((row.name, "title"), (strategy, ""))]
    if search.origins:
        origins = sorted(search.origins.items(), key=lambda pair: -pair[1])
        text = ", ".join(f"{count} {origin}" for origin, count in origins)
        lines.append(line((f"{sum(search.origins.values())} proposals: {text}", "dim")))
    else:
        lines.append(line(("what was proposed, and from where, is not recorded", "dim")))
    if row.advice is not None and row.advice.claims:
        lines.append(line((f"claims of {row.advice.label}: {_standings(row)}", "dim")))
    if search.branched and len(search.rungs) > 1:
        text = " → ".join(f"{rung.rounds} rounds {len(rung.proposed)}" for rung in search.rungs)
        lines.append(line((f"rungs: {text}", "dim")))
    return lines


def _standings(row: RegionProgress) -> str:
    claims = row.advice.claims if row.advice is not None else ()
    counts = {word: sum(one.standing == word for one in claims) for word in ("confirmed", "refuted", "unverified")}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def several(scene: Scene, view: View, key: str, width: int, ink: Ink) -> list[Line]:
    """Return a row of several candidates in full: those of a rung, or those that were left out at its place."""
    region = region_of(scene, view)
    search, row = searched(scene.state, region), scene.state.row(region)
    rung = next((one for one in search.rungs if f"{_RUNG}{one.rounds}" == key), None)
    if rung is not None:
        title, ids, on = f"{rung.rounds} rounds each", rung.proposed, set(rung.survivors)
    else:
        found = _branches(Same(search), _room(scene, view))
        ids, on = next((branch.hidden for branch in found if _key(branch) == key), ()), set[str]()
        title = f"{len(ids)} more candidates; s shows all of the search"
    lines = [line((piece, "title")) for piece in ink.wrap(title, width)]
    if row is None:
        return lines
    for id in sorted(ids, key=lambda id: -_speedup(search, id))[:_LISTED]:
        ratio = _speedup(search, id)
        name = ink.fit(_label(id, search, row, width < 60), max(width - 10, 8))
        mark: Span = ("✓ ", "good") if id in on else ("  ", "")
        lines.append(line(mark, name, (f"{times(ratio) if ratio else '-':>8}", tone(ratio) if ratio else "dim")))
    return [*lines, line(("✓ survived: timed in more rounds", "dim"))] if on else lines


def proposal(scene: Scene, view: View, candidate: str, width: int, ink: Ink) -> list[Line]:
    """Return how a candidate was proposed and what became of its subtree; no lines where that is not recorded."""
    region = region_of(scene, view)
    search, row = searched(scene.state, region), scene.state.row(region)
    node = search.nodes.get(candidate)
    if node is None or row is None:
        return []
    facts: list[tuple[str, str | Span]] = [("origin", node.node.origin)]
    if node.parent:
        facts.append(("from", _label(node.parent, search, row, width < 60)))
    if node.node.trace:
        above = search.tried.get(node.parent)
        facts.append(("trace", trace_text(node.node.trace, above.candidate.params if above else ())))
    if node.children or node.parent:
        best = f", best {times(node.best)}" if node.best else ""
        facts.append(("visits", f"{node.visits}, mean {times(node.value)}{best}"))
    rounds = [str(rung.rounds) for rung in search.rungs if candidate in rung.proposed]
    facts.append(("rounds", ", then ".join(rounds)))
    return [line(), line(("Search", "head")), *pairs(facts, ink, width, 12)]


def _next(scene: Scene, view: View, screen: ScreenSpec) -> Step:
    fit = replace(view, search="fit")
    region = region_of(scene, view)
    found = _branches(Same(searched(scene.state, region)), _room(scene, fit)) if shows(scene, fit) else []
    left_out = any(branch.hidden for branch in found)
    after: Shown = "fit" if not view.search else "whole" if view.search == "fit" and left_out else ""
    unsorted: Mapping[str, int] = {**view.sort, screen.name: -1}  # the columns are others
    return Step(view=replace(view, search=after, sort=unsorted, top=0))


def _not_yet(scene: Scene, view: View, screen: ScreenSpec) -> str:
    found = searched(scene.state, region_of(scene, view))
    return "" if found.tried or found.nodes or view.search else "Nothing was tried in this region yet."


SEARCH = Act(
    "search", ("s",), "the search: best so far, what came from what; then all of it, then back", _next, _not_yet
)
