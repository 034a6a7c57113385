"""A prompt's plan against PyTorch: whole chunks beside one another, and kernels that go back while it does not win."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentcompile.capture.chunked import at_tokens
from agentcompile.events import silent
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.region import Regime
from agentcompile.ir.trial import Crashed, Fallback, Kernel, Part, TimedOut
from agentcompile.measure import POLICY, Timing
from agentcompile.planning.admission import Admitted, admit_chunk
from agentcompile.planning.plans import Planned
from agentcompile.regions.partition import partition
from agentcompile.regions.summary import summarise
from agentcompile.tuning.partitions import Cut
from tests.unit.graphs import Shape, decoder
from tests.unit.test_admission import CEILING, PYTORCH_NS, Fakes, StepClock, cover_of, kernel

TOKENS = 24
SLOW = 9
"""The variant that costs more in the chunk than what it stands in for."""
COST = {1: 100, SLOW: 40 * PYTORCH_NS}


@pytest.fixture(scope="module")
def chunk() -> Cut:
    graph = at_tokens(decoder(Shape(), "prefill"), TOKENS)
    found = partition(graph, Regime(phase="prefill", context=(1, Shape().context)), tokens=TOKENS)
    return Cut(graph=graph, partition=found, summary=summarise(graph, found, CEILING, "dram"), residency="dram")


class Asked(StepClock):
    """Also keeps what it was asked to time; `dies` is what becomes of programs with a kernel."""

    def __init__(self, cost: Mapping[int, int], dies: Crashed | TimedOut | None = None) -> None:
        super().__init__(cost)
        self.dies = dies
        self.programs: list[Sequence[tuple[str, Program]]] = []
        self.processes: set[int] = set()

    def __call__(self, programs: Sequence[tuple[str, Program]], **asked: Any) -> Timing:
        self.programs.append(programs)
        self.processes.add(asked["processes"])
        timing = super().__call__(programs, **asked)
        if self.dies is not None and launches(programs[1][1]):
            return replace(timing, live=(0,), failed=((1, self.dies),))
        return timing


def launches(program: Program) -> int:
    return sum(isinstance(call, NativeCall) for call in program.calls)


def weak(cut: Cut, parts: Sequence[Part], count: int) -> tuple[Part, ...]:
    """The first `count` parts run the slow variant, and by themselves they gained least."""
    slow = [replace(kernel(cut.regions[part.region], SLOW), speedup=1.05) for part in parts[:count]]
    changed = [replace(part, choice=choice) for part, choice in zip(parts, slow, strict=False)]
    return (*changed, *parts[count:])


def admitted(cut: Cut, parts: Sequence[Part], clock: StepClock) -> Admitted:
    planned = Planned(decode=(), prefill=tuple(parts), layouts=(), exact=True, decode_ns=1.0)
    alternatives = Fakes(cut.regions)
    found = admit_chunk(cut, planned, alternatives, clock, silent, 0, "cuda")
    assert not alternatives.asked
    return found


def kernels(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if isinstance(part.choice, Kernel)]


def test_a_plan_that_wins_is_kept_whole_with_its_time(chunk: Cut) -> None:
    parts, clock = cover_of(chunk), Asked(COST)
    found = admitted(chunk, parts, clock)
    sites = sum(len(part.sites) for part in parts)
    assert found.parts == found.plan.parts == parts
    assert found.notes == ()
    assert (found.plan.phase, found.plan.chunk) == ("prefill", TOKENS)
    assert (found.plan.step_ns, found.plan.baseline_ns) == (100 * sites, PYTORCH_NS * sites)
    assert found.plan.log_ratio == pytest.approx(math.log(10), abs=0.01)
    assert 0 < found.plan.half_width < 0.01


def test_both_arms_are_the_whole_chunk_in_fresh_processes(chunk: Cut) -> None:
    parts, clock = cover_of(chunk), Asked(COST)
    admitted(chunk, parts, clock)
    (((_, baseline), (_, plan)),) = clock.programs
    assert baseline.phase == plan.phase == "prefill"
    assert launches(baseline) == 0
    assert launches(plan) == len(plan.calls) == len(baseline.calls) == sum(len(part.sites) for part in parts)
    assert clock.processes == {POLICY.confirm_processes}
    assert clock.at == [chunk.partition.regime]


def test_the_weakest_half_goes_back_until_the_chunk_wins(chunk: Cut) -> None:
    parts = weak(chunk, cover_of(chunk), 2)
    clock = Asked(COST)
    found = admitted(chunk, parts, clock)
    assert len(clock.programs) == 2
    half = len(parts) - (len(parts) + 1) // 2
    assert len(kernels(found.parts)) == half
    assert all(isinstance(part.choice, Fallback) for part in found.parts[:2])
    assert found.plan.step_ns < found.plan.baseline_ns
    reasons = {part.choice.reason for part in found.parts if isinstance(part.choice, Fallback)}
    assert len(reasons) == 1
    assert reasons.pop().startswith("the whole chunk with it was measured 0.17x PyTorch")
    (note,) = found.notes
    assert note.startswith(f"the chunk with {len(parts)} kernels was measured 0.17x PyTorch")


def test_a_plan_that_never_wins_is_pytorchs_with_pytorchs_time(chunk: Cut) -> None:
    found = admitted(chunk, cover_of(chunk), Asked(dict.fromkeys(COST, 3 * PYTORCH_NS)))
    assert not kernels(found.parts)
    assert found.plan.step_ns == found.plan.baseline_ns > 0
    assert found.plan.log_ratio == pytest.approx(0, abs=1e-4)
    assert len(found.notes) > 1


def test_a_plan_without_kernels_is_timed_once(chunk: Cut) -> None:
    parts = [replace(part, choice=Fallback(reason="nothing was faster")) for part in cover_of(chunk)]
    clock = Asked(COST)
    found = admitted(chunk, parts, clock)
    assert len(clock.programs) == 1
    assert found.parts == tuple(parts)
    assert found.plan.step_ns > 0


def test_kernels_that_take_the_chunk_down_go_back(chunk: Cut) -> None:
    dies = Crashed(stage="measure", signal=0, detail="an illegal memory access")
    found = admitted(chunk, cover_of(chunk), Asked(COST, dies))
    assert not kernels(found.parts)
    assert "an illegal memory access" in found.notes[0]


def test_a_chunk_that_cannot_be_timed_at_all_is_pytorchs_and_the_compilation_goes_on(chunk: Cut) -> None:
    class Broken(Asked):
        def __call__(self, programs: Sequence[tuple[str, Program]], **asked: object) -> Timing:
            timing = super().__call__(programs, **asked)  # type: ignore[arg-type]
            return replace(timing, live=(), failed=((0, TimedOut(stage="measure", limit_s=1.0)),))

    found = admitted(chunk, cover_of(chunk), Broken(COST))
    assert not kernels(found.parts)
    assert (found.plan.parts, found.plan.step_ns) == (found.parts, 0)
    assert "the captured chunk itself cannot be timed: no result within 1 s" in found.notes[-1]
