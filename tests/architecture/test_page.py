"""The architecture page shows the packages and imports that there are."""

from __future__ import annotations

import importlib
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_picture_is_drawn_from_the_imports(repository: Path) -> None:
    command = [sys.executable, "docs/drawing.py", "--check"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"`just architecture` draws it anew\n{done.stderr}"


def test_arrows_that_join_lead_where_each_of_them_did(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(repository / "docs")
    layered = importlib.import_module("layered")
    rows = [["a", "b"], ["c"], ["d", "e"], ["f"]]
    edges = {"a": {"e", "c"}, "b": {"f", "d"}, "c": {"d", "f"}, "d": {"f"}, "e": set[str](), "f": set[str]()}
    placed, links = layered.bent(rows, edges)
    boxes = {(name, at) for at, row in enumerate(rows) for name in row}

    def ends(node: tuple[str, int]) -> set[str]:
        below = [other for one, other in links if one == node]
        return set[str]().union(*({other[0]} if other in boxes else ends(other) for other in below))

    assert {name: ends((name, at)) for name, at in boxes} == edges
    best = layered.ordered(placed, links)
    assert layered.crossings(best, links) <= layered.crossings(placed, links)
    x = layered.places(best, links, lambda node: 10.0, 4.0)
    assert all(x[other] - x[one] > 13.9 for row in best for one, other in itertools.pairwise(row))


def test_the_table_names_every_package(repository: Path) -> None:
    page = (repository / "docs/architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Packages") : page.index("## Who imports whom")]
    named = set(re.findall(r"`([a-z]+)/`", table)) - {"templates", "tui", "bench"}
    assert named == {path.parent.name for path in (repository / "agentcompile").glob("*/__init__.py")}


def test_what_the_page_names_is_there(repository: Path) -> None:
    page = (repository / "docs/architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:agentcompile|tui|templates|bench)/[\w/.]+)`", page):
        assert (repository / name).exists(), name
