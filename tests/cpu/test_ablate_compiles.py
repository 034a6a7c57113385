"""A study of compiles with real locks: the compiler finds them at once, and all that follows is real."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError
from bench.ablation import compiling
from bench.ablation.compiling import Request, arms_of, read_compiles, run
from tests.cpu import flows

COMPILER = """
import json, pathlib, shutil, sys, time
words = dict(zip(sys.argv[5::2], sys.argv[6::2]))
if words["--strategy"] == "random":
    sys.exit("error: made to fail")
from agentcompile.events import SearchProgress, StageFinished
from agentcompile.runs.session import Journal, RunDirectory
with Journal(RunDirectory.create(pathlib.Path(words["--run-dir"]), {{}})) as journal:
    journal.append(SearchProgress(elapsed_s=1.0, candidates=7, step_ns=5_000_000, overhead_s=0.01))
    journal.append(StageFinished(stage="search", seconds=2.5))
home = pathlib.Path({home!r})
shutil.copytree(home, pathlib.Path(words["--run-dir"]).parent / "home")
shutil.copy({locks!r} + "/" + words["--strategy"] + ".lock.toml", words["--out"])
"""
"""Copies the lock that has the strategy's name; `random` has none."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: Callable[[str, str], Path]) -> Path:
    """A tiny model with two locks: one runs kernels, one PyTorch's own calls."""
    home, locks, model = tmp_path / "warm", tmp_path / "locks", checkpoint("tiny-qwen3", "fp32")
    locks.mkdir()
    flows.measured(home)
    flows.write(home, model, 64, locks / "halving.lock.toml", library=True)
    flows.write(home, model, 64, locks / "evolutionary.lock.toml")
    text = COMPILER.format(home=str(home), locks=str(locks))
    monkeypatch.setattr(compiling, "command_of", lambda *_: [sys.executable, "-c", text])
    return model


def test_locks_are_timed_beside_one_another_and_a_failed_arm_says_why(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study.json"
    request = Request(models=(model,), arms=arms_of(["halving@none;random@none;evolutionary@none"]), seeds=1, out=out)
    assert run(request) == 0
    assert "1, 1 failed" in capsys.readouterr().out
    calls, failed, kernels = read_compiles(out).compiles
    assert "made to fail" in failed.failure
    assert (failed.step_ns, failed.trials) == (None, 0)
    assert (calls.trials, calls.searched_s, calls.step_after(7)) == (7, 2.5, 5_000_000)
    assert calls.log_ratio == 0
    assert calls.overhead_s == 0.01
    assert calls.overhead_share is not None
    assert 0 < calls.overhead_share < 1
    assert (failed.overhead_s, failed.overhead_share) == (None, None)
    # Kernels serve the step many times faster than PyTorch's operators one by one, also on a busy machine.
    assert kernels.log_ratio is not None
    assert kernels.log_ratio > 0.5
    assert kernels.step_ns is not None
    assert calls.step_ns is not None
    assert kernels.step_ns < calls.step_ns
    monkeypatch.setattr(compiling, "command_of", lambda *_: pytest.fail("what is done is not done again"))
    assert run(request) == 0
    assert json.loads(out.read_bytes())["arms"] == ["halving@none", "random@none", "evolutionary@none"]
    other = Request(models=request.models, arms=arms_of(["halving"]), seeds=1, out=out)
    with pytest.raises(AgentCompileError, match="another study"):
        run(other)
    assert len(read_compiles(out).compiles) == 3
