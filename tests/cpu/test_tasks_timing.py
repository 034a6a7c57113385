"""PyTorch's arms beside a task's kernels, the contract that follows, and a whole session of agents on a task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import encode
from agentcompile.tasks.contract import region_of
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.open import gated
from agentcompile.tasks.timing import EAGER, baselines
from tests.cpu.tasked import CEILING, LIMITS, NORMED, SCALED, UNCOMPILED, here

COMPILED = "torch.compile"


@pytest.fixture
def task(tmp_path: Path) -> Iterator[LoadedTask]:
    path = tmp_path / "scaled.py"
    path.write_text(SCALED)
    with LoadedTask(path, threads=1, seed=7, limits=LIMITS) as found:
        yield found


def test_the_baseline_is_the_faster_of_pytorch_and_its_compiler(task: LoadedTask) -> None:
    found = baselines(task, residency="cache", seed=1, compiled=(COMPILED,))
    assert set(found.us) == {EAGER, COMPILED}
    assert found.name == min(found.us, key=lambda name: found.us[name])
    assert found.times.incumbent_ns <= found.times.reference_ns
    assert not found.failed


def test_a_compiler_that_fails_is_told_and_done_without(tmp_path: Path) -> None:
    path = tmp_path / "scaled.py"
    path.write_text(UNCOMPILED)
    with LoadedTask(path, threads=1, seed=7, limits=LIMITS) as task:
        found = baselines(task, residency="cache", seed=1, compiled=(COMPILED,))
    assert found.name == EAGER
    assert "torch.compile" in found.failed[COMPILED]


def interface(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "one.py"
    path.write_text(text)
    with LoadedTask(path, threads=2, seed=7, limits=LIMITS) as task:
        made = gated(here(folder), task, CEILING, 7, compiled=(), fenced=False)
    assert isinstance(made.contract.interface, dict)
    return {**made.contract.interface, "floor": made.contract.floor_ns, "kind": made.contract.kind}


def test_a_contract_has_the_text_the_ports_and_a_manifest_and_tells_no_seed(tmp_path: Path) -> None:
    found = interface(tmp_path, NORMED)
    assert found["definition"] == NORMED
    assert found["kind"] == "task-one"
    assert [port["name"] for port in found["ports"]] == ["in0", "in1", "out0", "out1", "out2"]
    assert [port["dtype"] for port in found["ports"]] == ["fp32", "int64", "fp32", "int64", "fp32"]
    assert found["ports"][0]["strides"] == [70, 1]
    assert "constexpr long in0_d1 = 70;" in found["launch"]["head_of_the_program"]
    assert 'arguments = ["in0", "in1", "out0", "out1", "out2"]' in found["manifest"]["example"]
    assert any("other extents" in text for text in found["preconditions"])
    assert found["floor"] > 0
    assert "seed" not in json.dumps(encode({name: found[name] for name in found if name != "definition"}))
    assert found["tolerance"]["k"] == {"out0": 32.0, "out2": 32.0}


def test_another_text_is_another_region(task: LoadedTask, tmp_path: Path) -> None:
    path = tmp_path / "scaled.py"
    path.write_text(SCALED.replace("relu", "sigmoid"))
    with LoadedTask(path, threads=1, seed=7, limits=LIMITS) as other:
        assert region_of(other).kind == region_of(task).kind
        assert region_of(other).id != region_of(task).id


def test_a_language_that_does_not_run_here_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(SCALED)
    with (
        LoadedTask(path, threads=2, seed=7, limits=LIMITS) as task,
        pytest.raises(AgentCompileError, match="cuda do not run on cpu") as caught,
    ):
        gated(here(tmp_path), task, CEILING, 7, language="cuda", compiled=(), fenced=False)
    assert "cpp" in caught.value.hint
