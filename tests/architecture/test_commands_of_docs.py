"""Every command of ours in a page is one that the command line takes, and its Python is sound; nothing is run."""

from __future__ import annotations

import ast
import shlex

import pytest

from tests.newcomer.commands import blocks
from tests.newcomer.taking import ROOT, commands, parsed

PAGES = {
    path: commands(path.read_text(encoding="utf-8"))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}
LINES = [(path.name, line) for path, lines in PAGES.items() for line in lines]


@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{page}: {line}"[:90] for page, line in LINES])
def test_a_command_of_a_page_is_one_that_the_command_line_takes(page: str, line: str) -> None:
    parsed(shlex.split(line)[1:])


def test_the_pages_have_their_commands() -> None:
    found = {path.stem: len(lines) for path, lines in PAGES.items()}
    least = {"using": 30, "refine": 10, "small-adviser": 4, "app": 6, "benchmarks": 8, "how-to": 5, "tutorial": 5}
    assert {name: found[name] for name, count in least.items() if found[name] < count} == {}


@pytest.mark.parametrize(
    "line",
    [
        "compile MODEL --no-such-flag", "no-such-verb", "replay", "refine show RUN --nodes 3", "runs no-such-verb",
        "refine MODEL --no-such-flag", "bench --suit cpu", "bench no-such-recipe", "bench compare A B --fail-on-slow",
        "bench report", "bench app --pairs many", "ablate MODEL --arm none", "tui RUN --sped 10",
    ],
)  # fmt: skip
def test_a_command_that_is_wrong_is_found(line: str) -> None:
    page = f"# Page\n\n```sh\nagentcompile doctor   # a comment\nagentcompile \\\n    {line}   # another\n```\n"
    right, wrong = (shlex.split(one)[1:] for one in commands(page))
    assert parsed(right)
    with pytest.raises(Exception, match=r"[Nn]o such|[Mm]issing|unrecognized|required|no whole|invalid|no recipe"):
        parsed(wrong)


def test_a_word_in_capitals_stands_for_a_value_of_any_type() -> None:
    assert parsed(["ablate", "MODEL", "--strategies", "halving", "--seconds", "S"])["seconds"] == "S"
    assert parsed(["bench", "--suite", "ci"])["suite"] == "ci"


def imports(text: str) -> ast.Module:
    """The imports of a block of Python; it raises where the block is no Python."""
    return ast.Module([one for one in ast.parse(text).body if isinstance(one, ast.Import | ast.ImportFrom)], [])


def test_the_python_of_a_page_is_python_and_imports_what_there_is() -> None:
    for path in PAGES:
        for kind, text in blocks(path.read_text(encoding="utf-8")):
            if kind == "python":
                exec(compile(imports(text), path.name, "exec"), {})


def test_an_import_of_what_is_not_there_is_found() -> None:
    with pytest.raises(ImportError):
        exec(compile(imports("print(1)\nfrom agentcompile.options import NoSuchOption"), "page", "exec"), {})
