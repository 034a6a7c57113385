"""One name for one thing: words that the project does not use for what has a standard name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MODULES = {
    "seat", "seal", "unlock", "ruled", "rivals", "survey", "past", "ready", "cuts", "proving", "grown", "told", "kept",
    "judge", "crew",
}  # fmt: skip
"""Names of files that nobody could guess."""
NAMES = {
    "Survey": "TaskScheduler", "Ready": "PreparedModel", "Past": "TrialDatabase", "Rivals": "Alternatives",
    "RunnersUp": "RankedAlternatives", "Everywhere": "SpaceAlternatives", "Judge": "Evaluator",
    "WorkerJudge": "WorkerEvaluator", "Crew": "WorkerPool", "Seat": "WorkerSlot", "Grown": "GrowingSequence",
    "survey": "scheduler", "rivals": "alternatives", "rival": "alternative", "crew": "pool", "shaken": "disturbed",
    "Ruling": "Decision", "weighed": "timed_plan",
    "hopeful": "candidates_for_step", "obey": "carry_out", "heed": "apply", "proven": "correct",
    "fallen": "as_fallback", "seal": "lock_of", "lean": "sparing", "untouched": "all_fallback",
}  # fmt: skip
"""Identifiers, and what is said instead."""
ELSEWHERE = {
    "lean": ("ir", "lockfile", "interchange", "runs"),
    "untouched": ("validate",),
    "Past": ("validate",),
    "Ready": ("worker",),
    "weighed": ("validate",),
    "Judge": ("ir", "refine", "agents", "cli"),
}
"""Packages in which a name has another meaning, of its own."""
PHRASES = (
    r"\bgiven back\b", r"\b(go|goes|gave|given) back to PyTorch", r"\brivals?\b", r"\brunners?-up\b",
    r"\bhopeful\b", r"\bobey", r"\bheed", r"\bcrew\b", r"\bshaken\b", r"person's word", r"\bfallen\b",
)  # fmt: skip
"""Of docstrings and messages."""
ROOTS = ("agentcompile", "bench", "tui")


def _files(repository: Path) -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted((repository / root).rglob("*.py"))


def _identifiers(text: str) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
    return {name.lstrip("_") for name in found}


def _texts(text: str) -> list[str]:
    return [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_files_have_names_that_can_be_guessed(repository: Path) -> None:
    assert not [str(path) for path in _files(repository) if path.stem in MODULES]


def test_things_have_their_one_name(repository: Path) -> None:
    assert _identifiers("class Survey: ...\ndef f(rivals): self._crew = obey") >= {"Survey", "rivals", "crew", "obey"}
    wrong = [
        f"{path.relative_to(repository)}: {name}, say {NAMES[name]}"
        for path in _files(repository)
        for name in sorted(_identifiers(path.read_text(encoding="utf-8")) & NAMES.keys())
        if path.parent.name not in ELSEWHERE.get(name, ())
    ]
    assert not wrong


def test_docstrings_and_messages_use_standard_words(repository: Path) -> None:
    pattern = re.compile("|".join(PHRASES))
    assert all(pattern.search(text) for text in ("it was given back", "half go back to PyTorch", "a rival of it"))
    wrong = [
        f"{path.relative_to(repository)}: {found[0]!r} in {text[:80]!r}"
        for path in _files(repository)
        for text in _texts(path.read_text(encoding="utf-8"))
        if (found := pattern.search(text))
    ]
    assert not wrong
