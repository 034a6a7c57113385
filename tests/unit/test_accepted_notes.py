"""What passed the correctness suite once is noted under the suite that it passed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentcompile import past, validate


def test_a_suite_that_changed_knows_nothing_of_what_the_old_one_let_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, lengths = past.proved_key("s", "r", "t"), past.lengths_key("l", "t")
    copy = tmp_path / "validate"
    shutil.copytree(Path(validate.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(validate, "__file__", str(copy / "__init__.py"))
    past._suite.cache_clear()
    assert past.proved_key("s", "r", "t") == known
    with (copy / "cases.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    past._suite.cache_clear()
    assert past.proved_key("s", "r", "t") != known
    assert past.lengths_key("l", "t") != lengths
    monkeypatch.undo()
    past._suite.cache_clear()
    assert past.proved_key("s", "r", "t") == known
