"""Principles: rules and dead ends without source, each with what was measured, and until when it holds.

In: a library, and the tree of a session. Out: what an agent is shown for a contract, and what the session learnt.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentcompile.agents.tree import ROOT, Node, Ratio, children, ratio
from agentcompile.catalog.decode import from_toml, read_text
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Contract, WrittenLanguage
from agentcompile.ir.cleaning import clean
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.kind import TASK

FILE = "principles.toml"
VERSION = 1
SLOWER = 1.02
"""The ratio of two times that its interval must exceed before an idea counts as slower, or as faster."""
SHOWN = 24
"""Most principles that one question shows."""
_LONGEST = 400
_PRODUCT = "linear"
"""The operator of products, in the kinds of regions."""
_CHAIN = "decode-step"
"""The kind of what was measured on all kernels of a step, which concerns any of them."""
_OTHERS = "the region's shapes, the machine or the kernel that it changes are others"
_CODE = ("{", "}", ";", "```", "#include")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipleEvidence:
    """One measurement: where, and the time without the idea divided by the time with it."""

    kind: str
    """The region's kind."""
    device: str
    ratio: float
    """Above 1 it was faster; 0 where no kernel with it passed the gates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principle:
    """A rule to follow, or with `dead_end` an idea that failed or was slower."""

    text: str
    languages: tuple[WrittenLanguage, ...]
    """The languages of the targets that it is about."""
    dead_end: bool
    revalidate_if: str
    """What must have changed before it is measured again."""
    evidence: tuple[PrincipleEvidence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrinciplesFile:
    """The contents of a file of principles, and the version of its format."""

    version: int
    principles: tuple[Principle, ...]


def library(path: Path | None = None) -> tuple[Principle, ...]:
    """Return the principles of a file; without a path, of the one that comes with the package.

    Raises:
        AgentCompileError: the file is none of principles, or has a newer version (usage); it names file and key.
    """
    if path is None:
        with importlib.resources.as_file(importlib.resources.files("agentcompile.agents") / FILE) as own:
            return library(own)
    found = from_toml(PrinciplesFile, read_text(path), file=str(path))
    if found.version > VERSION:
        raise AgentCompileError(
            f"{path}: version: {found.version} is newer than the {VERSION} that this agentcompile reads",
            hint="install a newer agentcompile",
        )
    for at, one in enumerate(found.principles):
        wrong = "" if one.text.strip() else "text: it is empty"
        wrong = wrong or ("" if one.evidence else "evidence: a principle needs a measurement")
        wrong = wrong or ("" if one.revalidate_if.strip() else "revalidate_if: it is empty")
        if wrong:
            raise AgentCompileError(f"{path}: principles[{at}].{wrong}", hint="say it, or take the principle away")
    return found.principles


def relevant(principles: Sequence[Principle], contract: Contract) -> tuple[Principle, ...]:
    """Return the principles that concern a contract, those that were measured on its kind of region first.

    One concerns it that is for its language and was measured on an operator that it has too. What a task computes, its
    name does not say: one that spends FLOPs has products.
    """
    own = [one for one in principles if contract.language in one.languages and _concerns(one, contract)]
    own.sort(key=lambda one: all(found.kind != contract.kind for found in one.evidence))
    return tuple(own[:SHOWN])


def _concerns(one: Principle, contract: Contract) -> bool:
    task = contract.kind.startswith(TASK)
    own = {_PRODUCT} if task and _flops(contract) else set() if task else {_CHAIN, *contract.kind.split("-")}
    return any(
        found.kind == contract.kind or own & ({found.kind} if found.kind == _CHAIN else set(found.kind.split("-")))
        for found in one.evidence
    )


def _flops(contract: Contract) -> bool:
    region = contract.interface.get("region") if isinstance(contract.interface, dict) else None
    return isinstance(region, dict) and bool(region.get("flops"))


def learnt(nodes: Sequence[Node], contract: Contract, device: str) -> tuple[Principle, ...]:
    """Return what a session learnt, in the order of its attempts: ideas that failed or were slower, and faster ones.

    An idea is a dead end where every attempt at it failed or is surely slower than its parent, and a rule where every
    one that has a time is surely faster than the kernel that it was made from. An attempt that failed and was mended
    counts as what it became; one that was disturbed or cancelled says nothing of its idea.
    """
    found = dict[str, list[tuple[Node, Ratio | None]]]()
    for node in nodes:
        if node.parent is not None and (text := _idea(node)):
            became = _became(nodes, node)
            if became is None and _unsettled(nodes, node):
                continue
            found.setdefault(text, []).append((node, ratio(became, nodes[node.parent]) if became is not None else None))
    return tuple(
        Principle(
            text=text,
            languages=(contract.language,),
            dead_end=dead_end,
            revalidate_if=_OTHERS,
            evidence=(PrincipleEvidence(kind=contract.kind, device=device, ratio=_evidence(tried)),),
        )
        for text, tried in found.items()
        if (dead_end := _refuted(tried)) or _proved(tried)
    )


_Tried = Sequence[tuple[Node, Ratio | None]]


def _refuted(tried: _Tried) -> bool:
    return all(one is None or one.most < 1 / SLOWER for _, one in tried)


def _proved(tried: _Tried) -> bool:
    """Return whether an idea made kernels faster; against the reference it is not the idea alone that counts."""
    times = [one for node, one in tried if node.parent != ROOT and one is not None]
    return bool(times) and all(node.idea for node, _ in tried) and all(one.least > SLOWER for one in times)


def _evidence(tried: _Tried) -> float:
    return round(max(one.ratio if one is not None else 0.0 for _, one in tried), 3)


def merged(principles: Sequence[Principle], found: Sequence[Principle]) -> tuple[Principle, ...]:
    """Return a library with what a session found: evidence on an idea that it has already is added to that."""
    kept = {(one.text, one.dead_end): one for one in principles}
    for one in found:
        known = kept.get((one.text, one.dead_end), replace(one, languages=(), evidence=()))
        kept[one.text, one.dead_end] = replace(
            known,
            languages=tuple(dict.fromkeys((*known.languages, *one.languages))),
            evidence=tuple(dict.fromkeys((*known.evidence, *one.evidence))),
        )
    return tuple(kept.values())


def library_text(principles: Sequence[Principle]) -> str:
    """Return the text of a library's file."""
    import tomli_w

    table: Any = encode(PrinciplesFile(version=VERSION, principles=tuple(principles)))
    return tomli_w.dumps(table, multiline_strings=False)


def principle_data(one: Principle) -> Json:
    """Return a principle as a prompt shows it."""
    return {
        "text": one.text,
        "dead_end": one.dead_end,
        "evidence": [[found.kind, found.device, found.ratio] for found in one.evidence],
        "revalidate_if": one.revalidate_if,
    }


def _became(nodes: Sequence[Node], node: Node) -> Node | None:
    """Return a node that is sound, or, where it failed, the fastest of those that mended it; None without one."""
    if node.sound:
        return node
    mended = [_became(nodes, one) for one in children(nodes, node.id) if not one.instruction]
    sound = [one for one in mended if one is not None]
    return min(sound, key=lambda one: (one.over_reference, one.id), default=None)


def _unsettled(nodes: Sequence[Node], node: Node) -> bool:
    """Return whether the verdict of a node, or of one that was to mend it, is not of its code."""
    menders = (one for one in children(nodes, node.id) if not one.instruction)
    return not node.settled or any(_unsettled(nodes, one) for one in menders)


def _idea(node: Node) -> str:
    """Return the idea of a plan without lines that look like source; of one that states none, its instruction."""
    lines = [line for line in (node.idea or node.instruction).splitlines() if not any(mark in line for mark in _CODE)]
    return clean(" ".join(" ".join(lines).split()), _LONGEST)
