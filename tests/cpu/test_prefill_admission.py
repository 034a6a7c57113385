"""A prompt's chunk in a GPU's flow, on the host: both arms lowered whole, timed as a worker does, and locked.

Graphs run their body again, launches do nothing, the evaluator counts calls: what a device's own is (captures, streams,
events, kernels) is tested on one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentcompile.build import nvrtc_toolchain
from agentcompile.capture.cached import Model
from agentcompile.checkpoint import Checkpoint
from agentcompile.control.steering import Steering
from agentcompile.evaluation.machine import Machine
from agentcompile.evaluation.step_clock import StepClock
from agentcompile.evaluation.time_budget import TimeBudget
from agentcompile.events import Event, PlanAdmitted, Warned, silent
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.template import Source
from agentcompile.ir.timing import Clock, Interval, Round, Samples
from agentcompile.ir.trial import Choice, Fallback, Kernel, Part, Plan
from agentcompile.lockfile.files import content_hash, read_lock, write_lock
from agentcompile.lockfile.schema import Lock
from agentcompile.measure import POLICY, Timing
from agentcompile.planning.chunks import Chunks
from agentcompile.planning.plans import Planned
from agentcompile.planning.steps import tune_steps
from agentcompile.regions.cover import cover
from agentcompile.regions.problem import Option, Problem
from agentcompile.replay.load import replay_lock
from agentcompile.replay.write import lock_of
from agentcompile.runtime import device_step
from agentcompile.runtime.device_step import first_chunk
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.step import HostStep
from agentcompile.search import STRATEGIES
from agentcompile.system.store import Store
from agentcompile.tuning.partitions import CHUNK, cut
from agentcompile.tuning.prepared import PreparedModel
from agentcompile.worker import gpu_timing, logits
from agentcompile.worker.box import Box
from agentcompile.worker.gpu_timing import TURN_NS
from agentcompile.worker.protocol import TimeSteps, WrongOutput
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT as SHORT
from tests.cpu.test_chunk_plans import CONTEXT
from tests.models import captures, tiny
from tests.models.planned import GPU, plan_of

CEILING = flows.CEILING
PER_CALL_NS = 10_000


class Evaluated:
    """Has steps that cost `PER_CALL_NS` for every call of PyTorch's, and `native_ns` for every launch of ours."""

    def __init__(self, native_ns: int) -> None:
        self.native_ns = native_ns
        self.asked: list[tuple[Sequence[tuple[str, Program]], dict[str, Any]]] = []

    def steps(self, programs: Sequence[tuple[str, Program]], **asked: Any) -> Timing:
        self.asked.append((programs, asked))
        times = [
            sum(self.native_ns if isinstance(call, NativeCall) else PER_CALL_NS for call in program.calls)
            for _, program in programs
        ]
        rounds = tuple(
            Round(intervals_ns=tuple((ns + i % 3, ns + i % 2) for ns in times), waited_ns=(0,) * len(times))
            for i in range(asked["rounds"])
        )
        samples = Samples(batch=1, clock=Clock(quantum_ns=1, doubling=(2.0,) * len(times)), rounds=rounds)
        labels = tuple(label for label, _ in programs)
        processes = (samples,) * asked["processes"]
        return Timing(arms=labels, live=tuple(range(len(times))), processes=processes, residency="cache")


@dataclass
class Known:
    """Alternatives of which there are none; the sources of a chunk's kernels are known."""

    found: Mapping[str, Source]

    def sources(self) -> Mapping[str, Source]:
        return self.found

    def limit(self, left: Callable[[], float]) -> None:
        """It evaluates nothing."""

    def shippable(self, part: Part, known: Choice) -> Choice:
        return part.choice


@dataclass(frozen=True)
class Rig:
    """A tiny model cut for a GPU, with a prefill plan of kernels and a decode plan of none."""

    ready: PreparedModel
    planned: Planned
    chunks: Chunks
    constants: Mapping[str, torch.Tensor]

    def tune_steps(self, evaluator: Evaluated) -> tuple[tuple[Plan, ...], list[Event]]:
        events: list[Event] = []
        alternatives: Any = Known({job.source.digest: job.source for job in self.chunks._alone(CHUNK)[0].jobs})
        timed: Any = evaluator
        budget = TimeBudget(0, self.ready.here.target)
        clock = StepClock(self.ready.here, timed, self.ready.model, alternatives.sources, Steering(), budget.left)
        descent = STRATEGIES["halving"].step
        nothing: Any = None  # lengths of prompts are measured on CPUs alone
        made = tune_steps(self.ready, self.planned, alternatives, descent, clock, 0, events.append, budget, nothing)
        return made, events

    def arms(self) -> list[Program]:
        """The programs that are timed: PyTorch's, then the plan's."""
        evaluator = Evaluated(100)
        self.tune_steps(evaluator)
        return [program for _, program in evaluator.asked[-1][0]]

    @property
    def memory(self) -> Memory:
        checkpoint = Checkpoint.open(self.ready.model.captured.checkpoint)
        return Memory(self.arms(), checkpoint.tensor, self.constants)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    folder = tmp_path_factory.mktemp("rig")
    captured = captures.captured(tiny.write("qwen3", folder / "model"), CONTEXT)
    decode, prefill = cut(captured, GPU, CEILING, silent)
    chunks = plan_of(captured, CONTEXT)
    assert [region.id for region in chunks.cut.regions] == [region.id for region in prefill.partition.regions]
    here = Machine(
        target=GPU,
        toolchain=nvrtc_toolchain(),
        store=Store(folder / "store"),
        hashes=folder / "hashes",
        device="cuda:0",
    )
    ready = PreparedModel(
        here=here,
        model=Model(captured=captured, constants=folder / "constants"),
        ceiling=CEILING,
        decode=decode,
        prefill=prefill,
        tasks=(),
        prompt_tasks=(),
    )
    option = Option(cost_ns=1.0, choice=Fallback(reason="a test"))
    steps = [
        cover(Problem(graph=one.graph, partition=one.partition, options=dict.fromkeys(one.regions, (option,))))
        for one in decode
    ]
    covers = tuple(step.parts[0] for step in steps)
    planned = Planned(decode=covers, prefill=chunks.parts, layouts=(), exact=True, decode_ns=1.0)
    return Rig(ready, planned, chunks, captured.constants)


def native(program: Program) -> set[str]:
    return {call.source for call in program.calls if isinstance(call, NativeCall)}


def test_a_prompts_plan_is_timed_whole_beside_pytorchs_and_told_last(rig: Rig) -> None:
    evaluator = Evaluated(100)
    plans, events = rig.tune_steps(evaluator)
    (_, baseline), (_, plan) = evaluator.asked[-1][0]
    assert baseline.phase == plan.phase == "prefill"
    for program in (baseline, plan):
        token = next(buffer for buffer in program.buffers if buffer.name == program.token)
        assert token.shape == (1, CHUNK)
    assert native(baseline) == set()
    assert plan == rig.chunks._alone(CHUNK)[0].program
    asked = evaluator.asked[-1][1]
    assert set(asked["binaries"]) == native(plan)
    assert (asked["rounds"], asked["processes"]) == (POLICY.confirm_rounds, POLICY.confirm_processes)
    told = [event.plan for event in events if isinstance(event, PlanAdmitted)]
    assert tuple(told) == plans
    prompt = plans[-1]
    assert [plan.phase for plan in plans] == ["decode", "prefill"]
    assert (prompt.chunk, prompt.parts) == (CHUNK, rig.planned.prefill)
    assert prompt.baseline_ns > prompt.step_ns > 0
    assert prompt.log_ratio > prompt.half_width > 0


def test_kernels_that_do_not_pay_in_the_chunk_are_not_in_its_plan(rig: Rig) -> None:
    plans, events = rig.tune_steps(Evaluated(30 * PER_CALL_NS))
    assert not [part for part in plans[-1].parts if isinstance(part.choice, Kernel)]
    assert plans[-1].chunk == CHUNK
    assert any("the chunk with" in event.text for event in events if isinstance(event, Warned))


class Replayed:
    """A graph that runs its body again."""

    def __init__(self, body: Callable[[], None], times: int) -> None:
        self._body, self._times = body, times

    def replay(self) -> None:
        for _ in range(self._times):
            self._body()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device without a driver; what was launched, by the launch's pointers."""
    found: list[int] = []

    def bound(_: object, __: object, pointers: Sequence[int], *, dependent: bool) -> Any:
        return SimpleNamespace(run=lambda _: found.append(len(pointers)))

    def elapsed(_: object, graphs: Callable[[], None], before: Callable[[], None]) -> Interval:
        before()  # takes no time
        known = len(ticks)
        graphs()
        return Interval(ns=max(len(ticks) - known, 1) * 1_000_000)

    ticks: list[int] = []
    enqueue = device_step.DeviceStep.enqueue

    def counted(step: Any) -> None:
        ticks.append(1)
        enqueue(step)

    monkeypatch.setattr(device_step.DeviceStep, "enqueue", counted)
    monkeypatch.setattr(device_step, "captured", lambda body, *, times=1: Replayed(body, times))
    monkeypatch.setattr(device_step, "enqueued", lambda call: lambda: call.run(0))
    monkeypatch.setattr(device_step.Call, "of", staticmethod(bound))
    monkeypatch.setattr(gpu_timing, "Module", lambda path: path)
    monkeypatch.setattr(gpu_timing.DeviceTimer, "elapsed", elapsed)
    monkeypatch.setattr(gpu_timing, "Turns", lambda: SimpleNamespace(shared=True, turn_ns=lambda: TURN_NS))
    return found


def timed_chunks(rig: Rig) -> TimeSteps:
    """What asks a worker for the time of the chunk in PyTorch and with its kernels."""
    programs = rig.arms()
    return TimeSteps(
        programs=tuple(programs),
        checkpoint="",
        constants="",
        binaries=tuple((source, f"{source}.cubin") for source in sorted(native(programs[1]))),
        position=17,
        rounds=3,
        claim=0.01,
        policy=POLICY,
        seed=1,
    )


def test_a_worker_times_both_chunks_in_interleaved_rounds(
    rig: Rig, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logits, "ALLOWED", math.inf)  # kernels compute nothing without a device
    request, programs = timed_chunks(rig), rig.arms()
    box = Box.make()
    samples = gpu_timing.gpu_time_steps(request, rig.memory, GPU, box)
    box.close()
    assert len(samples.rounds) == 3
    assert samples.batch == 1
    assert samples.turn_ns == TURN_NS, "others were seen on the device"
    assert samples.clock.doubling == (2.0, 2.0)
    assert all(len(timed.intervals_ns) == 2 for timed in samples.rounds)
    assert len(ran) % len([call for call in programs[1].calls if isinstance(call, NativeCall)]) == 0
    assert ran


@pytest.mark.usefixtures("ran")
def test_a_chunk_whose_kernels_compute_nothing_is_a_wrong_arm(rig: Rig) -> None:
    box = Box.make()
    with pytest.raises(WrongOutput, match="before it was timed") as caught:
        gpu_timing.gpu_time_steps(timed_chunks(rig), rig.memory, GPU, box)
    assert caught.value.arm == 1
    box.close()


def test_a_timed_chunk_is_a_prompt_at_the_start_of_the_cache(rig: Rig) -> None:
    baseline, memory, host = rig.arms()[0], rig.memory, rig.memory
    memory.positions.fill_(17)
    step = first_chunk(baseline, memory, {}, overlap=False)
    step.enqueue()
    ids = torch.arange(CHUNK) % rig.ready.model.captured.info.vocab
    assert len(ids.unique()) > CHUNK // 4
    nothing: Any = None
    chunk = HostStep(baseline, host, nothing, {}, capacity=CHUNK)
    expected = chunk.run(ids, torch.arange(CHUNK)).float()
    assert float((step.logits.float() - expected).norm() / expected.norm()) < 0.05
    for found, written in zip(memory.states(), host.states(), strict=True):
        assert found.abs().sum(-1).gt(0).all()
        assert torch.allclose(found.float(), written.float(), atol=0.05, rtol=0.05)
    assert int(memory.position) == 17


def sealed(planted: flows.Planted, **time: Any) -> Lock:
    """A lock in which the prompt's plan alone has a time."""
    covers = [*planted.planned.decode, planted.planned.prefill]
    *steps, prompt = (
        Plan(regime=one.partition.regime, parts=parts, exact=True)
        for one, parts in zip(planted.cuts, covers, strict=True)
    )
    plans = [*steps, replace(prompt, **time)]
    return lock_of(planted.facts, planted.cuts, plans, planted.planned.layouts, planted.trials)


def test_a_lock_holds_what_the_chunk_took_and_replays(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    out, model = tmp_path / "timed.lock.toml", checkpoint("tiny-qwen3", "fp32")
    planted = flows.plant(warm, model, SHORT, out)
    time = {"step_ns": 3_100_000, "baseline_ns": 4_000_000, "log_ratio": 0.2549, "half_width": 0.004, "chunk": SHORT}
    write_lock(out, sealed(planted, **time))
    lock = read_lock(out)
    (step,) = lock.evidence.steps
    assert (step.phase, step.batch, step.context) == ("prefill", 1, (1, SHORT))
    assert (step.step_ns, step.baseline_ns) == (time["step_ns"], time["baseline_ns"])
    assert (step.log_ratio, step.half_width) == ("0.2549", "0.0040")
    # A time is evidence: measured again on the same machine it makes no other lock.
    assert lock.content_hash == content_hash(sealed(planted))
    made = replay_lock(out, flows.options(warm, model, SHORT)).generate([3, 5, 7], max_new_tokens=4, ignore_eos=True)
    assert not isinstance(made, list)
    assert len(made.tokens) == 4
