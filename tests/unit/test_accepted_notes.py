"""What passed the correctness suite once is noted under the suite that it passed."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
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
    trial_database.evaluation_digest.cache_clear()
    assert trial_database.accepted_key("s", "r", "t") == known
    for name in (
        "validate/cases.py",
        "worker/serve.py",
        "ops/reference.py",
        "ops/attention.py",
        "ops/layouts.py",
        "evaluation/evaluator.py",
        "evaluation/chunk.py",
        "capture/chunked.py",
        "runtime/executor.cpp",
    ):
        text = (copy / name).read_text(encoding="utf-8")
        (copy / name).write_text(text + "\n", encoding="utf-8")
        trial_database.evaluation_digest.cache_clear()
        assert trial_database.accepted_key("s", "r", "t") != known, name
        assert trial_database.lengths_key("l", "t") != lengths, name
        (copy / name).write_text(text, encoding="utf-8")
    monkeypatch.undo()
    trial_database.evaluation_digest.cache_clear()
    assert trial_database.accepted_key("s", "r", "t") == known


ROOT = Path(validate.__file__).parent.parent
LOADED = """
import sys
import agentcompile.worker.desk, agentcompile.worker.gpu, agentcompile.worker.host, agentcompile.worker.serve
print(*(m.__file__ for name, m in sys.modules.items() if name.startswith("agentcompile.")), sep="\\n")
"""


def test_everything_that_an_accepting_worker_loads_is_in_the_key_of_what_it_let_pass() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    files = {Path(line) for line in loaded.stdout.split()}
    assert len(files) > 100
    assert files <= set(trial_database.deciding_files(ROOT))


def test_everything_that_an_acceptance_is_asked_for_with_is_in_the_key_too() -> None:
    known = set(trial_database.deciding_files(ROOT))
    for name in ("chunk", "work", "jobs"):
        tree = ast.parse((ROOT / "evaluation" / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentcompile."):
                path = ROOT.parent / str(node.module).replace(".", "/")
                own = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                assert own in known, (name, node.module)
