"""A session as lines and tables for people, and as one JSON value for programs; pure functions of its entries."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Sequence

from agentcompile.agents.folder import Subject
from agentcompile.agents.journal import Entry, Opened, Refused, attempts_of, nodes_of, opened_of, spent_of
from agentcompile.agents.tree import ROOT, Node, children, dead, leaderboard
from agentcompile.ir.advice import Usage
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import SHORT, Json
from agentcompile.ir.trial import Measured, reason
from agentcompile.runs.tables import Table, duration

_WHY = 70
"""Characters of a reason in a table."""


def admissible(node: Node) -> bool:
    """Return whether a node's kernel passed every gate and is surely faster than the incumbent."""
    told = json.loads(node.feedback)
    return isinstance(node.verdict, Measured) and isinstance(told, dict) and told.get("admissible") is True


def contended(node: Node) -> bool:
    """Return whether other processes disturbed a node's timing, so that a quiet machine may say otherwise."""
    told = json.loads(node.feedback)
    return isinstance(told, dict) and told.get("contended") is True


def best_admissible(nodes: Sequence[Node]) -> Node | None:
    """Return the fastest kernel that may be promoted; None where there is none."""
    return next((node for node in leaderboard(nodes, len(nodes)) if admissible(node)), None)


def state_of(node: Node) -> tuple[str, str]:
    """Return the glyph and the word for what became of a node."""
    if node.id == ROOT:
        return "◆", "reference"
    if node.pruned:
        return "⊘", "pruned"
    if node.verdict is None:
        return "?", "unknown"
    if admissible(node):
        return "●", "admissible, contended" if contended(node) else "admissible"
    return ("○" if node.sound else "✗"), node.verdict.kind


def attempt_line(entries: Sequence[Entry], attempts: int, tokens: int, bar: str = "incumbent") -> str:
    """Return one line on the last attempt of a session; `bar` is what has to be beaten."""
    opened, last = opened_of(entries), entries[-1]
    head = f"attempt {attempts_of(entries)} of {attempts}"
    if isinstance(last, Refused):
        roles = "+".join(step.role for step in last.log) or "nobody"
        return f"{head}  from node {last.node}  {roles}  refused: {last.reason}  ({_tokens(tokens)})"
    assert isinstance(last, Node)
    glyph, word = state_of(last)
    roles = "+".join(step.role for step in last.log)
    same = f", the code of node {last.repeats} again" if last.repeats is not None else ""
    if last.sound:
        about = f"{duration(last.ns)}, {faster(last, opened.incumbent_ns)} of the {bar}"
        about += f", {over(last.ns, opened.floor_ns)} the roofline" if opened.floor_ns > 0 else ""
    else:
        about = _why(last)
    return f"{head}  node {last.id} from {last.parent}  {roles}  {glyph} {word}{same}: {about}  ({_tokens(tokens)})"


def speedup(ns: float, incumbent_ns: float) -> str:
    """Return how many times as fast as the incumbent a time is; a dash where it is none."""
    return f"{incumbent_ns / ns:.2f}×" if math.isfinite(ns) and ns > 0 else "-"


def faster(node: Node, incumbent_ns: float) -> str:
    """Return how many times as fast as the incumbent a kernel is: in the same rounds, where both were in some."""
    found = times_as_fast(node, incumbent_ns)
    return f"{found:.2f}×" if found > 0 else "-"


def times_as_fast(node: Node, incumbent_ns: float) -> float:
    """Return the number that `faster` shows; 0 for a node without a time."""
    told = json.loads(node.feedback)
    beside = told.get("beside_incumbent") if isinstance(told, dict) else None
    ratio = beside.get("speedup") if isinstance(beside, dict) else None
    if node.sound and isinstance(ratio, (int, float)):
        return float(ratio)
    return incumbent_ns / node.ns if node.sound and node.ns > 0 else 0.0


def over(ns: float, floor_ns: float) -> str:
    """Return how many times the floor a time is; a dash where one is not known."""
    return f"{ns / floor_ns:.2f}×" if math.isfinite(ns) and floor_ns > 0 else "-"


def tree(entries: Sequence[Entry]) -> Table:
    """Return every node of a session, children below their parent."""
    nodes = nodes_of(entries)
    if not nodes:
        return Table(heads=("node",), rows=[])
    opened, closed = opened_of(entries), dead(nodes)
    rows = [_row(node, depth, node.id in closed, opened) for node, depth in _walk(nodes)]
    heads = ("node", "state", "time", "speedup", "over roofline", "roles", "what was found")
    return Table(heads=heads, rows=rows, right=(2, 3, 4))


def board(entries: Sequence[Entry], most: int = 10, bar: str = "incumbent") -> Table:
    """Return the leaderboard: the fastest sound kernels beside the times to beat, of which `bar` is the first."""
    nodes, opened = nodes_of(entries), opened_of(entries)
    rows = [
        _standing(str(node.id), state_of(node), node.ns, faster(node, opened.incumbent_ns), opened)
        for node in leaderboard(nodes, most)
    ]
    if rows:
        bars = [(bar, "to beat", opened.incumbent_ns), ("pytorch", "reference", opened.reference_ns)]
        bars += [("floor", "roofline", opened.floor_ns)] if opened.floor_ns > 0 else []
        rows += [_standing(name, ("", what), ns, speedup(ns, opened.incumbent_ns), opened) for name, what, ns in bars]
    return Table(heads=("node", "state", "time", "speedup", "over roofline"), rows=rows, right=(2, 3, 4))


def node_lines(nodes: Sequence[Node], id: int) -> Iterator[str]:
    """Yield all about a node for people: who wrote it and why, what the gates said, and what its parent had not."""
    node = nodes[id]
    glyph, word = state_of(node)
    yield f"node {id}, from node {node.parent}: {glyph} {word}{f', {duration(node.ns)}' if node.sound else ''}"
    if node.written is None:
        return
    if node.repeats is not None:
        yield f"its code is that of node {node.repeats}, and was not evaluated again"
    for step in node.log:
        yield f"{step.role}: {step.model}, exchange {step.exchange[:SHORT]}, {_tokens(step.usage.tokens)}"
        yield from (f"  {line}" for line in (*step.instruction.splitlines(), *step.notes.splitlines()))
    if (why := _why(node)) and not node.sound:
        yield f"why: {why}"
    yield "feedback:"
    yield from (f"  {line}" for line in json.dumps(json.loads(node.feedback), indent=1).splitlines())
    parent = nodes[node.parent] if node.parent is not None else node
    yield f"changes to node {parent.id}:"
    yield from (f"  {line}" for line in changes(parent, node))


def changes(parent: Node, node: Node) -> Iterator[str]:
    """Yield the difference of a node's manifest and kernel to its parent's, as unified diffs."""
    for name, attribute in (("template.toml", "manifest"), ("kernel", "kernel")):
        old, new = (getattr(one.written, attribute, "") for one in (parent, node))
        labels = (f"{parent.id}/{name}", f"{node.id}/{name}")
        yield from difflib.unified_diff(old.splitlines(), new.splitlines(), *labels, lineterm="")


def summary(
    entries: Sequence[Entry], subject: Subject | None, *, stopped: str = "", spent: Usage | None = None
) -> dict[str, Json]:
    """Return a session as one JSON value: its subject, every node and refusal, the best kernels, and the cost."""
    nodes = nodes_of(entries)
    fastest, admitted = next(iter(leaderboard(nodes, 1)), None), best_admissible(nodes)
    opened = opened_of(entries) if entries else None
    incumbent_ns = opened.incumbent_ns if opened is not None else 0.0
    return {
        "subject": encode(subject),
        "session": encode(opened),
        "attempts": attempts_of(entries),
        "stopped": stopped,
        "best": fastest.id if fastest is not None else None,
        "admissible": admitted.id if admitted is not None else None,
        "speedup": round(times_as_fast(admitted, incumbent_ns), 4) if admitted is not None else None,
        "refused": sum(isinstance(entry, Refused) for entry in entries),
        "repeated": sum(node.repeats is not None for node in nodes),
        "usage": encode(spent_of(entries) if spent is None else spent),
        "nodes": [_node(node) for node in nodes],
        "refusals": [{"node": one.node, "reason": one.reason} for one in entries if isinstance(one, Refused)],
    }


def promoted(subject: Subject) -> str:
    """Return what becomes of a kernel that was made a template."""
    return "a kernel of a task, which no compile searches" if subject.task else "`agentcompile compile` searches it"


def cost(usage: Usage) -> str:
    """Return what was asked for, on one line."""
    money = f", {usage.microdollars / 1e4:.2f} cents" if usage.microdollars else ""
    return f"{usage.calls} calls, {_tokens(usage.tokens)}{money}, {usage.seconds:.0f} s of answers"


def _node(node: Node) -> Json:
    return {
        "id": node.id,
        "parent": node.parent,
        "state": state_of(node)[1],
        "verdict": node.verdict.kind if node.verdict is not None else None,
        "ns": node.ns if math.isfinite(node.ns) else None,
        "why": _why(node),
        "written": node.written.digest if node.written is not None else None,
        "repeats": node.repeats,
        "pruned": node.pruned,
        "feedback": json.loads(node.feedback),
        "log": encode(node.log),
    }


def _row(node: Node, depth: int, closed: bool, opened: Opened) -> tuple[str, ...]:
    glyph, word = state_of(node)
    found = f"the code of node {node.repeats} again" if node.repeats is not None else _why(node)
    if closed and not node.pruned:
        word = f"{word}, dead"
    return (
        f"{'  ' * depth}{node.id}",
        f"{glyph} {word}",
        duration(node.ns) if node.sound else "-",
        faster(node, opened.incumbent_ns),
        over(node.ns, opened.floor_ns),
        "+".join(step.role for step in node.log) or "-",
        found[:_WHY],
    )


def _standing(name: str, state: tuple[str, str], ns: float, ratio: str, opened: Opened) -> tuple[str, ...]:
    return (name, f"{state[0]} {state[1]}".strip(), duration(ns), ratio, over(ns, opened.floor_ns))


def _walk(nodes: Sequence[Node]) -> Iterator[tuple[Node, int]]:
    """Yield the nodes with their depth, each before its children; iterative, since a chain may be long."""
    waiting = [(nodes[ROOT], 0)] if nodes else []
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting += [(child, depth + 1) for child in reversed(children(nodes, node.id))]


def _why(node: Node) -> str:
    return reason(node.verdict) if node.verdict is not None and not node.sound else ""


def _tokens(count: int) -> str:
    return f"{count / 1000:.1f}k tokens" if count >= 1000 else f"{count} tokens"
