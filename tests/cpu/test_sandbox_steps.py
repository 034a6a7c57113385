"""Whole steps and whole models run behind a fence that lets them read the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.torch import save_file

from agentcompile.build import find_toolchain
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.ir.program import Program
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Crashed
from agentcompile.sandbox import for_worker, methods
from tests.cpu import jobs
from tests.models import captures, tiny
from tests.models.lowered import in_pytorch

CONTEXT = 128

pytestmark = pytest.mark.skipif(
    not all(method.works for method in methods()), reason="; ".join(method.problem for method in methods())
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Program]:
    """A checkpoint, its constants and its step as PyTorch runs it."""
    root = tmp_path_factory.mktemp("model")
    path = tiny.write("llama", root / "checkpoint")
    found = captures.captured(path, CONTEXT)
    save_file({name: tensor.contiguous() for name, tensor in found.constants.items()}, root / "constants.safetensors")
    return path, root / "constants.safetensors", in_pytorch(found.decode, CONTEXT)


@pytest.mark.parametrize("readable", [True, False])
def test_steps_read_the_checkpoint_that_the_fence_names(
    model: tuple[Path, Path, Program], tmp_path: Path, readable: bool
) -> None:
    path, constants, program = model
    (tmp_path / "scratch").mkdir()
    fence = for_worker(tmp_path / "scratch", readable=[path, constants] if readable else [])
    with WorkerEvaluator(
        jobs.target(),
        store=tmp_path / "store",
        toolchain=find_toolchain(os.environ.get("CXX_REAL", "")),
        workers=1,
        fence=fence,
    ) as evaluator:
        timing = evaluator.steps(
            [("pytorch", program), ("again", program)],
            checkpoint=path,
            constants=constants,
            binaries={},
            position=17,
            rounds=2,
            processes=1,
            claim=0.5,
            residency="cache",
            seed=3,
        )
    if readable:
        assert isinstance(timing, Timing), timing
        assert timing.live == (0, 1)
    else:
        assert isinstance(timing, Crashed), timing
        assert "Permission denied" in timing.detail or "denied" in timing.detail, timing
