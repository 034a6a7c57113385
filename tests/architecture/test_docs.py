"""Every relative link of the README and of the pages in docs/ leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "bench").glob("**/README.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def headings(path: Path) -> set[str]:
    """The anchors of a page, made as GitHub does: lower case, letters, digits and hyphens."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(path: Path) -> list[str]:
    """The links of a page that lead nowhere; those with a scheme are not followed."""
    found = []
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        there = (path.parent / name) if name else path
        if re.match(r"[a-z]+:", link):
            continue
        if not there.exists() or (anchor and anchor not in headings(there)):
            found.append(link)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken(path) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, here\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md#a-heading-here) [b](there.md#other) ![c](gone.png) [d](https://example.org/x)", encoding="utf-8"
    )
    assert broken(page) == ["there.md#other", "gone.png"]


def test_every_page_is_linked_from_the_readme() -> None:
    links = {(ROOT / link).resolve() for link in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert set((ROOT / "docs").glob("*.md")) <= links


def test_the_adviser_of_the_how_to_orders_candidates() -> None:
    text = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8").partition("\n## Add an adviser\n")[2]
    code, row = re.findall(r"```python\n(.*?)```", text, flags=re.S)[:2]
    space: dict[str, Any] = {"__name__": __name__}  # which dataclasses look up
    exec(code + row, space)
    name, usage, make = space["row"]
    asked = SimpleNamespace(
        candidates=[SimpleNamespace(id=id, params=(("ROWS", rows), ("HOW", "x"))) for id, rows in (("a", 2), ("b", 8))]
    )
    assert (name, usage, make("more")) == ("largest", "largest", None)
    assert make("").advise(asked).order == ("b", "a")


CONCEPTS = ("Regions", "Spaces", "Gates", "Admission", "Locks")


def test_every_concept_has_its_drawing() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.M)[1:]}
    assert tuple(parts) == CONCEPTS
    for name, part in parts.items():
        drawing = re.match(rf"{name}\n\n```text\n([^`]+)```\n\n\w", part)
        assert drawing, f"{name}: its drawing comes first, then its text"
        assert max(map(len, drawing[1].splitlines())) <= 80


COMMANDS = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("app", "concepts", "how-to", "refine", "settings", "using")),
]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_every_flag_that_a_page_names_exists(path: Path) -> None:
    known = set(re.findall(r"--([a-z][a-z-]*)", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")))
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]*[a-z])", path.read_text(encoding="utf-8")))
    assert named - known == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(path: Path) -> None:
    named = re.findall(r"`((?:agentcompile|bench|templates|tests|tui)/[\w./-]+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
