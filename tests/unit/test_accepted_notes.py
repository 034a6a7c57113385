"""What passed the correctness suite once is noted under the suite that it passed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentcompile import validate
from agentcompile.tuning import trial_database


def test_a_suite_that_changed_knows_nothing_of_what_the_old_one_let_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, lengths = trial_database.accepted_key("s", "r", "t"), trial_database.lengths_key("l", "t")
    copy = tmp_path / "agentcompile"
    root = Path(validate.__file__).parent.parent
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__", "bench", "templates"))
    monkeypatch.setattr(validate, "__file__", str(copy / "validate" / "__init__.py"))
    trial_database.judging_digest.cache_clear()
    assert trial_database.accepted_key("s", "r", "t") == known
    for name in (
        "validate/cases.py",
        "worker/serve.py",
        "ops/reference.py",
        "ops/attention.py",
        "evaluation/evaluator.py",
    ):
        text = (copy / name).read_text(encoding="utf-8")
        (copy / name).write_text(text + "\n", encoding="utf-8")
        trial_database.judging_digest.cache_clear()
        assert trial_database.accepted_key("s", "r", "t") != known, name
        assert trial_database.lengths_key("l", "t") != lengths, name
        (copy / name).write_text(text, encoding="utf-8")
    monkeypatch.undo()
    trial_database.judging_digest.cache_clear()
    assert trial_database.accepted_key("s", "r", "t") == known
