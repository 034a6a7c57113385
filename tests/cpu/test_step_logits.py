"""Steps that are timed beside one another must make the same logits: one that does not has no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentcompile.build import compile_executor
from agentcompile.checkpoint import Checkpoint
from agentcompile.evaluation.evaluator import Limits, WorkerEvaluator
from agentcompile.ir.program import Program, TorchCall
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import Incorrect
from agentcompile.measure import POLICY
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import Executor
from agentcompile.runtime.step import HostStep
from agentcompile.system.store import Store
from agentcompile.worker import logits
from agentcompile.worker.logits import ALLOWED, DURING, LIVED, Probe, live
from agentcompile.worker.protocol import WrongOutput
from tests.cpu import jobs
from tests.models import captures, tiny
from tests.models.lowered import in_pytorch

CONTEXT, VOCAB = 128, 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Program]:
    """A checkpoint, its constants and its step as PyTorch runs it."""
    root = tmp_path_factory.mktemp("model")
    path = tiny.write("llama", root / "checkpoint")
    found = captures.captured(path, CONTEXT)
    save_file({name: tensor.contiguous() for name, tensor in found.constants.items()}, root / "constants.safetensors")
    return path, root / "constants.safetensors", in_pytorch(found.decode, CONTEXT)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    store = tmp_path_factory.mktemp("store")
    limits = Limits(measure_s=60.0)
    with WorkerEvaluator(jobs.target(), store=store, toolchain=jobs.toolchain(), workers=1, limits=limits) as made:
        yield made


def crossed(program: Program) -> Program:
    """The step with two weights of one shape in each other's place."""
    shapes = {buffer.name: buffer.shape for buffer in program.buffers if buffer.role == "weight"}
    one, other = next(
        (a, b)
        for a in sorted(shapes)
        for b in sorted(shapes)
        if a < b and shapes[a] == shapes[b] and len(shapes[a]) == 2
    )
    turned = {one: other, other: one}
    calls = []
    for call in program.calls:
        assert isinstance(call, TorchCall)
        calls.append(replace(call, bindings=tuple((port, turned.get(name, name)) for port, name in call.bindings)))
    return replace(program, calls=tuple(calls))


def timed(
    evaluator: WorkerEvaluator,
    model: tuple[Path, Path, Program],
    labelled: list[tuple[str, Program]],
    *,
    rounds: int = 3,
    processes: int = 1,
    seconds: float = 0.0,
) -> Timing:
    """Steps of the model, timed beside one another."""
    found = evaluator.steps(
        labelled,
        checkpoint=model[0],
        constants=model[1],
        binaries={},
        position=17,
        rounds=rounds,
        processes=processes,
        claim=0.01,
        residency="cache",
        seed=3,
        seconds=seconds,
    )
    assert isinstance(found, Timing)
    return found


def test_a_step_with_other_logits_is_a_failed_arm_that_says_so(
    evaluator: WorkerEvaluator, model: tuple[Path, Path, Program]
) -> None:
    program = model[2]
    timing = timed(evaluator, model, [("pytorch", program), ("crossed", crossed(program)), ("again", program)])
    ((arm, verdict),) = timing.failed
    assert (arm, timing.live, len(timing.processes)) == (1, (0, 2), 1)
    assert isinstance(verdict, Incorrect)
    (check,) = verdict.report.checks
    assert (check.name, check.allowed, check.ok) == ("step-logits", ALLOWED, False)
    assert "before it was timed" in check.detail


@pytest.mark.parametrize(("seconds", "processes"), [(0.0, 2), (0.2, 1)])
def test_no_process_begins_that_would_end_after_its_time(
    evaluator: WorkerEvaluator, model: tuple[Path, Path, Program], seconds: float, processes: int
) -> None:
    labelled = [("pytorch", model[2]), ("again", model[2])]
    timing = timed(evaluator, model, labelled, processes=2, seconds=seconds)
    assert len(timing.processes) == processes


def test_samples_that_are_late_and_go_without_a_warm_up_are_compared_at_their_own_tokens(
    model: tuple[Path, Path, Program], tmp_path: Path
) -> None:
    labelled = [(label, model[2]) for label in ("pytorch", "again", "and again")]
    with WorkerEvaluator(
        jobs.target(),
        store=tmp_path,
        toolchain=jobs.toolchain(),
        workers=1,
        # No round is hopeless, however busy the machine that the tests run on.
        policy=replace(POLICY, max_interval_ns=1, busy_wait_share=1e9),
    ) as evaluator:
        timing = timed(evaluator, model, labelled, rounds=9, seconds=1e-3)
    assert timing.failed == ()
    assert [len(one.rounds) for one in timing.processes] == [3], "no more than an interval needs"


def probe(model: tuple[Path, Path, Program], runs: list[Callable[[], torch.Tensor]], tokens: torch.Tensor) -> Probe:
    return Probe(tokens, [model[2]] * len(runs), runs, vocab=VOCAB, seed=0)


def step(tokens: torch.Tensor) -> Callable[[], torch.Tensor]:
    table = torch.randn(VOCAB, 40, generator=torch.Generator().manual_seed(1))
    return lambda: table[int(tokens[0])]


def test_a_step_that_turns_wrong_while_it_is_timed_is_caught_after_it(model: tuple[Path, Path, Program]) -> None:
    tokens = torch.zeros(1, dtype=torch.int64)
    right, wrong = step(tokens), False
    held = probe(model, [right, lambda: right() * (-1.0 if wrong else 1.0)], tokens)
    held.check("before")
    wrong = True
    with pytest.raises(WrongOutput) as caught:
        held.check("after")
    assert caught.value.arm == 1
    assert "after it was timed" in str(caught.value)


@pytest.mark.parametrize("spoil", [lambda y: y + 0.5 * y.std(), lambda y: y * torch.nan, torch.zeros_like])
def test_logits_that_are_far_off_or_no_numbers_are_wrong_and_rounding_is_not(
    model: tuple[Path, Path, Program], spoil: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    tokens = torch.zeros(1, dtype=torch.int64)
    right = step(tokens)
    held = probe(model, [right], tokens)
    tokens.copy_(held.row(0))
    held.compare(0, 0, right().bfloat16(), "here")
    with pytest.raises(WrongOutput):
        held.compare(0, 0, spoil(right()), "here")


def test_samples_that_are_compared_have_tokens_of_their_own(model: tuple[Path, Path, Program]) -> None:
    tokens = torch.zeros(1, dtype=torch.int64)
    held = probe(model, [step(tokens), step(tokens)], tokens)
    taken = [at for _ in range(200) for arm in (0, 1) if (at := held.take(arm)) >= 0]
    assert len(taken) == len(set(taken)) == DURING, "PyTorch is not compared with itself"
    assert set(taken) == set(range(2, 2 + DURING))


def test_a_slow_step_of_pytorch_runs_once_before_it_is_timed_and_for_no_comparison(
    model: tuple[Path, Path, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits on the tokens of later comparisons are those that it makes while it is timed."""
    monkeypatch.setattr(logits, "SLOW_S", 0.0)
    tokens, runs, wrong = torch.zeros(1, dtype=torch.int64), list[int](), False
    right = step(tokens)

    def counted(arm: int) -> torch.Tensor:
        runs.append(arm)
        return right() * (-1.0 if wrong and arm == 1 else 1.0)

    held = probe(model, [partial(counted, 0), partial(counted, 1)], tokens)
    held.check("before")
    assert runs == [0, 1]
    assert [held.take(1) for _ in range(50)] == [-1] * 50, "nothing to compare with"
    rows = list[int]()
    while (at := held.take(0)) >= 0:
        rows.append(at)
        tokens.copy_(held.row(at))
        held.compare(0, at, right(), "timed")
    assert rows == list(range(1, 2 + DURING))
    taken = [at for _ in range(200) if (at := held.take(1)) >= 0]
    assert taken == list(range(2, 2 + DURING))
    tokens.copy_(held.row(taken[0]))
    held.compare(1, taken[0], right(), "timed")
    with pytest.raises(WrongOutput):
        held.compare(1, taken[0], -right(), "timed")
    wrong = True
    with pytest.raises(WrongOutput):
        held.check("after")
    assert runs == [0, 1, 1]


def test_a_slow_step_that_was_timed_too_seldom_is_made_once_more_in_the_end(
    model: tuple[Path, Path, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logits, "SLOW_S", 0.0)
    tokens = torch.zeros(1, dtype=torch.int64)
    right = step(tokens)
    held = probe(model, [right, lambda: -right()], tokens)
    with pytest.raises(WrongOutput):
        held.check("after")


def test_caches_hold_what_the_model_writes_there_before_steps_are_compared(
    model: tuple[Path, Path, Program], tmp_path: Path
) -> None:
    executor = Executor(compile_executor(Store(tmp_path), toolchain=jobs.toolchain()), 2)
    path, constants, program = model
    memory = Memory([program], Checkpoint.open(path).tensor, dict(load_file(constants)))
    memory.furnish()
    made = HostStep(program, memory, executor, {})
    live(memory, [program], [made.again], vocab=VOCAB, seed=5)
    for state in memory.states():
        assert torch.equal(state[:, :, :LIVED], state[:, :, LIVED : 2 * LIVED])
        assert torch.equal(state[:, :, -1], state[:, :, (state.shape[2] - 1) % LIVED])
        assert len(state[0, 0, :LIVED].unique(dim=0)) == LIVED
    first = [state.clone() for state in memory.states()]
    live(memory, [program], [made.again], vocab=VOCAB, seed=6)
    assert not any(torch.equal(one, other) for one, other in zip(first, memory.states(), strict=True))
