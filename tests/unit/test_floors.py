"""When a time is impossible: what PyTorch reaches and fresh ceilings move the floor, a kernel's own time does not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import linear_region, rows_template, target

from agentcompile.evaluation.machine import best
from agentcompile.ir.advice import Advice
from agentcompile.ir.target import Ceiling
from agentcompile.ir.timing import Clock, Round, Samples, Timing
from agentcompile.ir.trial import Impossible, Measured, Trial
from agentcompile.measure import impossible, verdict_of
from agentcompile.space import Space
from agentcompile.tuning.floors import NEAR, RECHECKS, Floors
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import TrialDatabase
from tests.unit import fakes, runs

RATES = Ceiling(dram_bytes_per_s=1e9, cache_bytes_per_s=1e9, flops_per_s=1e15)


class Machine:
    """Its rates are `times` those of `RATES` when they are measured again."""

    def __init__(self, times: float) -> None:
        self.times, self.asked = times, 0

    def ceiling(self) -> Ceiling:
        self.asked += 1
        fast = RATES.cache_bytes_per_s * self.times
        return replace(RATES, dram_bytes_per_s=fast, cache_bytes_per_s=fast)


def task() -> TuneTask:
    space = Space(linear_region(), [rows_template()], target())
    floor = space.region.floor_ns(RATES, "dram")
    return TuneTask(region=space.region, space=space, advice=Advice(label="none"), residency="dram", floor_ns=floor)


def timing(*launches_ns: float) -> Timing:
    many = 1000
    once = Round(
        intervals_ns=tuple((round(many * ns), round(many * ns)) for ns in launches_ns),
        waited_ns=(0,) * len(launches_ns),
    )
    clock = Clock(quantum_ns=1, doubling=(2.0,) * len(launches_ns))
    samples = Samples(batch=many, clock=clock, rounds=(once,) * 5)
    live = tuple(range(len(launches_ns)))
    return Timing(arms=tuple(map(str, live)), live=live, processes=(samples,), residency="dram")


def floor_of(machine: Any, *launches_ns: float, trusted: frozenset[int] = frozenset({0})) -> float:
    return Floors(machine).floor_ns(task(), timing(*launches_ns), trusted)


def test_times_above_the_floor_measure_nothing_again() -> None:
    machine, floor = Machine(1.0), task().floor_ns
    assert floor_of(machine, 9 * floor, floor, 2 * floor) == floor
    assert machine.asked == 0


def test_a_kernel_far_below_the_floor_is_impossible_when_the_machine_is_no_faster() -> None:
    machine, floor = Machine(1.0), task().floor_ns
    assert impossible(floor / 2, floor_of(machine, 9 * floor, floor / 2))
    assert machine.asked == RECHECKS


def test_a_machine_that_is_faster_than_it_was_lets_its_kernels_be() -> None:
    machine, floor = Machine(2.5), task().floor_ns
    assert not impossible(floor / 2, floor_of(machine, 9 * floor, floor / 2))
    assert machine.asked == 1


@pytest.mark.parametrize("trusted", [0, 2])
def test_what_pytorch_reaches_is_possible_for_a_kernel_too(trusted: int) -> None:
    machine, floor = Machine(1.0), task().floor_ns
    times = [9 * floor, 0.5 * floor, 9 * floor]
    times[trusted] = 0.55 * floor
    found = floor_of(machine, *times, trusted=frozenset({0, 2}))
    assert found == pytest.approx(0.55 * floor, rel=0.01)
    assert not impossible(times[1], found)
    assert impossible(times[1] / 2, found), "yet not everything is"


def test_activations_that_fit_into_a_core_make_no_time_impossible() -> None:
    """They come from the core's own caches, whose rate nobody measures; beyond those the shared cache's counts."""
    machine, small = Machine(1.0), task()
    cost = replace(small.region.cost, flops=0, weight_bytes=0, state_bytes=0, activation_bytes=400_000)
    small = replace(small, region=replace(small.region, cost=cost), residency="cache")
    large = replace(small, region=replace(small.region, cost=replace(cost, activation_bytes=600_000)))
    for bare, fits in ((small, True), (large, False)):
        one = replace(bare, floor_ns=bare.region.floor_ns(RATES, "cache"))
        found = Floors(machine).floor_ns(one, timing(9 * one.floor_ns, one.floor_ns / 2), {0})  # type: ignore[arg-type]
        assert impossible(one.floor_ns / 2, found) is not fits


def test_rows_of_a_table_that_fit_into_a_core_make_no_time_impossible() -> None:
    """Every launch gathers some of the rows that the one before did."""
    machine, one = Machine(1.0), task()
    for gathered, fits in ((400_000, True), (600_000, False)):
        cost = replace(one.region.cost, flops=0, weight_bytes=gathered, activation_bytes=0)
        bare = replace(one, region=replace(one.region, cost=cost), residency="cache")
        assert not bare.region.swept
        bare = replace(bare, floor_ns=bare.region.floor_ns(RATES, "cache"))
        found = Floors(machine).floor_ns(bare, timing(9 * bare.floor_ns, bare.floor_ns / 2), {0})  # type: ignore[arg-type]
        assert impossible(bare.floor_ns / 2, found) is not fits


def test_one_quick_launch_among_disturbed_ones_is_not_impossible() -> None:
    """A measurement of too few undisturbed rounds has the quickest time of each arm, which is no usual one."""
    once = Round(intervals_ns=((1_000_000, 1_000_000), (1_000_000, 1_100_000)), waited_ns=(600_000, 600_000))
    quick = replace(once, intervals_ns=((1_000_000, 1_000_000), (500_000, 1_000_000)))
    samples = Samples(
        batch=1000, clock=Clock(quantum_ns=1, doubling=(2.0, 2.0)), rounds=(once, once, quick, once, once)
    )
    timed = replace(timing(1, 1), processes=(samples,))
    real = runs.trial().verdict
    assert isinstance(real, Measured)

    def verdict(floor_ns: float) -> Measured | Impossible:
        return verdict_of(timed, 1, 1, floor_ns, real.report, claim=0.02, comparisons=1)

    assert verdict(1000).measurement.median_ns == 500
    assert verdict(1000).kind == "measured"
    assert verdict(1300).kind == "impossible"


@pytest.mark.parametrize("caches", [(), (1 << 20,), (48 << 10, 1 << 20)])
def test_without_a_cache_of_its_own_between_two_a_core_s_activations_count(caches: tuple[int, ...]) -> None:
    machine, one = Machine(1.0), task()
    one.space.target = replace(one.space.target, cache_bytes=caches)
    cost = replace(one.region.cost, flops=0, weight_bytes=0, state_bytes=0, activation_bytes=400)
    one = replace(one, region=replace(one.region, cost=cost), residency="cache")
    one = replace(one, floor_ns=one.region.floor_ns(RATES, "cache"))
    found = Floors(machine).floor_ns(one, timing(9 * one.floor_ns, one.floor_ns / 2), {0})  # type: ignore[arg-type]
    assert impossible(one.floor_ns / 2, found)


def test_a_rise_holds_for_the_tasks_after_it() -> None:
    machine, floor = Machine(2.5), task().floor_ns
    floors = Floors(machine)  # type: ignore[arg-type]
    for _ in range(3):
        assert not impossible(floor / 2, floors.floor_ns(task(), timing(9 * floor, floor / 2), {0}))
    assert machine.asked == 1


def test_a_search_ends_where_a_trial_is_at_the_roofline() -> None:
    one = task()
    space = tuple(one.space)
    slow, near = fakes.measured(space[0], -1.0), fakes.measured(space[1], 0.0)
    assert isinstance(near.verdict, Measured)
    near_ns = near.verdict.measurement.median_ns
    floors = Floors(Machine(1.0))  # type: ignore[arg-type]

    def reached(floor_ns: float, *trials: Trial) -> bool:
        return floors.reached(replace(one, floor_ns=floor_ns), trials)

    assert reached(near_ns / (1 + NEAR), slow, near)
    assert not reached(near_ns / (1 + NEAR) - 1, slow, near)
    assert not reached(near_ns, slow)
    assert not reached(near_ns, replace(near, fidelity="confirm")), "what confirming finds changes no search"
    assert not reached(0.0, near), "without reliable ceilings there is no floor"
    assert not reached(near_ns)


def test_a_machine_that_is_faster_than_it_was_has_its_roofline_further_away() -> None:
    one, floors = task(), Floors(Machine(2.5))  # type: ignore[arg-type]
    trial = fakes.measured(next(iter(one.space)), math.log(100_000 / one.floor_ns))  # its time is the floor
    assert floors.reached(one, [trial])
    floors.floor_ns(one, timing(9 * one.floor_ns, one.floor_ns / 2), {0})
    assert not floors.reached(one, [trial])


def test_the_best_of_several_measurements_counts() -> None:
    other = Ceiling(dram_bytes_per_s=5e8, cache_bytes_per_s=3e9, flops_per_s=1e14, calm=False)
    both = best([other, RATES])
    assert both == Ceiling(dram_bytes_per_s=1e9, cache_bytes_per_s=3e9, flops_per_s=1e15)
    assert not best([other]).calm


def test_an_impossible_time_is_measured_again_by_the_next_run(tmp_path: Path) -> None:
    real = runs.trial()
    assert isinstance(real.verdict, Measured)
    verdict = Impossible(report=real.verdict.report, measurement=real.verdict.measurement, floor_ns=100)
    early = replace(real, verdict=verdict)
    with MachineTrials(tmp_path / "history") as history:
        database = TrialDatabase([], history, "p")
        database.keep(early)
        assert len(history) == 0
        history.put(early, "p")  # as versions before this one did
        assert known(TrialDatabase([], history, "p"), early) is None
        assert known(TrialDatabase([early], history, "p"), early) is None
        database.keep(real)
        assert known(TrialDatabase([], history, "p"), real) == replace(real, reused=True)


def known(database: TrialDatabase, trial: Trial) -> Trial | None:
    found = database.known(trial.candidate, trial.source, trial.fidelity, 1)
    return found[0] if found else None
