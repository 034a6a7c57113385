"""Verdicts on a GPU that other processes use: contexts take turns, and truths stay truths."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentcompile.ir.timing import Interval, Timing
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.rounds import run_rounds
from agentcompile.measure.statistics import contrast, measurement
from agentcompile.tuning.ranking import seems_faster
from agentcompile.worker.gpu_timing import TURN_NS, taking_turns

ALONE = replace(POLICY, max_interval_ns=POLICY.max_device_interval_ns)
BESIDE = taking_turns(POLICY)
AHEAD_NS = 200_000
"""Of our turn, before the clock starts: other memory is read, and the GPU is held until everything is queued."""


class Gpu:
    """A GPU that `neighbours` others use in turns: what is queued begins with our turn, and nobody tells who waits."""

    def __init__(self, seed: int, neighbours: int) -> None:
        self.random, self.neighbours = random.Random(seed), neighbours

    def run(self, work_ns: float) -> int:
        """The wall time of work that is queued on an idle context."""
        left = work_ns * self.random.lognormvariate(0.0, 0.003)
        taken, turn = 0.0, TURN_NS * self.random.uniform(0.9, 1.1) - AHEAD_NS
        while self.neighbours and left > turn:
            others = sum(TURN_NS * self.random.uniform(0.2, 1.1) for _ in range(self.neighbours))
            taken += turn + others
            left -= turn
            turn = TURN_NS * self.random.uniform(0.9, 1.1)
        return max(round(taken + left), 1)


class Kernel:
    """An arm whose launch takes `launch_ns` on a GPU of its own; one sample in 20 begins late in a turn."""

    def __init__(self, gpu: Gpu, launch_ns: float) -> None:
        self.gpu, self.launch_ns = gpu, launch_ns

    def interval(self, batch: int) -> Interval:
        late = self.gpu.neighbours and self.gpu.random.random() < 0.05
        work_ns = self.launch_ns * batch
        return Interval(ns=self.gpu.run(work_ns + TURN_NS) - TURN_NS if late else self.gpu.run(work_ns))


def timed(launches_ns: Sequence[float], seed: int, neighbours: int = 5, *, policy: Policy = BESIDE) -> Timing:
    gpu = Gpu(seed, neighbours)
    arms = [Kernel(gpu, ns) for ns in launches_ns]
    taken = tuple(
        replace(
            run_rounds(arms, rounds=10, policy=policy, claim=0.005, seed=seed * 100 + number, quantum_ns=500),
            turn_ns=TURN_NS if neighbours else 0,
        )
        for number in range(3)
    )
    live = tuple(range(len(arms)))
    return Timing(arms=tuple(map(str, live)), live=live, processes=taken, residency="dram")


def verdicts(launches_ns: tuple[float, float], trials: int, **how: Policy) -> list[str]:
    return [contrast(timed(launches_ns, seed, **how), 0, 1, claim=0.01).comparison for seed in range(trials)]


@pytest.mark.parametrize(("ours", "theirs"), [(4_800.0, 42_000.0), (1_400.0, 2_800.0), (170_000.0, 238_000.0)])
def test_a_faster_kernel_is_faster_beside_five_others(ours: float, theirs: float) -> None:
    found = verdicts((ours, theirs), 20)
    assert found.count("FASTER") >= 19
    assert "SLOWER" not in found


def test_its_ratio_is_the_one_of_a_gpu_of_its_own() -> None:
    """As long as samples are there they would hold others' turns, more of them the slower the kernel is."""
    truth = math.log(42_000 / 4_800)
    short, long = (
        [contrast(timed((4_800.0, 42_000.0), seed, policy=policy), 0, 1, claim=0.01).log_ratio for seed in range(10)]
        for policy in (BESIDE, ALONE)
    )
    assert max(abs(ratio - truth) for ratio in short) < 0.02
    assert min(long) > truth + 0.5


def test_a_slower_kernel_is_slower_beside_them() -> None:
    assert verdicts((5_500.0, 4_100.0), 20).count("SLOWER") >= 19


def test_equal_kernels_stay_equal_beside_them() -> None:
    found = [contrast(timed((4_000.0, 4_000.0), seed), 0, 1, claim=0.0).comparison for seed in range(100)]
    assert found.count("FASTER") <= 9.6
    assert found.count("SLOWER") <= 9.6


def test_what_is_longer_than_a_turn_is_contended_and_what_fits_is_not() -> None:
    steps, kernels = timed((3_000_000.0, 5_000_000.0), 1), timed((4_000.0, 5_000.0), 1)
    assert contrast(steps, 0, 1, claim=0.01).disturbed == 1.0
    assert contrast(kernels, 0, 1, claim=0.01).disturbed < 0.2


def test_a_long_launch_that_seems_faster_keeps_its_kernel_as_contended() -> None:
    """Too few turns are alike for a claim, and the region does not fall back for that."""
    found = [measurement(timed((3_000_000.0, 4_500_000.0), seed), 0, 1, bytes=1, claim=0.01) for seed in range(20)]
    assert all(one.contended for one in found)
    assert all(one.comparison == "FASTER" or seems_faster(one) for one in found)


def test_a_gpu_of_ones_own_is_never_called_contended() -> None:
    for launches_ns in ((4_800.0, 42_000.0), (3_000_000.0, 5_000_000.0)):
        alone = timed(launches_ns, 1, neighbours=0, policy=ALONE)
        found = contrast(alone, 0, 1, claim=0.01)
        assert (found.comparison, found.disturbed) == ("FASTER", 0.0)
