"""The gate on a machine that is slow, busy or short of memory: what is the machine's is never called wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.jobs import Failed
from agentcompile.evaluation.machine import evaluator_of, this_machine
from agentcompile.events import Event, ModelChecked, Warned
from agentcompile.ir.trial import Fallback, TimedOut
from agentcompile.ir.whole import Walk
from agentcompile.verification.oracle import answers
from agentcompile.verification.whole_model import units
from agentcompile.worker.protocol import Fed, FeedModel
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.gates import gate, plans, planted

Checkpoints = Callable[[str, str], Path]
LATE = Failed(at=0, verdict=TimedOut(stage="admit", limit_s=9.0))


class Machine:
    """The machine, which is too busy for the models that it is asked to run at some times."""

    def __init__(self, evaluator: WorkerEvaluator, *late: int, hasty_s: float = 0.0) -> None:
        """`late` are the times at which nothing ends; a limit that the evaluator sets itself is `hasty_s`, if any."""
        self._evaluator, self._late, self._hasty_s = evaluator, late, hasty_s
        self.asked: list[FeedModel] = []

    def feed(self, request: FeedModel, *, patience_s: float = 0.0) -> Fed | Failed:
        self.asked.append(request)
        if len(self.asked) in self._late:
            return LATE
        return self._evaluator.feed(request, patience_s=patience_s or self._hasty_s)


@pytest.fixture(scope="module")
def made(warm: Path, checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> flows.Planted:
    out = tmp_path_factory.mktemp("whole") / "a.lock.toml"
    return flows.plant(warm, checkpoint("tiny-qwen3", "fp32"), CONTEXT, out)


@pytest.fixture(scope="module")
def evaluator(warm: Path, made: flows.Planted) -> Iterator[WorkerEvaluator]:
    with evaluator_of(this_machine(flows.options(warm, made.model.captured.checkpoint, CONTEXT)), 0) as found:
        yield found


def test_kernels_that_are_late_once_on_a_busy_machine_stay(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator
) -> None:
    machine, events = Machine(evaluator, 1), list[Event]()
    left, found = gate(warm, made, machine, events).right(plans(made), made.planned.layouts)
    assert found.ok
    assert left == tuple(plans(made))
    # The kernels, PyTorch's own graph, which has none, and the kernels again.
    assert [bool(request.binaries) for request in machine.asked] == [True, False, True]
    assert [event.text for event in events if isinstance(event, Warned)]


def test_a_machine_on_which_pytorchs_own_graph_is_late_too_is_the_environments_fault(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator
) -> None:
    events = list[Event]()
    with pytest.raises(AgentCompileError, match="too busy or too slow") as caught:
        gate(warm, made, Machine(evaluator, 1, 2), events).right(plans(made), made.planned.layouts)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "resume" in caught.value.hint
    assert not [event for event in events if isinstance(event, ModelChecked)]


def test_a_kernel_that_hangs_where_pytorch_does_not_falls_back(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    wrong, region = planted(made, tmp_path, "hang")
    checks = replace(gate(warm, made, Machine(evaluator, hasty_s=4.0), [], tmp_path), later_s=1.0)
    left, found = checks.right(wrong, made.planned.layouts)
    assert found.ok
    fallen = next(part.choice for part in left[0].parts if part.region == region)
    assert isinstance(fallen, Fallback)
    assert "it hung" in fallen.reason
    assert len(units(wrong)) - len(units(left)) == 1


def test_a_model_that_is_slow_at_every_step_is_waited_for(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    slow, _ = planted(made, tmp_path, "slow")
    request = gate(warm, made, evaluator, [], tmp_path).request(slow, made.planned.layouts)
    begin, patience_s = time.monotonic(), 1.5
    ran = evaluator.feed(replace(request, out=str(tmp_path / "logits")), patience_s=patience_s)
    assert isinstance(ran, Fed)
    assert ran.longest_s < time.monotonic() - begin
    # Every one of its steps sleeps 60 ms: what all of them take is beyond what one of them may.
    assert 0.06 * sum(group[0].steps for group in request.groups) > 2 * patience_s


def test_a_worker_without_memory_for_the_model_is_the_environments_fault(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    request = gate(warm, made, evaluator, []).request(plans(made), made.planned.layouts)
    with pytest.raises(AgentCompileError, match="machine is out of memory") as caught:
        evaluator.feed(replace(request, capacity=1 << 36, out=str(tmp_path / "logits")))
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "memory is" in caught.value.hint


@pytest.mark.parametrize("fault", ["killed", "memory"])
def test_a_process_that_the_system_ends_for_memory_is_the_environments_fault(
    fault: str, warm: Path, made: flows.Planted, evaluator: WorkerEvaluator, tmp_path: Path
) -> None:
    wrong, _ = planted(made, tmp_path, fault)
    with pytest.raises(AgentCompileError, match="machine is out of memory") as caught:
        gate(warm, made, evaluator, [], tmp_path).right(wrong, made.planned.layouts)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_logits_that_do_not_fit_on_the_disk_are_the_environments_fault(
    warm: Path, made: flows.Planted, evaluator: WorkerEvaluator
) -> None:
    request = gate(warm, made, evaluator, []).request(plans(made), made.planned.layouts)
    with pytest.raises(AgentCompileError, match="disk is full") as caught:
        evaluator.feed(replace(request, out="/dev/full"))
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


class _Greedy(torch.nn.Module):
    """Takes more memory than any machine has."""

    def forward(self, *_: object) -> torch.Tensor:
        return torch.zeros(1 << 50)


def test_a_reference_that_has_no_memory_is_the_environments_fault(made: flows.Planted) -> None:
    with pytest.raises(AgentCompileError, match="machine is out of memory") as caught:
        answers(made.model.captured, [Walk(ids=(1, 2), prompt=1, scored=(0, 1))], "cpu", _Greedy())
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
