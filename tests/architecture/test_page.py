"""The architecture page shows the packages and imports that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_the_drawing_is_made_from_the_imports(repository: Path) -> None:
    command = [sys.executable, "docs/drawing.py", "--check"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"`just architecture` draws it anew\n{done.stderr}"


def test_the_table_names_every_package(repository: Path) -> None:
    page = (repository / "docs/architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Packages") : page.index("## Who imports whom")]
    named = set(re.findall(r"`([a-z]+)/`", table)) - {"templates", "tui", "bench"}
    assert named == {path.parent.name for path in (repository / "agentcompile").glob("*/__init__.py")}


def test_what_the_page_names_is_there(repository: Path) -> None:
    page = (repository / "docs/architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:agentcompile|tui|templates|bench)/[\w/.]+)`", page):
        assert (repository / name).exists(), name
