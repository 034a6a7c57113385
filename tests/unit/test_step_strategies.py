"""The search of a whole step: which moves each strategy makes, and that a search which was cut goes on the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.search import STRATEGIES, Budget, Move, StepStrategy, StepTask, StepTrial

STEPS = [(name, method.step) for name, method in STRATEGIES.items()]
REGIONS = ("norm", "attention", "gate", "down")
SINGLES = tuple(Move(regions=(region,)) for region in REGIONS)
PAIRS = (Move(regions=("attention", "gate")), Move(regions=("gate", "down")))
TASK = StepTask(singles=SINGLES, pairs=PAIRS, passes=3)
BUDGET = Budget(trials=100)
DESCENT = STRATEGIES["halving"].step


def unchanged(move: Move, before: Sequence[StepTrial]) -> StepTrial:
    return StepTrial(candidate=move)


def run(
    strategy: StepStrategy,
    outcome: Callable[[Move, Sequence[StepTrial]], StepTrial] = unchanged,
    *,
    task: StepTask = TASK,
    budget: Budget = BUDGET,
    before: Sequence[StepTrial] = (),
) -> list[StepTrial]:
    """Drive a strategy until it proposes nothing."""
    trials = list(before)
    while moves := strategy.propose(task, trials, budget).candidates:
        for move in moves:
            trials.append(outcome(move, trials))
        assert len(trials) <= 2 * budget.trials, "the strategy does not end"
    return trials


def made(trials: Sequence[StepTrial]) -> list[str]:
    return [trial.candidate.id for trial in trials]


@pytest.mark.parametrize(("name", "strategy"), STEPS)
def test_every_strategy_makes_every_move_of_a_step_that_does_not_change(name: str, strategy: StepStrategy) -> None:
    assert sorted(made(run(strategy))) == sorted(move.id for move in TASK.candidates)


@pytest.mark.parametrize(("name", "strategy"), STEPS)
@given(trials=st.integers(0, 12))
def test_no_strategy_makes_more_moves_than_it_may(name: str, strategy: StepStrategy, trials: int) -> None:
    assert len(run(strategy, budget=Budget(trials=trials))) == min(trials, len(TASK.candidates))


@pytest.mark.parametrize(("name", "strategy"), STEPS)
@given(cut=st.integers(0, 40), changing=st.sets(st.integers(0, 30)))
def test_a_search_of_a_step_that_was_cut_anywhere_goes_on_as_if_it_was_not(
    name: str, strategy: StepStrategy, cut: int, changing: set[int]
) -> None:
    def outcome(move: Move, before: Sequence[StepTrial]) -> StepTrial:
        changed = len(before) in changing
        return StepTrial(candidate=move, log_ratio=0.1, touched=frozenset({*move.regions, "norm"} if changed else ()))

    whole = run(strategy, outcome)
    assert run(strategy, outcome, before=whole[:cut]) == whole


def test_descent_visits_again_what_changed_and_what_stands_beside_it_and_then_pairs() -> None:
    def outcome(move: Move, before: Sequence[StepTrial]) -> StepTrial:
        first = move.regions == ("attention",) and not any(trial.candidate == move for trial in before)
        return StepTrial(candidate=move, touched=frozenset({"norm", "attention", "gate"} if first else ()))

    # The gate came after the attention, and was tried beside what that had become: it is not visited again.
    again = ["norm", "attention"]
    assert made(run(DESCENT, outcome)) == [*REGIONS, *again, *(pair.id for pair in PAIRS)]


def test_descent_ends_with_what_pairs_have_changed() -> None:
    def outcome(move: Move, before: Sequence[StepTrial]) -> StepTrial:
        changed = move == PAIRS[1]
        return StepTrial(candidate=move, touched=frozenset({"gate", "down", "norm"} if changed else ()))

    tail = ["norm", "gate", "down"]
    assert made(run(DESCENT, outcome)) == [*REGIONS, *(pair.id for pair in PAIRS), *tail]


def test_descent_goes_through_a_step_that_keeps_changing_as_often_as_it_may() -> None:
    def outcome(move: Move, before: Sequence[StepTrial]) -> StepTrial:
        return StepTrial(candidate=move, touched=frozenset(REGIONS))

    trials = run(DESCENT, outcome, task=StepTask(singles=SINGLES, pairs=(), passes=2))
    assert made(trials) == [*REGIONS, *REGIONS]


def test_random_moves_follow_the_seed_alone() -> None:
    random = STRATEGIES["random"].step
    orders = {tuple(made(run(random, budget=Budget(trials=100, seed=seed)))) for seed in range(8)}
    assert len(orders) > 4
    assert made(run(random, budget=Budget(trials=100, seed=3))) == made(run(random, budget=Budget(trials=100, seed=3)))
