"""A prompt's plan on a device: it was timed whole beside PyTorch's, and what did not pay is not in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.models.presets import materialise

from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import evaluator_of
from agentcompile.evaluation.step_clock import StepClock
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.trial import Fallback
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.measure import POLICY, Timing, contrast
from agentcompile.options import Options
from agentcompile.replay.open import OpenedLock, open_lock
from tests.cpu import flows

pytestmark = pytest.mark.gpu

CONTEXT = 512
CHUNK = 256


def test_the_lock_says_what_a_chunk_takes_beside_pytorch(lock: Lock) -> None:
    (step,) = (step for step in lock.evidence.steps if step.phase == "prefill")
    (plan,) = (plan for plan in lock.plan if plan.phase == "prefill")
    assert (step.batch, step.context) == (plan.batch, plan.context)
    assert step.step_ns > 0
    assert step.baseline_ns > 0
    ratio, half = float(step.log_ratio), float(step.half_width)
    assert math.isfinite(ratio)
    assert half >= 0
    if any(choice.use == "kernel" for choice in plan.choices):
        # The digits that a lock keeps may round the edge of a claim.
        assert ratio - half > math.log1p(POLICY.claim) - 1e-3


def test_the_file_holds_the_same(lock: Lock, lock_file: Path) -> None:
    assert read_lock(lock_file).evidence.steps == lock.evidence.steps


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> OpenedLock:
    """A prompt's plan that runs a kernel wherever a template serves, timed or not."""
    home = tmp_path_factory.mktemp("chunk")
    model = materialise("tiny-qwen3", home / "model", dtype="bf16")
    written = flows.write(home, model, CONTEXT, home / "all.lock.toml", target="cuda:0")
    return open_lock(written, Options(model=str(model), context=CONTEXT, home=str(home), target="cuda:0"))


@pytest.fixture(scope="module")
def evaluator(opened: OpenedLock) -> Iterator[WorkerEvaluator]:
    with evaluator_of(opened.here, 0) as made:
        yield made


def test_a_chunk_of_kernels_and_one_of_pytorch_are_timed_in_fresh_processes(
    opened: OpenedLock, evaluator: WorkerEvaluator
) -> None:
    chunks = opened.chunks
    plain = replace(chunks, parts=tuple(replace(part, choice=Fallback(reason="the baseline")) for part in chunks.parts))
    programs: list[tuple[str, Program]] = [("pytorch", plain.at(CHUNK).program), ("plan", chunks.at(CHUNK).program)]
    assert not any(isinstance(call, NativeCall) for call in programs[0][1].calls)
    assert any(isinstance(call, NativeCall) for call in programs[1][1].calls)
    sources = {job.source.digest: job.source for job in chunks.at(CHUNK).jobs}
    clock = StepClock(opened.here, evaluator, opened.model, lambda: sources)
    timing = clock(
        programs, at=chunks.cut.regime, rounds=POLICY.confirm_rounds, processes=2, claim=POLICY.claim, seed=0
    )
    assert isinstance(timing, Timing), timing
    assert timing.failed == ()
    assert timing.live == (0, 1)
    assert len(timing.processes) == 2
    assert min(timing.median_ns(0), timing.median_ns(1)) > 1_000
    assert math.isfinite(contrast(timing, 1, 0, claim=POLICY.claim).log_ratio)
