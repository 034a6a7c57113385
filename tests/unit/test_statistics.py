"""Statistics of paired rounds, on simulated timers: what is claimed, and what is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from agentcompile.ir.timing import Clock, Interval, Round, Samples, Timing
from agentcompile.ir.trial import NO_INTERVAL
from agentcompile.measure.policy import POLICY
from agentcompile.measure.rounds import run_rounds
from agentcompile.measure.statistics import contrast, impossible, measurement
from agentcompile.measure.student import t_cdf, t_quantile

Now = Callable[[], float]


class World:
    """Simulated time: what a machine does to every interval, whichever arm runs."""

    def __init__(self, seed: int, *, noise: float = 0.01, droop_per_s: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.noise, self.droop_per_s, self.now_s, self.waited = noise, droop_per_s, 0.0, 0

    def run(self, launch_ns: float, batch: int) -> int:
        slow = math.exp(self.droop_per_s * self.now_s)
        interval = launch_ns * batch * slow * math.exp(self.random.gauss(0, self.noise))
        self.now_s += interval / 1e9
        return round(interval)


class Simulated:
    """An arm whose launch takes `launch_ns`; `lie` is what its timer makes of an interval."""

    def __init__(self, world: World, launch_ns: float, lie: Callable[[int], int] = lambda ns: ns) -> None:
        self.world, self.launch_ns, self.lie = world, launch_ns, lie

    def interval(self, batch: int) -> Interval:
        waited = self.world.waited
        ns = self.lie(self.world.run(self.launch_ns, batch))
        return Interval(ns=ns, waited_ns=self.world.waited - waited)


def timed(arms: list[Simulated], *, seed: int, rounds: int = 10, processes: int = 3) -> Timing:
    taken = tuple(
        run_rounds(arms, rounds=rounds, policy=POLICY, claim=0.005, seed=seed * 100 + number, quantum_ns=30)
        for number in range(processes)
    )
    names = tuple(f"arm {i}" for i in range(len(arms)))
    return Timing(arms=names, live=tuple(range(len(arms))), processes=taken, residency="cache")


def verdicts(make: Callable[[int], list[Simulated]], *, trials: int, claim: float) -> list[str]:
    found = []
    for seed in range(trials):
        timing = timed(make(seed), seed=seed)
        found.append(contrast(timing, 0, 1, claim=claim).comparison)
    return found


@pytest.mark.parametrize(
    ("p", "freedom", "expected"),
    [
        (0.95, 1, 6.313752),
        (0.975, 2, 4.302653),
        (0.95, 5, 2.015048),
        (0.975, 9, 2.262157),
        (0.99, 10, 2.763769),
        (0.9995, 29, 3.659405),
        (0.95, 1000, 1.646379),
        (0.5, 7, 0.0),
    ],
)
def test_t_quantiles_match_the_printed_tables(p: float, freedom: int, expected: float) -> None:
    assert t_quantile(p, freedom) == pytest.approx(expected, abs=2e-6)
    assert t_quantile(1 - p, freedom) == pytest.approx(-expected, abs=2e-6)


def test_the_t_distribution_is_the_inverse_of_its_quantile() -> None:
    for freedom in (1, 3, 17, 250):
        for p in (0.01, 0.3, 0.9, 0.999):
            assert t_cdf(t_quantile(p, freedom), freedom) == pytest.approx(p, abs=1e-10)


def test_a_quantile_outside_the_open_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="inside"):
        t_quantile(1.0, 5)


def test_equal_arms_are_called_faster_in_at_most_the_promised_share() -> None:
    def equal(seed: int) -> list[Simulated]:
        world = World(seed)
        return [Simulated(world, 2000.0), Simulated(world, 2000.0)]

    found = verdicts(equal, trials=200, claim=0.0)
    assert found.count("FASTER") <= 0.096 * 200
    assert found.count("SLOWER") <= 0.096 * 200


def test_a_planted_two_percent_is_found_nine_times_in_ten_and_never_reversed() -> None:
    def faster(seed: int) -> list[Simulated]:
        world = World(seed)
        return [Simulated(world, 2000.0 / 1.02), Simulated(world, 2000.0)]

    found = verdicts(faster, trials=200, claim=0.005)
    assert found.count("FASTER") >= 180
    assert "SLOWER" not in found
    assert "SAME" not in found


def test_a_clock_that_droops_one_percent_does_not_part_equal_arms() -> None:
    def drooping(seed: int) -> list[Simulated]:
        world = World(seed, noise=0.002, droop_per_s=0.01 / 0.03)
        return [Simulated(world, 2000.0), Simulated(world, 2000.0)]

    found = verdicts(drooping, trials=200, claim=0.005)
    assert found.count("FASTER") + found.count("SLOWER") <= 2


def test_the_best_of_many_equal_finalists_is_not_faster_than_the_baseline() -> None:
    wrong = 0
    for seed in range(60):
        world = World(seed)
        timing = timed([Simulated(world, 2000.0) for _ in range(17)], seed=seed)
        wrong += any(contrast(timing, i, 0, claim=0.0, comparisons=16).comparison == "FASTER" for i in range(1, 17))
    assert wrong <= 0.096 * 60 + 1


def test_equal_arms_with_little_noise_are_the_same() -> None:
    def quiet(seed: int) -> list[Simulated]:
        world = World(seed, noise=0.001)
        return [Simulated(world, 2000.0), Simulated(world, 2000.0)]

    assert set(verdicts(quiet, trials=20, claim=0.005)) == {"SAME"}


def test_a_random_timer_claims_nothing() -> None:
    def drawn(seed: int) -> list[Simulated]:
        dice = random.Random(seed)
        lie = lambda ns: dice.randrange(100_000, 10_000_000)  # noqa: E731
        world = World(seed)
        return [Simulated(world, 1000.0, lie), Simulated(world, 2000.0, lie)]

    assert set(verdicts(drawn, trials=50, claim=0.005)) == {"INCONCLUSIVE"}


def test_an_inverted_timer_claims_nothing() -> None:
    def inverted(seed: int) -> list[Simulated]:
        world = World(seed)
        lie = lambda ns: 10**12 // max(ns, 1)  # noqa: E731
        return [Simulated(world, 1000.0, lie), Simulated(world, 2000.0, lie)]

    assert set(verdicts(inverted, trials=20, claim=0.005)) == {"INCONCLUSIVE"}


def test_a_constant_timer_claims_nothing() -> None:
    def constant(seed: int) -> list[Simulated]:
        world = World(seed)
        return [Simulated(world, 1000.0, lambda ns: 500_000), Simulated(world, 2000.0, lambda ns: 600_000)]

    assert set(verdicts(constant, trials=5, claim=0.005)) == {"INCONCLUSIVE"}


def test_a_timer_that_shows_a_hundredth_is_quarantined_as_impossible() -> None:
    world = World(0)
    floor_ns = 1800.0
    honest = timed([Simulated(world, 2000.0), Simulated(world, 4000.0)], seed=0)
    lying = timed([Simulated(world, t, lambda ns: ns // 100) for t in (2000.0, 4000.0)], seed=0)
    assert not impossible(honest.median_ns(0), floor_ns)
    assert impossible(lying.median_ns(0), floor_ns)


def samples(*pairs: tuple[tuple[int, int], ...], waited: tuple[int, ...] = ()) -> Samples:
    rounds = tuple(
        Round(intervals_ns=pair, waited_ns=(waited[i] if waited else 0,) * len(pair)) for i, pair in enumerate(pairs)
    )
    return Samples(batch=10, clock=Clock(quantum_ns=30, doubling=(2.0, 2.0)), rounds=rounds)


def of(*processes: Samples) -> Timing:
    return Timing(arms=("a", "b"), live=(0, 1), processes=processes, residency="dram")


CLEAR = ((100_000, 101_000), (150_000, 151_000))
CLOSE = ((120_000, 140_000), (150_000, 151_000))


def test_processes_that_disagree_in_sign_are_inconclusive() -> None:
    against = ((101_000, 101_500), (100_000, 100_500))
    timing = of(samples(*[CLEAR] * 8), samples(*[CLEAR] * 8), samples(*[against] * 8))
    found = contrast(timing, 0, 1, claim=0.005)
    assert found.comparison == "INCONCLUSIVE"
    assert "sign" in found.why


def test_contended_rounds_are_dropped_whole() -> None:
    timing = of(samples(*[CLEAR] * 9, CLOSE, waited=(0,) * 9 + (60_000,)))
    found = contrast(timing, 0, 1, claim=0.005)
    assert (found.rounds, found.dropped, found.comparison) == (9, 1, "FASTER")


def test_rounds_that_nobody_disturbed_decide_however_many_others_waited_in() -> None:
    timing = of(samples(*[CLEAR] * 7, *[CLOSE] * 6, waited=(0,) * 7 + (60_000,) * 6))
    found = contrast(timing, 0, 1, claim=0.005)
    assert (found.rounds, found.dropped, found.comparison) == (7, 6, "FASTER")
    assert found.disturbed == pytest.approx(6 / 13)


def test_four_undisturbed_rounds_beside_disturbed_ones_are_too_few() -> None:
    timing = of(samples(*[CLEAR] * 4, *[CLOSE] * 6, waited=(0,) * 4 + (60_000,) * 6))
    found = contrast(timing, 0, 1, claim=0.005)
    assert found.comparison == "INCONCLUSIVE"
    assert "6 of 10 rounds were disturbed by others" in found.why


def test_more_than_a_fifth_of_rounds_stretched_by_nobody_that_is_seen_claims_nothing() -> None:
    timing = of(samples(*[CLEAR] * 7, *[((120_000, 160_000), (150_000, 151_000))] * 3))
    found = contrast(timing, 0, 1, claim=0.005)
    assert found.comparison == "INCONCLUSIVE"
    assert "something else" in found.why


def test_what_disturbs_a_third_arm_drops_no_round_of_the_other_two() -> None:
    third = tuple((*pair, (200_000, 900_000)) for pair in [CLEAR] * 6)
    rounds = tuple(Round(intervals_ns=pair, waited_ns=(0, 0, 700_000), taken=(2, 2, 8)) for pair in third)
    process = Samples(batch=10, clock=Clock(quantum_ns=30, doubling=(2.0, 2.0, 2.0)), rounds=rounds)
    timing = Timing(arms=("a", "b", "c"), live=(0, 1, 2), processes=(process,), residency="dram")
    found = contrast(timing, 0, 1, claim=0.005)
    assert (found.comparison, found.dropped, found.disturbed) == ("FASTER", 0, 0.0)


def test_a_difference_seen_through_waiting_is_reported_without_the_waiting() -> None:
    far = ((100_000, 101_000), (900_000, 920_000))
    found = contrast(of(samples(*[far] * 10, waited=(600_000,) * 10)), 0, 1, claim=0.005)
    assert found.comparison == "FASTER"
    assert found.log_ratio == pytest.approx(math.log((1_820_000 - 600_000) / 201_000))


def test_an_outlier_in_one_interval_drops_its_round() -> None:
    jolted = ((100_000, 160_000), (150_000, 151_000))
    found = contrast(of(samples(*[CLEAR] * 9, jolted)), 0, 1, claim=0.005)
    assert found.dropped == 1


def test_a_difference_that_waiting_cannot_explain_is_kept() -> None:
    far = ((100_000, 130_000), (700_000, 900_000))
    timing = of(samples(*[far] * 10, waited=(100_000,) * 10))
    found = contrast(timing, 0, 1, claim=0.005)
    assert (found.comparison, found.dropped) == ("FASTER", 0)
    assert contrast(timing, 1, 0, claim=0.005).comparison == "SLOWER"


class Crowded(World):
    """A machine on which others run: now and then an interval waits for a core, and the system says for how long."""

    def run(self, launch_ns: float, batch: int) -> int:
        interval = super().run(launch_ns, batch)
        if self.random.random() < 0.3:
            wait = round(interval * self.random.expovariate(1.0))
            self.waited += wait
            interval += wait
        return interval


@pytest.mark.parametrize(("factor", "allowed"), [(1.0, {"INCONCLUSIVE", "SAME"}), (4.0, {"FASTER"})])
def test_on_a_crowded_machine_equal_arms_stay_equal_and_far_ones_are_told_apart(
    factor: float, allowed: set[str]
) -> None:
    found: list[str] = []
    for seed in range(60):
        world = Crowded(seed)
        arms = [Simulated(world, 2000.0), Simulated(world, 2000.0 * factor)]
        taken = run_rounds(arms, rounds=20, policy=POLICY, claim=0.005, seed=seed, quantum_ns=30)
        found.append(contrast(of(taken), 0, 1, claim=0.005).comparison)
    assert sum(verdict in allowed for verdict in found) >= 54
    assert "SLOWER" not in found or factor == 1.0


def test_two_rounds_are_too_few() -> None:
    found = contrast(of(samples(CLEAR, CLEAR)), 0, 1, claim=0.005)
    assert found.comparison == "INCONCLUSIVE"
    assert found.half_width == NO_INTERVAL


def test_more_finalists_need_a_wider_margin() -> None:
    world = World(1)
    timing = timed([Simulated(world, 1980.0), Simulated(world, 2000.0)], seed=1)
    one = contrast(timing, 0, 1, claim=0.005, comparisons=1)
    many = contrast(timing, 0, 1, claim=0.005, comparisons=15)
    assert many.half_width > one.half_width


def test_a_measurement_is_per_launch_and_names_its_baseline() -> None:
    found = measurement(of(samples(*[CLEAR] * 5)), 0, 1, bytes=10_000, claim=0.005)
    assert (found.median_ns, found.baseline_ns, found.baseline, found.batch) == (10_050, 15_050, "b", 10)
    assert found.comparison == "FASTER"
    assert found.speedup == pytest.approx(15_050 / 10_050)
    assert found.bytes_per_s == pytest.approx(10_000 / 10_050e-9)


def test_a_failed_arm_leaves_the_others_comparable() -> None:
    timing = replace(of(samples(*[CLEAR] * 5)), arms=("a", "gone", "b"), live=(0, 2))
    assert contrast(timing, 0, 2, claim=0.005).comparison == "FASTER"
    with pytest.raises(ValueError, match="not in"):
        contrast(timing, 1, 2, claim=0.005)


def test_every_arm_gets_one_batch_and_two_intervals_a_round() -> None:
    world = World(0)
    seen: list[tuple[int, int]] = []

    class Noting(Simulated):
        def interval(self, batch: int) -> Interval:
            seen.append((int(self.launch_ns), batch))
            return super().interval(batch)

    arms = [Noting(world, 1000.0), Noting(world, 3000.0), Noting(world, 9000.0)]
    taken = run_rounds(arms, rounds=4, policy=POLICY, claim=0.005, seed=3, quantum_ns=30)
    # Each arm's doubling follows the rounds: once the batch, once twice the batch.
    timed_ones = [(name, batch) for name, batch in seen if batch == taken.batch][-27:-3]
    rounds = [timed_ones[i : i + 6] for i in range(0, 24, 6)]
    assert [batch for _, batch in seen[-6:]] == [taken.batch, 2 * taken.batch] * 3
    assert all([name for name, _ in r] == [name for name, _ in reversed(r)] for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1


def test_a_core_that_changes_its_clock_after_the_rounds_still_measures() -> None:
    class Turbo(Simulated):
        calls = 0

        def interval(self, batch: int) -> Interval:
            self.calls += 1
            took = super().interval(batch)
            return took if self.calls < 30 else replace(took, ns=int(took.ns / 1.8))

    world = World(0, noise=0.01)
    taken = run_rounds([Turbo(world, 1000.0)], rounds=10, policy=POLICY, claim=0.005, seed=0, quantum_ns=30)
    assert 1.7 <= taken.clock.doubling[0] <= 2.3


def test_a_launch_that_is_not_repeated_does_not_double() -> None:
    class Lazy(Simulated):
        def interval(self, batch: int) -> Interval:
            return super().interval(1000)

    taken = run_rounds([Lazy(World(0), 1000.0)], rounds=3, policy=POLICY, claim=0.005, seed=0, quantum_ns=30)
    assert taken.clock.doubling[0] < 1.25


def test_the_batch_fills_the_shortest_interval_for_the_fastest_arm() -> None:
    world = World(0, noise=0.0)
    fast, slow = Simulated(world, 1000.0), Simulated(world, 50_000.0)
    taken = run_rounds([fast, slow], rounds=1, policy=POLICY, claim=0.005, seed=0, quantum_ns=30)
    assert taken.batch == pytest.approx(POLICY.min_interval_ns / 1000, abs=2)


def test_a_coarse_timer_asks_for_longer_intervals() -> None:
    world = World(0, noise=0.0)
    arm = Simulated(world, 1000.0)
    taken = run_rounds([arm], rounds=1, policy=POLICY, claim=0.005, seed=0, quantum_ns=1_000)
    assert taken.batch == pytest.approx(5 * 1_000 / 0.005 / 1000, abs=2)


def test_a_launch_longer_than_the_longest_interval_is_timed_alone() -> None:
    world = World(0, noise=0.0)
    taken = run_rounds([Simulated(world, 9e7)], rounds=1, policy=POLICY, claim=0.005, seed=0, quantum_ns=30)
    assert taken.batch == 1


def test_a_policy_has_one_digest_per_residency_and_changes_with_its_numbers() -> None:
    assert POLICY.digest(residency="dram") == POLICY.digest(residency="dram")
    assert POLICY.digest(residency="dram") != POLICY.digest(residency="cache")
    assert POLICY.digest(residency="dram") != replace(POLICY, claim=0.02).digest(residency="dram")
    assert POLICY.digest(residency="dram") != POLICY.digest(residency="dram", tolerances={"c": 4e-6})


FAR = ((100_000, 101_000), (300_000, 303_000))


def test_an_overwhelming_difference_is_claimed_from_the_rounds_that_are_left() -> None:
    timing = of(samples(*[FAR] * 6, *[CLOSE] * 6, waited=(0,) * 6 + (60_000,) * 6))
    found = contrast(timing, 0, 1, claim=0.01)
    assert (found.rounds, found.dropped, found.comparison) == (6, 6, "FASTER")


def test_four_rounds_are_too_few_for_it() -> None:
    timing = of(samples(*[FAR] * 4, *[CLOSE] * 6, waited=(0,) * 4 + (60_000,) * 6))
    found = contrast(timing, 0, 1, claim=0.01)
    assert found.comparison == "INCONCLUSIVE"
    assert found.log_ratio > 1.0  # the estimate stays
