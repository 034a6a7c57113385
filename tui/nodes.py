"""A node of a session in full: who wrote it and why, what the gates said of it, and what its parent had not. Pure.

Whatever a model or a compiler wrote is drawn as text, and only the beginning of what is longer than a person reads.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentcompile.agents import views
from agentcompile.agents.journal import Opened, Refused, opened_of
from agentcompile.agents.tree import ROOT, Node, RoleStep
from agentcompile.catalog.aliases import KERNEL_FILES
from agentcompile.events import clean
from agentcompile.ir.trial import reason
from agentcompile.runs.tables import duration

from .grid import pairs
from .ink import Ink, Line, Span, Style, line
from .refined import Refined
from .scene import Page
from .source import colours
from .trials import Same

READ, READ_LINES = 100_000, 1_000
"""Characters and lines of a text that a difference looks at; what is longer is cut, and says so."""
_SAID_LINES = 12
"""Lines of one piece of feedback, or of what one model said."""
_LABEL = 12
_DEEPEST = 4
"""Levels of a feedback's value that are shown."""


def state_of(node: Node) -> Span:
    """Return what became of a node as glyph and word."""
    glyph, word = views.state_of(node)
    return f"{glyph} {word.partition(',')[0]}", tone_of(node)


def tone_of(node: Node) -> Style:
    """Return the style of what became of a node."""
    if node.id == ROOT:
        return "accent"
    if node.pruned or not node.settled:
        return "dim"
    return "good" if views.admissible(node) else "" if node.sound else "bad"


def detail(refined: Refined, key: str, width: int, ink: Ink) -> list[Line]:
    """Return the lines of the entry `key`: a node, or an answer that was refused."""
    if (refused := refused_of(refined, key)) is not None:
        return _refused(refused, width, ink)
    node = node_of(refined, key)
    return list(_node(Same(refined), node.id, width, ink)) if node is not None else []


def node_of(refined: Refined, key: str) -> Node | None:
    """Return the node with a key; None where the key is of no node."""
    return refined.nodes[int(key)] if key.isdecimal() and int(key) < len(refined.nodes) else None


def refused_of(refined: Refined, key: str) -> Refused | None:
    """Return the refused answer with a key: ``r`` and its place among the entries; None for another key."""
    place = key.removeprefix("r")
    if place == key or not place.isdecimal() or int(place) >= len(refined.entries):
        return None
    found = refined.entries[int(place)]
    return found if isinstance(found, Refused) else None


@functools.lru_cache(maxsize=16)
def _node(same: Same[Refined], id: int, width: int, ink: Ink) -> tuple[Line, ...]:
    refined = same.value
    node, opened = refined.nodes[id], opened_of(refined.entries)
    if node.parent is None:
        return tuple(_session(refined, opened, width, ink))
    parent = refined.nodes[node.parent]
    glyph, word = views.state_of(node)
    lines = [
        line(
            (f"node {id}", "title"),
            (f", from node {node.parent}", "dim"),
            ("   ", ""),
            (f"{glyph} {word}", tone_of(node)),
        )
    ]
    lines += pairs([*_facts(node, opened, refined)], ink, width, _LABEL)
    for step in node.log:
        lines += _step(step, width, ink)
    lines += [line(), line(("What the gates said", "head")), *_feedback(node, width, ink)]
    lines += [line(), line((f"Changes to node {parent.id}", "head"))]
    lines += colours(Page(title="", kind="diff", lines=changes(Same(parent), Same(node))), width, ink)
    return tuple(lines)


def _facts(node: Node, opened: Opened, refined: Refined) -> Iterator[tuple[str, str | Span]]:
    if node.sound:
        yield "time", duration(node.ns)
        yield "incumbent", (f"{views.faster(node, opened.incumbent_ns)} as fast as it", tone_of(node))
    if node.sound and opened.floor_ns > 0:
        yield "roofline", f"{views.over(node.ns, opened.floor_ns)} its time"
    if node.verdict is not None and not node.sound:
        yield "why", (reason(node.verdict), "bad" if node.settled else "warn")
    if node.repeats is not None:
        yield "repeats", (f"the code of node {node.repeats}, whose verdict it took over", "warn")
    if views.contended(node):
        yield "contended", ("other processes disturbed the timing; a compile on a quiet machine times it again", "warn")
    if node.written is not None and refined.subject is not None:
        yield "kernel", f"kernels/{node.id}/{KERNEL_FILES[refined.subject.language]}"


def _step(step: RoleStep, width: int, ink: Ink) -> list[Line]:
    """Return who answered, and what that one said."""
    lines = [line(), line((f"{step.role} ", "head"), (f"{clean(step.model, 200)}  ", ""), (_asked(step), "dim"))]
    for text in (step.instruction, step.notes):
        lines += _said(text, width, ink, "a shows all")
    return lines


def _asked(step: RoleStep) -> str:
    return f"{step.usage.tokens} tokens, exchange {step.exchange[:8] or 'not kept'}"


def _said(text: str, width: int, ink: Ink, more: str) -> list[Line]:
    if not text.strip():
        return []
    lines = [line(f"  {piece}") for piece in ink.wrap(text, width - 2)]
    return lines if len(lines) <= _SAID_LINES else [*lines[: _SAID_LINES - 1], line((f"  … {more}", "dim"))]


def _feedback(node: Node, width: int, ink: Ink) -> list[Line]:
    told, more = json.loads(node.feedback), f"the rest is in kernels/{node.id}/feedback.json"
    if not isinstance(told, dict):
        return [line(("nothing", "dim"))] if told is None else _said(_text(told), width, ink, more)
    lines: list[Line] = []
    for name, value in told.items():
        label, text = name.replace("_", " ").replace("floor", "roofline"), _text(value)  # a key is what models read
        if ink.width(label) < _LABEL and "\n" not in text.strip():
            own = pairs([(label, text[:READ])], ink, width, _LABEL)
        else:
            own = [line((label, "dim")), *_said(text.strip(), width, ink, more)]
        lines += own if len(own) <= _SAID_LINES + 1 else [*own[:_SAID_LINES], line((f"  … {more}", "dim"))]
    return lines


def _text(value: object, level: int = 0) -> str:
    """Return a value of a feedback as a person reads it."""
    match value:
        case list() | dict() if level == _DEEPEST:
            return "…"
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case None:
            return "-"
        case list():
            return ", ".join(_text(one, level + 1) for one in value) or "-"
        case dict():
            return ", ".join(f"{name} {_text(one, level + 1)}" for name, one in value.items()) or "-"
        case _:
            return str(value)


def _refused(refused: Refused, width: int, ink: Ink) -> list[Line]:
    lines = [
        line(("a refused answer", "title"), (f", from node {refused.node}", "dim"), "   ", ("✗ refused", "bad")),
        *pairs([("why", (refused.reason, "bad"))], ink, width, _LABEL),
    ]
    for step in refused.log:
        lines += _step(step, width, ink)
    return [*lines, line(), line(("It cost an attempt, and made no node.", "dim"))]


def _session(refined: Refined, opened: Opened, width: int, ink: Ink) -> Iterator[Line]:
    """Yield what the session is about, which stands where the reference has no kernel."""
    subject, asked, options = refined.subject, refined.asked, refined.options
    yield line(("node 0", "title"), (", the reference in PyTorch", "dim"))
    facts: list[tuple[str, str | Span]] = []
    if subject is not None:
        what = "task" if subject.task else "region"
        facts += [(what, subject.region), ("language", subject.language), ("to beat", subject.incumbent)]
    facts += [
        (subject.bar if subject is not None else "incumbent", duration(opened.incumbent_ns)),
        ("PyTorch", duration(opened.reference_ns)),
        ("roofline", duration(opened.floor_ns) if opened.floor_ns > 0 else "not known"),
        ("arm", f"{opened.arm}, {opened.strategy}, seed {opened.seed}"),
    ]
    facts += [(role, name) for role, name in refined.answers]
    if refined.replayed:
        facts.append(("answers", f"recorded, in {refined.replayed}"))
    if asked.answered_by:
        facts.append(("answered by", asked.answered_by))
    facts += [
        ("calls", f"at most {options.advisor_calls:,}"),
        ("tokens", f"at most {options.advisor_tokens:,}"),
        ("money", f"at most {options.advisor_cents} cents" if options.advisor_cents else "no limit"),
        ("attempts", f"at most {asked.attempts}"),
    ]
    if subject is not None:
        facts += [("machine", subject.machine.get("device", "-"))]
    yield from pairs(facts, ink, width, _LABEL + 1)


@functools.lru_cache(maxsize=16)
def changes(parent: Same[Node], node: Same[Node]) -> tuple[str, ...]:
    """Return the difference of a node's manifest and kernel to its parent's, as unified diffs."""
    lines: list[str] = []
    for name, attribute in (("template.toml", "manifest"), ("kernel", "kernel")):
        old, new = (_read(getattr(one.value.written, attribute, "")) for one in (parent, node))
        labels = (f"{parent.value.id}/{name}", f"{node.value.id}/{name}")
        lines += difflib.unified_diff(old, new, *labels, lineterm="")
    return tuple(lines) or ("The texts are the same.",)


def _read(text: str) -> list[str]:
    """Return the beginning of a text as lines; where it is cut, the last line says so."""
    lines = clean(text, READ, lines=True).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    cut = len(text) > READ or len(lines) > READ_LINES
    return [*lines[:READ_LINES], f"… cut: the whole text has {len(text):,} characters"] if cut else lines


def answers_page(answered: Node | Refused) -> Page:
    """Return all that the models said in an attempt, beside its texts, as a page."""
    lines: list[str] = []
    for step in answered.log:
        lines += [f"{step.role} {clean(step.model, 200)}, {_asked(step)}", ""]
        lines += [text for said in (step.instruction, step.notes) if said.strip() for text in (*_read(said), "")]
    made = f"node {answered.id}" if isinstance(answered, Node) else "the refused answer"
    return Page(title=f"answers on the way to {made}", kind="text", lines=tuple(lines))


def kernel_page(refined: Refined, node: Node) -> Page:
    """Return a node's manifest and kernel as a page."""
    assert node.written is not None, "the reference has no kernel"
    assert refined.subject is not None, "a region was opened before a node was made"
    lines = (*_read(node.written.kernel), "", "template.toml:", *_read(node.written.manifest))
    return Page(title=f"node {node.id}", kind="source", lines=lines, language=refined.subject.language)


def changes_page(refined: Refined, node: Node) -> Page:
    """Return a node's changes to its parent as a page."""
    parent = refined.nodes[node.parent or ROOT]
    title = f"node {parent.id} → node {node.id}"
    return Page(title=title, kind="diff", lines=changes(Same(parent), Same(node)))


def lineage(nodes: Sequence[Node], id: int) -> tuple[str, ...]:
    """Return the keys of a node and of those above it, the root first."""
    found = [id]
    while (parent := nodes[found[-1]].parent) is not None:
        found.append(parent)
    return tuple(str(one) for one in reversed(found))


def below(nodes: Sequence[Node], id: int) -> int:
    """Return how many nodes were made from a node, and from those, and so on."""
    found = {id}
    for node in nodes:  # children come after their parents
        if node.parent in found:
            found.add(node.id)
    return len(found) - 1


def folder_of(refined: Refined) -> str:
    """Return the folder that a promoted kernel's own folder is made in."""
    assert refined.subject is not None, "only a node of an opened region is promoted"
    return str(Path(refined.written) / refined.subject.kind)
