"""Verdicts on a busy machine: a simulated scheduler takes cores away, and truths stay truths."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from agentcompile.ir.timing import Interval, Timing
from agentcompile.measure.clock import Others
from agentcompile.measure.policy import POLICY
from agentcompile.measure.rounds import run_rounds
from agentcompile.measure.statistics import contrast

SLICE_NS = 3_000_000


class Shared:
    """Two cores, each shared with one busy neighbour: slices of some milliseconds, ours and the neighbour's in turn.

    `seen` is whether the system tells what our threads waited, as it does for a core and not for a GPU.
    """

    def __init__(self, seed: int, *, busy: bool = True, seen: bool = True, noise: float = 0.01) -> None:
        self.random = random.Random(seed)
        self.busy, self.seen, self.noise = busy, seen, noise
        self.now = 0.0
        self._changes = [self._slice(), self._slice()]
        self._ours = [True, False]

    def _slice(self) -> float:
        return SLICE_NS * self.random.uniform(0.6, 1.4)

    def run(self, work_ns: float) -> tuple[int, int]:
        """Do work in which both threads wait for one another at barriers: wall time, and what threads waited."""
        left = work_ns * self.random.lognormvariate(0.0, self.noise)
        begin, waited = self.now, 0.0
        while left > 0:
            until = min(self._changes)
            span = until - self.now
            if not self.busy or all(self._ours):
                step = left if not self.busy else min(span, left)
                left -= step
            else:
                step = span
                waited += step * (2 - sum(self._ours))
            self.now += step
            for core in (0, 1):
                if self.busy and self._changes[core] <= self.now:
                    self._ours[core] = not self._ours[core]
                    self._changes[core] += self._slice()
        return max(round(self.now - begin), 1), round(waited) if self.seen else 0

    def idle(self, ns: float) -> None:
        """What lies between two intervals."""
        work = self.random.uniform(0.5, 1.5) * ns
        self.run(work)


class Kernel:
    """An arm whose launch takes `launch_ns` on a machine that is left alone."""

    def __init__(self, machine: Shared, launch_ns: float) -> None:
        self.machine, self.launch_ns = machine, launch_ns

    def interval(self, batch: int) -> Interval:
        self.machine.idle(100_000)
        ns, waited = self.machine.run(self.launch_ns * batch)
        return Interval(ns=ns, waited_ns=waited)


def timed(
    machine: Shared, launches_ns: tuple[float, ...], seed: int, *, processes: int = 3, rounds: int = 10
) -> Timing:
    arms = [Kernel(machine, ns) for ns in launches_ns]
    taken = tuple(
        run_rounds(arms, rounds=rounds, policy=POLICY, claim=0.005, seed=seed * 100 + number, quantum_ns=30)
        for number in range(processes)
    )
    live = tuple(range(len(arms)))
    return Timing(arms=tuple(map(str, live)), live=live, processes=taken, residency="cache")


def verdicts(launches_ns: tuple[float, ...], trials: int, claim: float, make: Callable[[int], Shared]) -> list[str]:
    return [contrast(timed(make(seed), launches_ns, seed), 0, 1, claim=claim).comparison for seed in range(trials)]


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("scale", [1_000.0, 300_000.0])
def test_a_kernel_ten_times_faster_is_faster_beside_two_spinning_neighbours(scale: float, seen: bool) -> None:
    found = verdicts((scale, 10 * scale), 20, 0.01, lambda seed: Shared(seed, seen=seen))
    assert found.count("FASTER") >= (20 if seen else 18)
    assert "SLOWER" not in found


def test_a_kernel_ten_times_slower_is_slower_beside_them() -> None:
    assert set(verdicts((10_000.0, 1_000.0), 20, 0.01, Shared)) == {"SLOWER"}


@pytest.mark.parametrize("seen", [True, False])
def test_equal_kernels_stay_equal_beside_them(seen: bool) -> None:
    found = verdicts((2_000.0, 2_000.0), 100, 0.0, lambda seed: Shared(seed, seen=seen))
    assert found.count("FASTER") <= 9.6
    assert found.count("SLOWER") <= 9.6


def test_equal_kernels_too_long_to_be_left_alone_claim_nothing() -> None:
    found = verdicts((20_000_000.0, 20_000_000.0), 30, 0.005, Shared)
    assert found.count("FASTER") + found.count("SLOWER") <= 2


def test_ten_percent_are_found_in_short_launches_and_never_reversed() -> None:
    found = verdicts((2_000.0, 2_200.0), 40, 0.01, Shared)
    assert found.count("FASTER") >= 36
    assert "SLOWER" not in found


def test_a_long_step_beside_a_short_one_is_told_apart() -> None:
    found = verdicts((400_000.0, 12_000_000.0), 20, 0.01, Shared)
    assert found.count("FASTER") >= 18
    assert "SLOWER" not in found


def test_a_quiet_machine_takes_no_interval_twice_and_adds_no_round() -> None:
    timing = timed(Shared(1, busy=False), (2_000.0, 3_000.0), 1)
    rounds = [one for process in timing.processes for one in process.rounds]
    assert len(rounds) == 30
    assert all(one.taken == (2, 2) for one in rounds)
    assert contrast(timing, 0, 1, claim=0.01).disturbed == 0.0


def test_a_busy_machine_says_how_many_rounds_it_disturbed() -> None:
    assert contrast(timed(Shared(1), (2_000.0, 3_000.0), 1), 0, 1, claim=0.01).disturbed > 0.2


def test_no_round_begins_when_the_time_is_up_but_three_are_always_taken() -> None:
    machine = Shared(3)
    arms = [Kernel(machine, 1_000.0), Kernel(machine, 2_000.0)]
    taken = run_rounds(arms, rounds=10, policy=POLICY, claim=0.005, seed=1, quantum_ns=30, left=lambda: 0.0)
    assert len(taken.rounds) == 3


def test_a_machine_on_which_nobody_else_runs_is_not_called_busy_whatever_its_own_threads_wait() -> None:
    timing = timed(Shared(1), (2_000.0, 3_000.0), 1)
    alone = replace(timing, processes=tuple(replace(process, others=0.01) for process in timing.processes))
    assert contrast(timing, 0, 1, claim=0.01).disturbed > 0.2
    assert contrast(alone, 0, 1, claim=0.01).disturbed == 0.0


def test_what_others_take_of_the_processors_is_seen() -> None:
    others, begin = Others(), time.monotonic()
    # A host may give a virtual machine nothing for a second: what counts is the time that the neighbour had.
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    assert others.share() > 0.2 / ((os.cpu_count() or 1) * (time.monotonic() - begin))


def test_when_time_is_up_the_shortest_interval_of_the_rounds_is_doubled() -> None:
    batches: list[int] = []

    class Noting(Kernel):
        def interval(self, batch: int) -> Interval:
            batches.append(batch)
            return super().interval(batch)

    machine = Shared(0, busy=False)
    arms = [Noting(machine, 1000.0), Noting(machine, 3000.0)]
    taken = run_rounds(arms, rounds=9, policy=POLICY, claim=0.005, seed=3, quantum_ns=30, left=lambda: 0.0)
    assert len(taken.rounds) == 3
    assert batches[-3:] == [taken.batch, 2 * taken.batch, 2 * taken.batch], "no interval of one batch after the rounds"
    assert all(1.7 <= one <= 2.3 for one in taken.clock.doubling)


@pytest.mark.parametrize(
    ("step_ns", "waited", "runs"),
    [(20_000_000, 0.5, 11), (90_000_000, 0.5, 9), (400_000_000, 0.0, 8), (400_000_000, 0.05, 8), (400_000_000, 0.5, 4)],
)
def test_when_time_is_up_long_steps_are_run_no_oftener_than_an_interval_needs(
    step_ns: int, waited: float, runs: int
) -> None:
    asked = list[int]()

    class Long:
        def interval(self, batch: int) -> Interval:
            asked.append(batch)
            ns = round(batch**1.6 * step_ns)  # doubling looks wrong
            return Interval(ns=ns, waited_ns=round(waited * ns))

    run_rounds([Long()], rounds=10, policy=POLICY, claim=0.01, seed=0, quantum_ns=90, left=lambda: 0.0)
    assert len(asked) == runs
