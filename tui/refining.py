"""The screens of a session of `refine`: the tree of attempts, and the fastest kernels of it. Pure."""

from __future__ import annotations

import functools
from dataclasses import replace

from agentcompile.agents import views
from agentcompile.agents.journal import Opened, Refused, attempts_of, opened_of, spent_of
from agentcompile.agents.tree import ROOT, Node, best, dead, leaderboard
from agentcompile.ir.advice import Usage
from agentcompile.ir.trial import reason
from agentcompile.runs.searches import Curve
from agentcompile.runs.tables import duration

from . import branches, chrome, logs, nodes, steers
from .grid import GAP, Column, Entry, fitted
from .ink import BLANK, Ink, Line, Span, Style, line, meter, spark
from .plotting import plot
from .refined import Refined
from .scene import WORKS, Scene, View
from .screen import ScreenSpec, table_width
from .steers import known
from .trials import Same, tone

COLUMNS = (
    Column(head="node", width=10, grow=1),
    Column(head="state", width=14),
    Column(head="time", width=7, right=True),
    Column(head="ratio", width=6, right=True),
    Column(head="roofline", width=8, right=True, drop=1),
    Column(head="who", width=9, drop=3),
    Column(head="found", width=12, grow=2, drop=2),
)
_STANDINGS = (
    Column(head="node", width=10),
    Column(head="state", width=14),
    Column(head="time", width=8, right=True),
    Column(head="ratio", width=8, right=True),
    Column(head="roofline", width=8, right=True),
    Column(head="who", width=10, grow=1, drop=1),
)
_TALL, _PLOT = 36, 5
"""Lines of a terminal from which the plot and the leaderboard stand above the tree, and lines of the plot's curve."""
_LED = 3
"""Nodes of the leaderboard above the tree."""
_BAR = 10
_SPARK = 24
_SIDE = 58
"""Columns of the detail, in which a difference must be readable."""
_OPENING = chrome.FLOW[:5]
"""The stages before the first attempt."""
HEADLESS = "agentcompile refine show RUN"


def entries(scene: Scene, view: View) -> list[Entry]:
    """Return the tree as rows: every node and every refused answer below the node that it was made from."""
    cells = dict(fitted(COLUMNS, table_width(view, _SIDE) - GAP))[0]
    return list(_entries(Same(known(scene)), cells))


@functools.lru_cache(maxsize=4)
def _entries(same: Same[Refined], cells: int) -> list[Entry]:
    refined = same.value
    if not refined.nodes:
        return []
    opened = opened_of(refined.entries)
    children: dict[str, list[str]] = {"": [str(ROOT)]}
    for at, one in enumerate(refined.entries):
        if isinstance(one, Refused):
            children.setdefault(str(one.node), []).append(f"r{at}")
        elif isinstance(one, Node):
            children.setdefault(str(one.parent), []).append(str(one.id))
    fastest = best(refined.nodes)
    path = nodes.lineage(refined.nodes, fastest.id) if fastest is not None else ()
    closed, rows = dead(refined.nodes), list[Entry]()
    for branch in branches.fitted(children, {}, path, 0):
        refused, node = nodes.refused_of(refined, branch.id), nodes.node_of(refined, branch.id)
        if refused is not None:
            rows.append(_refused(branch.id, _placed(branch.lines, "-", cells), refused))
        elif node is not None:
            place = _placed(branch.lines, branch.id, cells)
            rows.append(_row(place, node, node.id in closed, opened, on_path=branch.id in path))
    return rows


def _placed(lines: str, name: str, cells: int) -> str:
    """Return a row's place in the tree in so many cells; where it is deep, the lines nearest to its name stay."""
    text = lines + name
    return text if len(text) <= cells else f"…{text[1 - cells :]}"


def _row(place: str, node: Node, closed: bool, opened: Opened, *, on_path: bool) -> Entry:
    state, found = nodes.state_of(node), _found(node, closed)
    times, ratio = (duration(node.ns), views.faster(node, opened.incumbent_ns)) if node.sound else ("-", "-")
    who = "+".join(step.role for step in node.log) or "-"
    style: Style = "accent" if on_path else "dim" if closed else ""
    cells: tuple[Span, ...] = (
        (place, style), state, (times, ""), (ratio, _tone(node, opened)),
        (views.over(node.ns, opened.floor_ns) if node.sound else "-", "dim"), (who, "dim"), found,
    )  # fmt: skip
    order = (float(node.id), state[0], node.ns, node.ns, node.ns, who, found[0])
    return Entry(key=str(node.id), cells=cells, order=order)


def _tone(node: Node, opened: Opened) -> Style:
    return tone(views.times_as_fast(node, opened.incumbent_ns)) if node.sound else "dim"


def _found(node: Node, closed: bool) -> Span:
    """Return what there is to say of a node in a few words."""
    if node.repeats is not None:
        return f"the code of node {node.repeats} again", "warn"
    if node.verdict is not None and not node.sound:
        return reason(node.verdict), "dim"
    if closed and not node.pruned:
        return "in a closed branch", "dim"
    if views.contended(node):
        return "contended", "warn"
    return node.instruction, "dim"


def _refused(key: str, place: str, refused: Refused) -> Entry:
    who = "+".join(step.role for step in refused.log) or "-"
    cells: tuple[Span, ...] = (
        (place, "dim"), ("✗ refused", "bad"), ("-", "dim"), ("-", "dim"), ("-", "dim"), (who, "dim"),
        (refused.reason, "dim"),
    )  # fmt: skip
    return Entry(key=key, cells=cells, order=("-", "✗ refused", "-", "-", "-", who, refused.reason))


def standings(scene: Scene, view: View) -> list[Entry]:
    """Return the leaderboard as rows: the fastest sound kernels, the fastest first."""
    return list(_standings(Same(known(scene))))


@functools.lru_cache(maxsize=4)
def _standings(same: Same[Refined]) -> list[Entry]:
    refined = same.value
    if not refined.nodes:
        return []
    opened = opened_of(refined.entries)
    rows: list[Entry] = []
    for node in leaderboard(refined.nodes, len(refined.nodes)):
        state, ratio = nodes.state_of(node), views.faster(node, opened.incumbent_ns)
        who = "+".join(step.role for step in node.log) or "-"
        cells: tuple[Span, ...] = (
            (str(node.id), ""), state, (duration(node.ns), ""), (ratio, _tone(node, opened)),
            (views.over(node.ns, opened.floor_ns), "dim"), (who, "dim"),
        )  # fmt: skip
        order = (float(node.id), state[0], node.ns, node.ns, node.ns, who)
        rows.append(Entry(key=str(node.id), cells=cells, order=order))
    return rows


def top(scene: Scene, width: int, ink: Ink) -> list[Line]:
    """Return the two lines above the screens: what is refined and how that stands, then who answers."""
    refined = known(scene)
    model = refined.options.model.rstrip("/").rpartition("/")[2] or scene.run
    subject = refined.subject
    facts = [model, subject.text if subject is not None else refined.asked.region or "a task"]
    if scene.state.target is not None:
        facts.append(f"{scene.state.target.kind} {scene.state.target.arch}")
    second = _answers(refined, width, ink) if refined.nodes else chrome.stages(scene.state, width, ink, _OPENING)
    return [chrome.headline(facts, chrome.life_of(scene), width, ink), second]


def _answers(refined: Refined, width: int, ink: Ink) -> Line:
    asked = refined.asked
    if refined.replayed:
        who = f"recorded answers in {refined.replayed}"
    elif len({name for _, name in refined.answers}) == 1:
        who = f"{refined.answers[0][1]} answers as {', '.join(role for role, _ in refined.answers)}"
    else:
        who = ", ".join(f"{role} {name}" for role, name in refined.answers) or "nobody is named"
    by = f" ({asked.answered_by})" if asked.answered_by else ""
    return line((ink.fit(f" {asked.arm}, {asked.strategy.partition(':')[0]}: {who}{by}", width), "dim"))


def news(scene: Scene) -> Span:
    """Return how a session stands in one sentence, with the command that goes on where one does."""
    refined, state = known(scene), scene.state
    if fault := refined.fault or scene.fault:
        return fault, "bad"
    if scene.life in WORKS:
        return _asked(refined) if refined.waiting else _under_way(scene)
    if scene.reading:
        return "", ""
    status = chrome.status(scene)
    if state.failure is not None and status in ("failed", "stopped"):
        said = f"{state.failure.message}{'; ' + state.failure.hint if state.failure.hint else ''}"
        if refined.nodes and refined.goes_on not in said:
            said += f"; resume with: {refined.goes_on}"
        return said, "warn" if status == "stopped" else "bad"
    if state.finished is None or status == "interrupted":
        why = f": {scene.ending.rstrip('.')}" if scene.ending else ""
        return f"Interrupted{why}. Resume with: {refined.goes_on}", "warn"
    admitted = views.best_admissible(refined.nodes)
    if status == "stopped":
        return f"Stopped by user. Resume with: {refined.goes_on}", "warn"
    ending = f"Done: {state.finished.detail.rstrip('.') or 'it said no reason'}."
    if admitted is None:
        return f"{ending} No kernel is surely faster than the incumbent.", ""
    return f"{ending} Node {admitted.id} is admissible: P makes it a template.", "good"


def _asked(refined: Refined) -> Span:
    words = [f"close node {one.node}" if one.what == "prune" else one.what for one in refined.waiting]
    return f"Asked, and done before the next attempt: {', '.join(words)}.", "accent"


def _under_way(scene: Scene) -> Span:
    if scene.life == "paused":
        return "Paused before the next attempt: space resumes it.", "warn"
    return (f"▲ {scene.state.warnings[-1]}", "warn") if scene.state.warnings else _last(known(scene))


def _last(refined: Refined) -> Span:
    """Return what became of the last attempt; nothing before there is one."""
    last = next((one for one in reversed(refined.entries) if one.kind != "pruned"), None)
    match last:
        case Refused():
            return f"The last attempt, from node {last.node}, was refused: {last.reason}", "dim"
        case Node():
            opened = opened_of(refined.entries)
            word, _ = nodes.state_of(last)
            time = f", {duration(last.ns)}, {views.faster(last, opened.incumbent_ns)}" if last.sound else ""
            return f"The last attempt made node {last.id} from node {last.parent}: {word}{time}.", "dim"
        case _:
            return ("The first attempt is running.", "dim") if refined.nodes else ("", "")


def spent(scene: Scene) -> Usage:
    """Return what all answers used: as the session counts it, or as they were recorded where nobody is asked."""
    refined = known(scene)
    return spent_of(refined.entries) if refined.replayed else scene.state.spent


def heading(scene: Scene, view: View, width: int, ink: Ink) -> list[Line]:
    """Return the lines above the tree: what is to beat, attempts and cost, and where there is room plot and leaders."""
    refined = known(scene)
    if not refined.nodes:
        return []
    lines = [_bar_line(refined, width, ink), _progress(refined, width, ink)]
    open_one = ", an open question as booked" if scene.life == "live" and not refined.replayed else ""
    lines.append(line((f"{'recorded' if refined.replayed else 'asked'}: {views.cost(spent(scene))}{open_one}", "dim")))
    if view.height < _TALL:
        return lines
    return [*lines, *_plotted(refined, width, ink), *_led(refined, width, ink), BLANK]


def _bar_line(refined: Refined, width: int, ink: Ink) -> Line:
    opened, subject = opened_of(refined.entries), refined.subject
    times = [f"PyTorch {duration(opened.reference_ns)}"]
    if opened.floor_ns > 0:
        times.append(f"roofline {duration(opened.floor_ns)}")
    after = "   " + ", ".join(times)
    name = f"to beat {duration(opened.incumbent_ns)}{f' ({subject.incumbent})' if subject is not None else ''}"
    return line((ink.fit(name, min(ink.width(name), width - ink.width(after))), "title"), (after, "dim"))


def _progress(refined: Refined, width: int, ink: Ink) -> Line:
    done, most = attempts_of(refined.entries), refined.asked.attempts
    opened, fastest = opened_of(refined.entries), best(refined.nodes)
    text = f" {done} of {most} attempts"
    if refused := sum(isinstance(one, Refused) for one in refined.entries):
        text += f", {refused} refused"
    spans: list[Span] = [(meter(done / max(most, 1), _BAR, ink), "accent"), (text, "")]
    if not done:
        return line(*spans, ("   no attempt is finished yet", "dim"))
    if fastest is None:
        return line(*spans, ("   no kernel passed every gate yet", "dim"))
    ratio = views.faster(fastest, opened.incumbent_ns)
    spans.append((f"   best node {fastest.id} {duration(fastest.ns)} {ratio}", _tone(fastest, opened)))
    room = width - sum(ink.width(one) for one, _ in spans) - 2
    curve = [one for one in _curve(Same(refined)).best if one]
    return line(
        *spans, "  ", (spark(curve, max(0, min(room, _SPARK)), ink) if len(curve) > 1 and room > 0 else "", "dim")
    )


@functools.lru_cache(maxsize=4)
def _curve(same: Same[Refined]) -> Curve:
    """Return the speed of the fastest kernel so far beside the incumbent, by attempt."""
    opened = opened_of(same.value.entries)
    reached, values, failed, unknown = 0.0, list[float](), list[int](), list[int]()
    for one in same.value.entries:
        if not isinstance(one, (Node, Refused)):
            continue
        if isinstance(one, Node) and one.sound and one.ns > 0:
            reached = max(reached, opened.incumbent_ns / one.ns)
        elif isinstance(one, Node) and not one.settled:
            unknown.append(len(values))
        else:
            failed.append(len(values))
        values.append(reached)
    return Curve(best=tuple(values), failed=tuple(failed), unknown=tuple(unknown))


def _plotted(refined: Refined, width: int, ink: Ink) -> list[Line]:
    """Return the best time by attempt as a curve, the incumbent's faint behind it; nothing before there is a time."""
    curve, opened = _curve(Same(refined)), opened_of(refined.entries)
    if not any(curve.best):
        return []
    behind = (Curve(name="incumbent", best=(1.0,) * len(curve.best)),)

    def time(speedup: float) -> str:
        return duration(opened.incumbent_ns / speedup).replace(" ", "")

    head = line(("Best time by attempt", "head"), ("   faint: the incumbent", "dim"))
    return [BLANK, head, *plot(curve, width, _PLOT, ink, behind, value=time, counted="attempt")]


def _led(refined: Refined, width: int, ink: Ink) -> list[Line]:
    rows = _standings(Same(refined))
    if not rows:
        return []
    lines = [line(("Leaderboard", "head"), (f"   {len(rows)} kernels: 2 shows all" if len(rows) > _LED else "", "dim"))]
    for place, entry in enumerate(rows[:_LED], 1):
        (node, _), state, (time, _), ratio, (floor, _), _ = entry.cells
        lines.append(line(
            (f"{place}  ", "dim"), ink.fit(f"node {node}", 10), (ink.fit(state[0], 16), state[1]),
            ink.fit(time, 9, right=True), (ink.fit(ratio[0], 9, right=True), ratio[1]),
            (f"   {floor} the roofline", "dim"),
        ))  # fmt: skip
    return lines


def detail(scene: Scene, view: View, key: str, width: int, ink: Ink) -> list[Line]:
    """Return the entry under the cursor in full; before there is one, what the session waits for."""
    refined = known(scene)
    if refined.nodes:
        return nodes.detail(refined, key, width, ink)
    text = "The region is opened first: captured, bounded and timed." if scene.life in WORKS else "It made no tree."
    return [line((piece, "dim")) for piece in ink.wrap(text, width)]


SCREEN = ScreenSpec(
    name="refine",
    title="Refine",
    about="the tree of attempts, what was changed and what the gates said",
    columns=lambda scene, view: COLUMNS,
    entries=entries,
    detail=detail,
    heading=heading,
    top=top,
    news=news,
    keys=steers.ALL,
    foot=("open", "pause", "finish", "prune", "promote", "diff", "source"),
    empty="No attempt yet.",
    lists="candidates",
    side=_SIDE,
    headless=HEADLESS,
)
LEADERBOARD = ScreenSpec(
    name="leaderboard",
    title="Leaderboard",
    about="the kernels that passed every gate, the fastest first",
    columns=lambda scene, view: _STANDINGS,
    entries=standings,
    detail=detail,
    heading=lambda scene, view, width, ink: [_bar_line(known(scene), width, ink)] if known(scene).nodes else [],
    top=top,
    news=news,
    keys=steers.ALL,
    foot=("open", "pause", "finish", "prune", "promote", "diff", "source"),
    empty="No kernel passed every gate yet.",
    lists="candidates",
    side=_SIDE,
    headless=HEADLESS,
)
LOG = replace(logs.SCREEN, top=top, news=news, keys=steers.ALL, headless=HEADLESS)
"""The log of a session: its keys act on the node that was selected."""
