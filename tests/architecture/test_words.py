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
PRINTED = {
    r"half of them (are|fall)\b": "retrying with half of the kernels", r"INCONCLUSIVE than": "inconclusive vs PyTorch",
    r"± any\b": "no interval", r"\badmit\b": "step check", r"\b(a|the|best) cover\b(?! of)": "plan",
    r"\bfloor\b": "roofline", r"\bsites?\b": "occurrences", r"\bstanding\b": "status",
    r"\ba person said\b": "by user", r"\bfor a person\b": "by user", r"\btaken back\b": "undone",
    r"Tokens that the cache": "Maximum context length", r"Tokens of these": "Token limit for the adviser",
    r"\b0: any\b": "0 = no limit", r"\blies?\b": "is", r"text to go on from": "Prompt",
    r"Who is to read": "Output format", r"\b[Gg]ive (one|a candidate) up\b": "Cancel", r"\b[Gg]ive up a\b": "cancel a",
    r"session goes on\b": "resumed", r"as they were covered": "skipped", r"\bheard\b": "used",
}  # fmt: skip
"""Of what is printed, and what is said instead; they are right in docstrings, and `floor` and `site` as names."""
ASKED = (
    "advice/claims.py", "advice/prompt.py", "agents/rules.py", "refine/machine.py", "refine/meanings.py",
    "regions/problem.py",
)  # fmt: skip
"""Files with texts that models are sent, whose wording recorded answers are found by, and one of an internal error."""
OTHERWISE = {
    "agentcompile/cli/doctor.py": "its site gives the command",
    "agentcompile/lockfile/sound.py": "the sites are not distinct",
    "bench/campaign/forging.py": "sites",
    "bench/ladder/insides.py": "and the sites are",
}
"""Strings that mean something else: a site of the web, a key of locks, names of columns, an internal error."""
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
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
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


def _printed(text: str) -> Iterator[str]:
    """Yield the strings of a Python text that may be printed: those of several words that document nothing."""
    tree = ast.parse(text)
    documents = {
        id(one.value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        for one in node.body
        if isinstance(one, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield from [node.value] if " " in node.value.strip() else []


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


def test_what_is_printed_has_standard_words(repository: Path) -> None:
    planted = '"""A floor."""\ndef f():\n    """The site."""\n    return "over_floor", f"below its floor of {1}"'
    assert list(_printed(planted)) == ["below its floor of "]
    wrong = [
        f"{name}: {found[0]!r}, say {PRINTED[word]!r}, in {text!r:.160}"
        for path in _files(repository)
        if not (name := str(path.relative_to(repository))).endswith(ASKED)
        for text in _printed(path.read_text("utf-8"))
        if OTHERWISE.get(name, "\0") not in text
        for word in PRINTED
        if (found := re.search(word, text))
    ]
    assert not wrong


def test_no_two_classes_of_the_compiler_share_a_name(repository: Path) -> None:
    places = defaultdict[str, list[str]](list)
    for path in sorted((repository / "agentcompile").rglob("*.py")):
        for made in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(made, ast.ClassDef):
                places[made.name].append(str(path.relative_to(repository)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in SHARED} == {}
    assert {name: len(where) for name, where in twice.items()} == dict.fromkeys(SHARED, 2)
