"""An arm that is 3 % slower than its twin, through the whole chain: processes, rounds, a case, a file, a verdict."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.found import case_of
from agentcompile.bench.harness.rates import Round
from agentcompile.bench.harness.result import SuiteResult, read_result, write_result
from agentcompile.bench.harness.times import Build
from agentcompile.bench.harness.trial import Outcome, Setup, run_trial
from agentcompile.bench.suite.verdicts import Compared, compare_arms, compare_runs

from agentcompile.ir.target import Target
from tests.cpu import flows
from tests.cpu.trials import WORK, Commands, setup

MACHINE = Target(kind="cpu", device="Test CPU", arch="x86_64", isa=("avx2",), threads=4, cache_bytes=(1 << 15,))
WORKED = {"base": 1.0, "twin": 1.0, "slow": 1.03}
"""By arm, how much it has to do."""
PLANTED = "base=slow:0.03"
"""The same work, and a wait that the suite itself adds."""
TOKEN_S = 0.02 / 8
NOISE = 0.001
"""The standard deviation of one time, as a share of it."""
ENGINE = """
import random, time
from agentcompile.bench.harness.channel import Generation, serve
class Fake:
    facts = {{"made up": True}}
    noise = random.Random({seed!r})
    def generate(self, ids, new):
        times = [{work} * {token_s} * tokens * (1 + self.noise.gauss(0, {noise})) for tokens in (1, new - 1)]
        return Generation([7] * new, *map(self.busy if {waits} else float, times))
    def busy(self, seconds):
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds: pass
        return time.perf_counter() - begin
    def tops(self, ids, new, count):
        return [7] * new, [[7, 1, 2, 3, 4]] * new
serve(lambda request: Fake())
"""
"""An engine whose times have a little noise of their own: made up, or such that it `waits` and looks at its clock."""


def ran(folder: Path, works: Mapping[str, float], *, waits: bool = False, seed: str = "") -> Outcome:
    """Two processes of every arm, each timed in four rounds."""
    started = itertools.count()

    def command(name: str, build: Build | None, made: Setup) -> list[str]:
        values = {"seed": f"{seed}{name}{next(started)}", "work": works.get(name, 1.0), "token_s": TOKEN_S}
        values["noise"] = NOISE
        return [sys.executable, "-c", ENGINE.format(waits=waits, **values)]

    made = replace(setup(folder, Commands()), rounds=4, command=command)
    outcome = run_trial(list(works), WORK, None, 0.0, made, Outcome())
    assert not outcome.reasons
    return outcome


def undisturbed(timed: Round) -> Round:
    """The same round of a machine that had nothing else to do."""
    pairs = {name: (replace(one, others=0.0), replace(two, others=0.0)) for name, (one, two) in timed.visits.items()}
    return replace(timed, visits=pairs)


def filed(path: Path, outcome: Outcome) -> SuiteResult:
    """The result of a run of one case, as it is read back from its file."""
    names = list(next(iter(outcome.rounds)).visits)
    case, _ = case_of(
        sorted(names), model="sample", workload="chat", mode="greedy", asked=WORK, outcome=outcome, absent={},
        baseline="base", cache_bytes=100, ceiling=flows.CEILING, cached=False, compile_s={},
    )  # fmt: skip
    made = SuiteResult(
        made="2025-01-01T00:00:00+00:00", command="agentcompile bench", revision="0123abc", changed_since=False,
        suite="ci", machine=MACHINE, environment={}, policy="p1", seed=0, cases=(case,),
    )  # fmt: skip
    write_result(path, made)
    return read_result(path)


def test_a_slow_down_that_the_suite_plants_is_in_the_times_of_its_twin_alone(tmp_path: Path) -> None:
    """Made-up times of the same work, and a real wait, which is never shorter than it should be."""
    outcome = ran(tmp_path, {"base": 1.0, PLANTED: 1.0})
    case = filed(tmp_path / "result.json", replace(outcome, rounds=tuple(map(undisturbed, outcome.rounds)))).cases[0]
    found, base = case.arm(PLANTED), case.arm("base")
    assert base is not None
    assert base.token_s is not None
    assert base.token_s.median == pytest.approx(TOKEN_S, rel=0.005)
    assert found is not None
    assert found.speedup is not None
    assert found.speedup.value < 0.975


def verdicts(result: SuiteResult, a: str, b: str) -> list[str]:
    """Of `b` against `a`: the time per output token, then the time to the first."""
    report = compare_arms(result, a, b, claim=0.01)
    compared = [report.verdict(row) for row in report.rows if isinstance(row, Compared)]
    return [change.comparison for change in compared if change is not None]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    """Real processes that say made-up times, so that only their numbers decide."""
    folder = tmp_path_factory.mktemp("simulated")
    outcome = ran(folder, WORKED)
    outcome.rounds = tuple(map(undisturbed, outcome.rounds))
    return filed(folder / "result.json", outcome)


def test_what_is_slower_by_three_percent_is_slower_and_what_is_the_same_is_the_same(simulated: SuiteResult) -> None:
    assert verdicts(simulated, "base", "slow") == ["SLOWER", "SLOWER", "SLOWER"]
    assert verdicts(simulated, "twin", "slow") == ["SLOWER", "SLOWER", "SLOWER"]
    assert verdicts(simulated, "slow", "base") == ["FASTER", "FASTER", "FASTER"]
    assert verdicts(simulated, "base", "twin") == ["SAME", "SAME", "SAME"]


def test_the_slow_down_is_in_the_speed_up_of_the_case(simulated: SuiteResult) -> None:
    (case,) = simulated.cases
    slow, twin = case.arm("slow"), case.arm("twin")
    assert slow is not None
    assert twin is not None
    assert slow.speedup is not None
    assert twin.speedup is not None
    # One interval in twenty misses what it estimates; none does so by as much as one time is noisy.
    assert slow.speedup.low - NOISE < 1 / 1.03 < slow.speedup.high + NOISE < 0.99
    assert twin.speedup.low - NOISE < 1 < twin.speedup.high + NOISE
    assert max(slow.speedup.high - slow.speedup.low, twin.speedup.high - twin.speedup.low) < 4 * NOISE


def test_a_run_that_became_slower_is_slower_than_the_run_before(tmp_path: Path, simulated: SuiteResult) -> None:
    outcome = ran(tmp_path, {**WORKED, "twin": 1.03}, seed="again ")
    outcome.rounds = tuple(map(undisturbed, outcome.rounds))
    report = compare_runs(simulated, filed(tmp_path / "result.json", outcome), claim=0.01)
    found: dict[str, set[str]] = {"slow": set(), "twin": set()}
    for row in report.rows:
        if isinstance(row, Compared) and (change := report.verdict(row)):
            found[row.arm].add(change.comparison)
    assert found == {"slow": {"SAME"}, "twin": {"SLOWER"}}


@pytest.mark.alone
def test_on_a_real_clock_nobody_is_found_faster_who_is_not(tmp_path: Path) -> None:
    outcome = ran(tmp_path, {"base": 1.0, "base=again": 1.0, PLANTED: 1.0}, waits=True)
    result = filed(tmp_path / "result.json", outcome)
    (case,) = result.cases
    measured = {arm.name for arm in case.arms if arm.state == "measured"}
    # Where others disturbed every round nothing was measured, and nothing is said.
    assert measured in ({"base", "base=again", PLANTED}, set())
    for one, other in itertools.permutations(sorted(measured), 2):
        allowed = {"SAME", "INCONCLUSIVE"}
        if PLANTED in (one, other):
            allowed = {"SLOWER" if other == PLANTED else "FASTER", "INCONCLUSIVE"}
        assert set(verdicts(result, one, other)) <= allowed, (one, other)
