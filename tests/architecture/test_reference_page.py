"""docs/reference.md is what docs/reference.py makes of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bench.cli import WORDS


def test_the_reference_is_made_from_the_code(repository: Path) -> None:
    made = subprocess.run([sys.executable, "docs/reference.py", "--check"], cwd=repository, check=False, timeout=300)
    assert made.returncode == 0, "run `just reference`"


def test_a_heading_is_short_and_an_item_of_a_list_has_its_line(repository: Path) -> None:
    lines = (repository / "docs" / "reference.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("#") and len(line) > 100] == []
    assert [line for line in lines if line.startswith("- ") and " - `" in line] == []


def test_every_recipe_has_its_section_and_no_flag_is_without_a_word(repository: Path) -> None:
    text = (repository / "docs" / "reference.md").read_text(encoding="utf-8")
    named = re.findall(r"^### agentcompile bench ([a-z]+)", text, flags=re.M)
    assert named == list(WORDS)
    assert re.findall(r"^### agentcompile (ablate|tui) ", text, flags=re.M) == ["ablate", "tui"]
    commands = text[: text.index("## Settings")]
    assert [line for line in commands.splitlines() if re.fullmatch(r"\| `.*` \| *\|", line)] == []
    assert str(repository) not in text, "a default of this machine"
