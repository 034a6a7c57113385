"""Searches of recorded spaces by simulation: of our strategies, and of a peer."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Measured, Rejected, TimedOut, Trial, reason
from agentcompile.search import Budget, Proposal, SearchMethod, SearchTask, strategy_of
from bench.ablation.peer import Recording, simulate_peer, source_of
from bench.ablation.run import run
from bench.ablation.simulate import MOST_REPEATS, simulate
from bench.ablation.spaces import read_space
from tests.unit.recorded import FAILED, TIMES, cache, result, small, t4, write

Propose = Callable[[SearchTask, Sequence[Trial], Budget], Proposal[Candidate]]


def finds(propose: Propose) -> Callable[[str], SearchMethod]:
    """Return a lookup of strategies that has one, which does what `propose` does."""

    class Stub:
        def propose(self, task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
            return propose(task, trials, budget)

    return lambda name: SearchMethod(regions=Stub(), step=strategy_of("random").step)


def test_the_curve_of_a_search_in_the_order_of_the_file(tmp_path: Path) -> None:
    curve = simulate(small(tmp_path), "exhaustive", 7, 0)
    assert curve.steps == ((1, 4e6), (3, 2e6), (5, 1e6))
    assert (curve.evaluations, curve.failed, curve.ended) == (7, 2, "budget")
    assert (curve.evaluations_to(100), curve.evaluations_to(5), curve.evaluations_to(300)) == (3, 5, 1)
    assert [curve.best_after(at) for at in (0, 1, 2, 3, 7)] == [math.inf, 4e6, 4e6, 2e6, 1e6]
    assert curve.area(7) == pytest.approx((0.25 * 2 + 0.5 * 2 + 1 * 3) / 7)
    assert curve.area(4) == pytest.approx((0.25 * 2 + 0.5 * 2) / 4)


def test_a_search_ends_when_every_point_was_evaluated(tmp_path: Path) -> None:
    curve = simulate(small(tmp_path), "random", 1000, 3)
    assert (curve.evaluations, curve.ended) == (len(TIMES), "space")


def test_a_search_ends_when_the_strategy_proposes_nothing(tmp_path: Path) -> None:
    first = finds(
        lambda task, trials, budget: Proposal() if trials else Proposal(candidates=task.candidates[:1], rounds=1)
    )
    curve = simulate(small(tmp_path), "one", 5, 0, find=first)
    assert (curve.evaluations, curve.steps, curve.ended) == (1, ((1, 4e6),), "strategy")


def test_a_proposal_that_is_too_large_is_cut_at_the_budget_and_repeats_in_it_count_once(tmp_path: Path) -> None:
    space = small(tmp_path)
    doubled = tuple(candidate for candidate in space.candidates for _ in range(2))
    curve = simulate(space, "x", 3, 0, find=finds(lambda *_: Proposal(candidates=doubled, rounds=1)))
    assert (curve.evaluations, curve.failed, curve.steps) == (3, 1, ((1, 4e6), (3, 2e6)))


def test_the_same_seed_gives_the_same_curve_and_other_seeds_others(tmp_path: Path) -> None:
    space = small(tmp_path, [float(1 + at * 7 % 50) for at in range(50)])
    found = [simulate(space, "random", 20, seed) for seed in range(6)]
    assert found == [simulate(space, "random", 20, seed) for seed in range(6)]
    assert len({curve.steps for curve in found}) == 6


@pytest.mark.parametrize("name", ["halving", "exhaustive", "random"])
def test_every_strategy_finds_the_best_of_a_small_space(tmp_path: Path, name: str) -> None:
    assert simulate(small(tmp_path), name, 8, 0).best_after(8) == 1e6


def test_random_search_has_its_exact_expectation(tmp_path: Path) -> None:
    """The first of k good points among n, drawn without repeats, comes at (n + 1) / (k + 1) on average."""
    space = small(tmp_path, [1.0 if at in (4, 11, 17) else 2.0 for at in range(19)])
    places = [simulate(space, "random", 19, seed).evaluations_to(5) for seed in range(400)]
    firsts = [place for place in places if place is not None]
    assert len(firsts) == 400
    # The standard deviation of one place is sqrt(k (n + 1) (n - k) / ((k + 1)^2 (k + 2))) = 3.5.
    assert statistics.fmean(firsts) == pytest.approx(20 / 4, abs=4 * 3.5 / math.sqrt(400))


def test_the_strategy_sees_speedups_over_the_median_and_failures_of_their_kind(tmp_path: Path) -> None:
    kinds = ["timeout", "compile", "runtime", "correctness", "constraints"]
    document = t4(*(result({"A": at}, invalidity=kind) for at, kind in enumerate(kinds)),
                  *(result({"A": 10 + at}, ms) for at, ms in enumerate([1.0, 2.0, 4.0])))  # fmt: skip
    space, given = read_space(write(tmp_path / "x.json", document)), list[Sequence[Trial]]()

    def everything(task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        given.append(trials)
        assert (budget.batch, budget.finalists, budget.trials, budget.seed) == (1, 1, 9, 5)
        return Proposal(candidates=task.candidates, rounds=6)

    simulate(space, "x", 9, 5, find=finds(everything))
    verdicts = [trial.verdict for trial in given[0]]
    assert [type(one) for one in verdicts] == [TimedOut, BuildFailed, Crashed, Incorrect, Rejected, *[Measured] * 3]
    assert all(reason(one) for one in verdicts[:5])
    times = [one.measurement for one in verdicts if isinstance(one, Measured)]
    assert [one.log_ratio for one in times] == pytest.approx([math.log(2), 0.0, -math.log(2)])
    assert [(one.median_ns, one.comparison, one.rounds) for one in times] == [
        (1_000_000, "FASTER", 6), (2_000_000, "SAME", 6), (4_000_000, "SLOWER", 6),
    ]  # fmt: skip


def test_the_trials_are_one_list_that_only_grows(tmp_path: Path) -> None:
    lists = list[tuple[int, int]]()

    def one_more(task: SearchTask, trials: Sequence[Trial], budget: Budget) -> Proposal[Candidate]:
        lists.append((id(trials), len(trials)))
        return Proposal(candidates=(task.candidates[len(trials)],), rounds=1)

    simulate(small(tmp_path), "x", 5, 0, find=finds(one_more))
    assert [length for _, length in lists] == [0, 1, 2, 3, 4]
    assert len({identity for identity, _ in lists}) == 1


def test_a_strategy_that_proposes_outside_the_space_is_stopped(tmp_path: Path) -> None:
    (stranger, *_) = small(tmp_path, [1.0, 2.0], "other").candidates
    outside = finds(lambda *_: Proposal(candidates=(stranger,), rounds=1))
    with pytest.raises(
        AgentCompileError, match=r"strategy bad on small: proposed copy\(A=0\), which is not in"
    ) as caught:
        simulate(small(tmp_path), "bad", 5, 0, find=outside)
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert "--strategies" in caught.value.hint


def test_a_strategy_that_repeats_itself_for_ever_is_stopped(tmp_path: Path) -> None:
    again = finds(lambda task, *_: Proposal(candidates=task.candidates[:1], rounds=1))
    with pytest.raises(AgentCompileError, match=f"proposed nothing new {MOST_REPEATS + 1} times in a row"):
        simulate(small(tmp_path), "stuck", 5, 0, find=again)


def test_a_space_of_one_point_and_a_budget_of_one_work(tmp_path: Path) -> None:
    assert simulate(small(tmp_path, [3.0]), "halving", 1000, 0).steps == ((1, 3e6),)
    assert simulate(small(tmp_path), "halving", 1, 0).evaluations == 1


def test_a_search_in_which_every_point_fails_finds_nothing(tmp_path: Path) -> None:
    curve = simulate(small(tmp_path, [FAILED] * 3), "random", 2, 0)
    assert (curve.steps, curve.failed, curve.optimum_ns) == ((), 2, None)
    assert (curve.evaluations_to(5), curve.best_after(9), curve.area(2)) == (None, math.inf, 0.0)


def test_the_seconds_are_those_of_the_strategy_alone(tmp_path: Path) -> None:
    ticks = iter(range(100))
    assert simulate(small(tmp_path), "random", 8, 0, clock=lambda: float(next(ticks))).seconds == 1.0


INSTALLED = importlib.util.find_spec("kernel_tuner") is not None


@pytest.mark.skipif(INSTALLED, reason="Kernel Tuner is installed")
def test_a_peer_that_is_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    words = ["--space", str(write(tmp_path / "small.json", cache(TIMES))), "--peer", "kernel-tuner:genetic_algorithm"]
    with pytest.raises(AgentCompileError, match="Kernel Tuner is not installed") as caught:
        run(words)
    assert "agentcompile[ablation]" in caught.value.hint
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


@pytest.mark.skipif(not INSTALLED, reason="Kernel Tuner is not installed")
@pytest.mark.parametrize("times", [TIMES, [3.0]])
def test_a_peer_searches_the_same_space_and_again_the_same_way(tmp_path: Path, times: list[object]) -> None:
    space = small(tmp_path, times)
    for name in ("kernel-tuner:random_sample", "kernel-tuner:simulated_annealing"):
        curve = simulate_peer(space, name, 6, 1)
        assert curve == simulate_peer(space, name, 6, 1)
        assert 1 <= curve.evaluations <= 6
    with pytest.raises(AgentCompileError, match="no such strategy"):
        source_of("kernel-tuner:nothing")


class Spent(Exception):
    """What a peer's strategy may let through."""


def test_what_a_peer_evaluates_is_counted_as_ours(tmp_path: Path) -> None:
    """A point counts once, a failed one too; what is outside the space, or after the budget, does not."""

    class Runner:
        def run(self, elements: list[tuple[int, ...]], options: object) -> list[dict[str, int] | None]:
            return [{"A": element[0]} if element != (7,) else None for element in elements]

    class Strategy:
        def tune(self, searchspace: object, runner: Runner, options: object) -> None:
            runner.run([(0,), (1,), (99,), (0,)], options)
            runner.run([(4,), (7,)], options)
            raise Spent

    recording = Recording(small(tmp_path), Strategy(), Spent)
    assert recording.tune(None, Runner(), None) == []
    curve = recording.curve("kernel-tuner:x", 10, 0)
    assert (curve.evaluations, curve.failed, curve.steps) == (3, 1, ((1, 4e6), (3, 1e6)))
    assert curve.ended == "strategy"
    assert recording.curve("kernel-tuner:x", 2, 0).steps == ((1, 4e6),)


def test_the_space_that_a_peer_gets_is_the_same_space(tmp_path: Path) -> None:
    space = small(tmp_path)
    given = read_space(write(tmp_path / "given.json", Recording(space, None, Spent).document()))
    assert [given.outcomes[one.id] for one in given.candidates] == [space.outcomes[one.id] for one in space.candidates]
    assert [one.params for one in given.candidates] == [one.params for one in space.candidates]
