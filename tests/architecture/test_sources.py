"""Rules on the sources that no linter knows."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOTS = ("agentcompile", "tui", "bench", "templates", "tests")
ENDINGS = {".py", ".cpp", ".h", ".cu", ".cuh"}
MOST_LINES = 400
MOST_AT_ROOT = 8
"""Modules beside the packages: everything else has a room of its own."""
STANDARD_ALONE = ("ir", "events.py", "runs/progress.py", "errors.py")


def sources(repository: Path, *roots: str, ending: str = "") -> Iterator[Path]:
    for root in roots:
        for path in sorted((repository / root).rglob("*")):
            if path.is_file() and (path.suffix == ending if ending else path.suffix in ENDINGS):
                yield path


def test_no_file_is_longer_than_a_reader_holds(repository: Path) -> None:
    long = {
        str(p.relative_to(repository)): n
        for p in sources(repository, *ROOTS)
        if (n := len(p.read_text().splitlines())) > MOST_LINES
    }
    assert not long


def _compares_kinds(text: str) -> list[int]:
    """Lines that compare or match something with the name of a kind of device, or hold a table by kind.

    Languages have such names, too: what is compared with a `language` is one.
    """
    kinds, found = {"cpu", "cuda"}, list[int]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, comparators=others) if not any(map(_is_language, (left, *others))):
                sides = [left, *others]
                # Also where it is one of several values, as in `(phase, kind) == ("prefill", "cpu")`.
                sides += [
                    one for side in sides if isinstance(side, (ast.Tuple, ast.List, ast.Set)) for one in side.elts
                ]
            case ast.MatchValue(value=value):
                sides = [value]
            case ast.Dict(keys=keys) if kinds <= {key.value for key in keys if isinstance(key, ast.Constant)}:
                sides = keys[:1]
            case _:
                continue
        found += [node.lineno for one in sides if isinstance(one, ast.Constant) and one.value in kinds]
    return found


def _is_language(side: ast.expr) -> bool:
    return isinstance(side, (ast.Name, ast.Attribute)) and ast.unparse(side).split(".")[-1] == "language"


KINDS_ELSEWHERE = {
    "agentcompile/lockfile/sound.py": "the app reads locks, and never imports PyTorch, which backends do",
}
"""Files with tables by kind of device, and why."""


def test_backends_alone_know_kinds_of_devices(repository: Path) -> None:
    assert _compares_kinds('a = kind == "cpu"\nb = "cuda" != device') == [1, 2]
    assert _compares_kinds('(a, kind) != ("b", "cpu")\nkind in {"cpu"}\nmatch kind:\n    case "cuda": ...') == [1, 2, 4]
    assert _compares_kinds('{"cpu": 1, "cuda": 2}\nRUNS_ON[one.language] != "cuda"') == [1, 2]
    assert _compares_kinds('{"cpp": 1, "cuda": 2}\none.language in ("cuda", "triton")') == []
    found = {
        str(path.relative_to(repository)): lines
        for path in sources(repository, "agentcompile", "tui", ending=".py")
        if path.parent.name != "backends" and (lines := _compares_kinds(path.read_text(encoding="utf-8")))
    }
    assert {name: lines for name, lines in found.items() if name not in KINDS_ELSEWHERE} == {}
    assert found.keys() == KINDS_ELSEWHERE.keys()


MIDDLE = ("pipeline.py", "search", "tuning", "planning", "evaluation")


def _reaches_into(text: str) -> list[int]:
    """Lines that set an attribute of something other than `self`."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]


def test_no_object_of_the_middle_sets_an_attribute_of_another(repository: Path) -> None:
    assert _reaches_into("scheduler.left = left\nself.one.two = 3") == [1, 2]
    found = {}
    for part in MIDDLE:
        path = repository / "agentcompile" / part
        for file in [path] if path.is_file() else path.rglob("*.py"):
            if lines := _reaches_into(file.read_text(encoding="utf-8")):
                found[str(file.relative_to(repository))] = lines
    assert not found


MOST_MEMBERS = 8
"""Methods, properties and public attributes of a class of the middle; a record's fields are data."""


def _members(made: ast.ClassDef) -> set[str]:
    """The public methods and properties of a class."""
    names = {one.name for one in made.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return {name for name in names if not name.startswith("_")}


def _public_state(made: ast.ClassDef) -> set[str]:
    """Attributes of its own that a class sets, and that everybody may set."""
    stored = (one for one in ast.walk(made) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    fields = {one.target.id for one in made.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    frozen = any("frozen=True" in ast.unparse(one) for one in made.decorator_list)
    return {one.attr for one in stored if not one.attr.startswith("_")} | (set() if frozen else fields)


def test_a_class_of_the_middle_is_small_and_nobody_else_changes_it(repository: Path) -> None:
    (planted,) = ast.parse("class A:\n    b: int = 0\n    def c(self):\n        self.d = 1").body
    assert isinstance(planted, ast.ClassDef)
    assert (_members(planted), _public_state(planted)) == ({"c"}, {"b", "d"})
    large, open = {}, {}
    middle = [f"agentcompile/{part}" for part in ("search", "tuning", "planning")]
    for path in sources(repository, *middle, ending=".py"):
        for made in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(made, ast.ClassDef):
                continue
            if len(_members(made)) > MOST_MEMBERS:
                large[f"{path.name}: {made.name}"] = sorted(_members(made))
            if state := _public_state(made):
                open[f"{path.name}: {made.name}"] = sorted(state)
    assert not large
    assert not open


def test_the_flow_reads_as_a_sentence(repository: Path) -> None:
    assert len((repository / "agentcompile/pipeline.py").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_root_holds_a_handful_of_modules(repository: Path) -> None:
    assert len(list((repository / "agentcompile").glob("*.py"))) <= MOST_AT_ROOT


def _calls(path: Path, *names: str) -> list[str]:
    """Where a file calls one of `names` or reads an attribute of that dotted name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        name = ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            found += [f"{path}:{node.lineno}" for alias in node.names if f"{node.module}.{alias.name}" in names]
        if name in names:
            found.append(f"{path}:{node.lineno}")  # type: ignore[attr-defined]
    return found


def test_only_render_prints(repository: Path) -> None:
    files = [p for p in sources(repository, "agentcompile", "tui", ending=".py") if p.name != "render.py"]
    assert not [
        where
        for path in files
        for where in _calls(path, "print", "sys.stdout", "sys.stderr")
        if path.parts[-2:] not in (("cli", "main.py"), ("cli", "stdout.py"))
    ]
    assert not [where for path in files for where in _calls(path, "print")]


def test_only_options_reads_the_environment(repository: Path) -> None:
    files = [p for p in sources(repository, "agentcompile", "tui", ending=".py") if p.name != "options.py"]
    names = ("os.environ", "os.getenv", "os.environb", "os.putenv")
    assert not [where for path in files for where in _calls(path, *names)]


def test_only_decode_imports_pydantic(repository: Path) -> None:
    files = [p for p in sources(repository, "agentcompile", "tui", "bench", ending=".py") if p.name != "decode.py"]
    assert not [str(path) for path in files if "pydantic" in _imports(path)]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("part", STANDARD_ALONE)
def test_the_vocabulary_needs_the_standard_library_alone(repository: Path, part: str) -> None:
    path = repository / "agentcompile" / part
    for file in [path] if path.is_file() else path.rglob("*.py"):
        assert _imports(file) <= {*sys.stdlib_module_names, "agentcompile"}, file
