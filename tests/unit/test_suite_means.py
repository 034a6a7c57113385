"""Means over rounds: Welch's interval, and what differences between processes add to one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from agentcompile.bench.harness.found import widened
from agentcompile.bench.harness.means import LEAST_MEANS, Logs, apart, design_effect, mean_of
from agentcompile.bench.harness.result import Case, Interval, RoundTimes

from tests.unit.test_suite_compare import EMPTY, case_of, rounds

LEVEL = 0.05


def standard(count: int) -> list[float]:
    """So many values of mean 0 and sample variance 1."""
    raw = [at - (count - 1) / 2 for at in range(count)]
    scale = math.sqrt(sum(x * x for x in raw) / (count - 1))
    return [x / scale for x in raw]


def test_welchs_interval_is_that_of_worked_examples() -> None:
    # Variances 4 and 1 of six and eleven values: 4/6 = 0.66667 and 1/11 = 0.09091, so the freedom is
    # 0.75758² / (0.66667² / 5 + 0.09091² / 10) = 0.573921 / 0.0897153 = 6.3971. Tables: t(0.975, 6) and (0.975, 7).
    found = apart(mean_of([10 + 2 * x for x in standard(6)]), mean_of([13 + x for x in standard(11)]))
    assert (found.value, found.freedom) == (pytest.approx(3.0), pytest.approx(6.3971, abs=1e-4))
    assert 2.3646 < found.half_width(LEVEL) / math.sqrt(0.757576) < 2.4469
    # Equal variances and counts: Student's own, t(0.975, 18) = 2.10092.
    found = apart(mean_of(standard(10)), mean_of(standard(10)))
    assert found.freedom == pytest.approx(18)
    assert found.half_width(LEVEL) == pytest.approx(2.10092 * 0.2**0.5, rel=1e-5)
    assert apart(mean_of([1.0, 1.0, 1.0]), mean_of([2.0, 2.0, 2.0])).half_width(LEVEL) == 0
    with pytest.raises(ValueError, match="1 values"):
        mean_of([1.0])


def test_welchs_interval_covers_the_truth() -> None:
    generator, covered = random.Random(5), 0
    for _ in range(1000):
        a, b = ([generator.gauss(mean, mean) for _ in range(n)] for mean, n in ((0.01, 15), (0.03, 7)))
        found = apart(mean_of(a), mean_of(b))
        covered += abs(found.value - 0.02) <= found.half_width(LEVEL)
    assert 930 <= covered <= 970


def test_the_spread_of_processes_is_the_f_of_a_worked_example() -> None:
    # Means 2 and 5 around 3.5: between 3 · 1.5² · 2 / 1 = 13.5; within (2 + 2) / 4 = 1; F of (1, 4) has the mean 2.
    logs = Logs(by_process=((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), total=6)
    assert logs.spread_of_processes() == pytest.approx(13.5 / 2)
    found = logs.mean(6.0)
    assert (found.value, found.error, found.freedom) == (3.5, pytest.approx(6.0 / 6), 4.0)
    assert logs.mean() == mean_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    # What the rounds say of this one mean is not made smaller by a run that is luckier.
    assert logs.mean(1.0) == logs.mean()


@pytest.mark.parametrize("parts", [((1.0, 2.0, 3.0),), ((1.0,), (2.0,)), ((1.0, 1.0), (2.0, 2.0)), ()])
def test_one_process_or_none_that_varies_has_no_design_effect(parts: tuple[tuple[float, ...], ...]) -> None:
    assert Logs(by_process=parts, total=9).spread_of_processes() is None


def drawn(generator: random.Random, spread: float, processes: int = 2, count: int = 4) -> Logs:
    """Rounds of spread 1 in processes whose own spread is `spread`."""

    def process() -> tuple[float, ...]:
        own = generator.gauss(0.0, spread)
        return tuple(own + generator.gauss(0.0, 1.0) for _ in range(count))

    return Logs(by_process=tuple(process() for _ in range(processes)), total=processes * count)


def test_too_few_means_have_no_design_effect_and_equal_processes_hardly_any() -> None:
    generator = random.Random(3)
    many = [drawn(generator, 0.0) for _ in range(2000)]
    assert design_effect(many[: LEAST_MEANS - 1]) is None
    assert design_effect(many) == pytest.approx(1.0, abs=0.1)
    # Processes of variance 1 beside rounds of variance 1, four each: 1 + 4 · 1 / 1.
    assert design_effect([drawn(generator, 1.0) for _ in range(2000)]) == pytest.approx(5.0, rel=0.1)


def covers(generator: random.Random, spread: float, *, knows: bool) -> float:
    """How often the interval of a mean holds the truth, in runs of forty means."""
    held = count = 0
    for _ in range(40):
        many = [drawn(generator, spread) for _ in range(40)]
        factor = design_effect(many) if knows else None
        means = [logs.mean(factor) for logs in many]
        held += sum(abs(mean.value) <= mean.half_width(LEVEL) for mean in means)
        count += len(means)
    return held / count


def test_intervals_that_know_the_design_effect_cover_the_truth_and_those_that_do_not_miss_it() -> None:
    generator = random.Random(7)
    assert covers(generator, 0.0, knows=True) > 0.94
    assert covers(generator, 1.0, knows=True) > 0.93
    assert covers(generator, 1.0, knows=False) < 0.88


def spread_out(cases: int, spread: float) -> list[Case]:
    """Cases of one arm beside its baseline, whose processes are faster or slower as a whole."""
    generator = random.Random(11)
    found = []
    for at in range(cases):
        made = rounds(at, {"hf-eager": 0.02, "agentcompile": 0.01}, 0.005)
        own = [math.exp(generator.gauss(0.0, spread)) for _ in range(3)]
        found.append(case_of([moved(one, own[one.process]) for one in made], workload=f"w{at}"))
    return found


def moved(one: RoundTimes, by: float) -> RoundTimes:
    return replace(one, token_s={**one.token_s, "agentcompile": one.token_s["agentcompile"] * by})


def widths(cases: Sequence[Case]) -> list[float]:
    gains = [arm.speedup for case in cases for arm in case.arms if arm.name == "agentcompile"]
    return [math.log(gain.high / gain.low) for gain in gains if gain is not None]


def test_a_results_intervals_are_widened_by_what_its_processes_differ() -> None:
    known = Interval(value=2.0, low=1.99, high=2.01, rounds=8)
    cases = [
        replace(
            case, arms=tuple(replace(arm, speedup=known) if arm.name == "agentcompile" else arm for arm in case.arms)
        )
        for case in spread_out(10, 0.05)
    ]
    found, effects = widened(cases)
    assert effects["token"] > 5
    assert min(widths(found)) > 2 * max(widths(cases))
    few, none = widened(cases[:4])
    assert (widths(few), none) == (widths(cases[:4]), {}), "four cases tell nothing"
    assert EMPTY.luck == {}
