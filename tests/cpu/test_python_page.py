"""docs/python.md: every snippet that is not said to search runs as it stands, one after another."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from tests.cpu import flows
from tests.cpu.templated import with_template

PAGE = flows.ROOT / "docs/python.md"
SNIPPET = re.compile(r"(<!-- not run: [^>]+ -->\n)?```python\n(.*?)```", re.DOTALL)


def snippets() -> list[tuple[bool, str]]:
    """Whether a snippet runs, and its text."""
    return [(not aside, text) for aside, text in SNIPPET.findall(PAGE.read_text(encoding="utf-8"))]


def test_the_snippets_of_the_page_run(
    warm: Path,
    planted: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(warm))
    with_template(tmp_path / "my-model")
    shutil.copy(planted("sample", "bf16"), tmp_path / "my-model.lock.toml")
    names: dict[str, Any] = {}
    with chdir(tmp_path):
        for number, (runs, text) in enumerate(snippets(), 1):
            code = compile(text, f"{PAGE.name}: snippet {number}", "exec")
            if runs:
                exec(code, names)
    assert "max_length: 100" in capsys.readouterr().out
    assert len(names["drafts"]) == len(set(names["drafts"])) == 3
    assert names["answer"].prompt_tokens > 4
    assert names["rows"].shape[0] == 2


def test_only_what_searches_is_not_run() -> None:
    aside = [text for runs, text in snippets() if not runs]
    assert len(aside) == 2
    assert all("seconds=60" in text for text in aside)
    assert len(snippets()) > 8
