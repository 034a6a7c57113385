"""One name for one thing: words that the project does not use for what has a standard name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

MODULES = {
    "seat", "seal", "unlock", "ruled", "rivals", "survey", "past", "ready", "cuts", "proving", "grown", "told", "kept",
    "judge", "judging", "crew",
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
    "judge": "evaluate", "Judged": "Evaluated",
}  # fmt: skip
"""Identifiers, and what is said instead."""
ELSEWHERE = {
    "lean": ("ir", "lockfile", "interchange", "runs"),
    "untouched": ("validate",),
    "Past": ("validate",),
    "Ready": ("worker",),
    "weighed": ("validate",),
}
"""Packages in which a name has another meaning, of its own."""
WORDS = {
    "seat", "crew", "rival", "survey", "luck", "heed", "obey", "hopeful", "fallen", "judge", "judged", "shaken",
    "ruling", "unlock", "proven",
}  # fmt: skip
"""Parts of identifiers that are never right, whatever stands beside them."""
KEPT = {
    "luck",  # a key of result files
    "rulings",  # a field of an event
}
"""Names that files and flags have had, and keep."""
PHRASES = (
    r"\bgiven back\b", r"\b(go|goes|gave|given) back to PyTorch", r"\brivals?\b", r"\brunners?-up\b",
    r"\bhopeful\b", r"\bobey", r"\bheed", r"\bcrew\b", r"\bshaken\b", r"person's word", r"\bfallen\b",
    r"\bseats?\b", r"\b(un)?luck(y|ily)?\b(?!`)", r"\bhears?\b", r"\bsays of\b", r"\bproven\b",
    r"\b(a|the) (judge|ruling)s?\b",
)  # fmt: skip
"""Of docstrings, messages, comments and pages."""
ROOTS = ("agentcompile", "bench", "tui", "templates", "docs", "examples")
PROSE = {".md", ".toml", ".cu", ".cuh", ".h", ".cpp", ".css"}
"""Files that are read whole; of Python, strings and comments are."""
RECORDED = ("bench/results", "bench/spaces", "bench/campaign/equivalents.toml", "docs/red-team.md")
"""Records of runs, and regular expressions over kernels."""
SHARED = {
    "Call": "a bound launch, of the CPU's executor and of the driver",
    "Node": "of a graph, and of a tree of attempts",
    "Reply": "of a run's control socket, and of a model's server",
}
"""Names of two public classes in `agentcompile`, each with what both are."""


def _files(repository: Path) -> Iterator[Path]:
    for root in ROOTS:
        yield from sorted((repository / root).rglob("*.py"))


def _pages(repository: Path) -> Iterator[Path]:
    """Files with prose for people: sources, kernels, settings and pages, but not what runs recorded."""
    yield from (repository / name for name in ("README.md", "CONTRIBUTING.md", "justfile", "pyproject.toml"))
    for root in ROOTS:
        for path in sorted((repository / root).rglob("*")):
            if path.suffix in {".py", *PROSE} and not str(path.relative_to(repository)).startswith(RECORDED):
                yield path


def _identifiers(text: str) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                found.add(name)
    return {name.lstrip("_") for name in found}


def _parts(name: str) -> set[str]:
    """Return the words of an identifier, each also without a plural's ending: `_seatedRivals` has `rival`."""
    words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
    return {*words, *(word.removesuffix("s") for word in words)}


def _texts(text: str) -> list[str]:
    """Return the strings and the comments of a Python text."""
    tree = ast.parse(text)
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return strings + [token.string for token in tokens if token.type == tokenize.COMMENT]


def test_files_have_names_that_can_be_guessed(repository: Path) -> None:
    assert not [str(path) for path in _files(repository) if path.stem in MODULES]


def test_things_have_their_one_name(repository: Path) -> None:
    assert _identifiers("class Survey: ...\ndef f(rivals): self._crew = obey") >= {"Survey", "rivals", "crew", "obey"}
    assert _identifiers("f(luck=1)") == {"f", "luck"}
    assert _parts("FirstRivals") >= {"first", "rival"}
    wrong = []
    for path in _files(repository):
        found = _identifiers(path.read_text(encoding="utf-8"))
        known = [name for name in found & NAMES.keys() if path.parent.name not in ELSEWHERE.get(name, ())]
        wrong += [f"{path.relative_to(repository)}: {name}, say {NAMES[name]}" for name in sorted(known)]
        wrong += [f"{path.relative_to(repository)}: {name}" for name in sorted(found - KEPT) if _parts(name) & WORDS]
    assert not wrong


def test_docstrings_comments_and_pages_use_standard_words(repository: Path) -> None:
    pattern = re.compile("|".join(PHRASES))
    planted = ("it was given back", "half go back to PyTorch", "a rival of it", "a free seat", "what it says of one")
    assert all(pattern.search(text) for text in planted)
    assert _texts('"a"  # b') == ["a", "# b"]
    wrong = [
        f"{path.relative_to(repository)}: {found[0]!r} in {text[max(found.start() - 40, 0) : found.end() + 40]!r}"
        for path in _pages(repository)
        for text in (_texts(path.read_text("utf-8")) if path.suffix == ".py" else [path.read_text("utf-8")])
        if (found := pattern.search(text))
    ]
    assert not wrong


def test_no_two_classes_of_the_compiler_share_a_name(repository: Path) -> None:
    places = defaultdict[str, list[str]](list)
    for path in sorted((repository / "agentcompile").rglob("*.py")):
        for made in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(made, ast.ClassDef) and not made.name.startswith("_"):
                places[made.name].append(str(path.relative_to(repository)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in SHARED} == {}
    assert {name: len(where) for name, where in twice.items()} == dict.fromkeys(SHARED, 2)
