"""Strategies on recorded tables: they find what is fast, spend what they may, and remember nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Advice
from agentcompile.ir.template import Candidate, Param
from agentcompile.ir.trial import Trial
from agentcompile.search import STRATEGIES, Budget, Proposal, RegionStrategy, SearchTask, strategy_of
from agentcompile.space import Space
from tests.unit.fakes import RecordedEvaluator, linear_region, measured, rows_template, target

NONE = Advice(label="none")


def space_of(templates: int = 2, points: int = 24) -> tuple[Candidate, ...]:
    """`templates` templates of `points` points each."""
    wide = (Param(name="P", domain=tuple(range(points)), default=0, about="which"),)
    made = [rows_template(id=f"linear/t{i}", params=wide, requires=()) for i in range(templates)]
    return tuple(Space(linear_region(), made, target()))


SPACE = space_of()


def truth_of(space: Sequence[Candidate], seed: int = 0) -> dict[str, float]:
    """A distinct true log ratio for each candidate."""
    generator = random.Random(seed)
    return {candidate.label: generator.uniform(-0.5, 1.0) for candidate in space}


REGIONS = [(name, method.regions) for name, method in STRATEGIES.items()]
HALVING, EXHAUSTIVE = STRATEGIES["halving"].regions, STRATEGIES["exhaustive"].regions


def proposed(
    strategy: RegionStrategy, space: Sequence[Candidate], advice: Advice, trials: Sequence[Trial], budget: Budget
) -> Proposal[Candidate]:
    return strategy.propose(SearchTask(candidates=tuple(space), advice=advice), trials, budget)


def run(
    strategy: RegionStrategy,
    evaluator: RecordedEvaluator,
    budget: Budget,
    *,
    advice: Advice = NONE,
    space: Sequence[Candidate] = SPACE,
    before: Sequence[Trial] = (),
    stop_after: int = 1000,
) -> list[Trial]:
    """Drive a strategy until it proposes nothing."""
    trials = list(before)
    for _ in range(stop_after):
        proposal = strategy.propose(SearchTask(candidates=tuple(space), advice=advice), trials, budget)
        if not proposal.candidates:
            return trials
        assert len({candidate.id for candidate in proposal.candidates}) == len(proposal.candidates)
        trials += evaluator.evaluate(proposal.candidates, proposal.rounds)
    assert stop_after < 1000, "the strategy does not end"
    return trials


def best_label(trials: Sequence[Trial]) -> str:
    """The candidate with the best ratio among those measured longest."""
    most = max(trial.verdict.measurement.rounds for trial in trials if hasattr(trial.verdict, "measurement"))
    longest = [t for t in trials if hasattr(t.verdict, "measurement") and t.verdict.measurement.rounds == most]
    return max(longest, key=lambda trial: trial.verdict.measurement.log_ratio).candidate.label  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "strategy"), REGIONS)
def test_with_trials_for_all_every_strategy_finds_the_best(name: str, strategy: RegionStrategy) -> None:
    truth = truth_of(SPACE)
    trials = run(strategy, RecordedEvaluator(truth), Budget(trials=len(SPACE)))
    assert best_label(trials) == max(truth, key=lambda label: truth[label])


@pytest.mark.parametrize(("name", "strategy"), REGIONS)
@given(trials=st.integers(0, 60), failing=st.integers(0, 48), seed=st.integers(0, 9))
def test_no_strategy_tries_more_candidates_than_it_may(
    name: str, strategy: RegionStrategy, trials: int, failing: int, seed: int
) -> None:
    truth = dict(list(truth_of(SPACE, seed).items())[failing:])
    made = run(strategy, RecordedEvaluator(truth), Budget(trials=trials, seed=seed))
    assert len({trial.candidate.id for trial in made}) == min(trials, len(SPACE))


@pytest.mark.parametrize(("name", "strategy"), REGIONS)
@given(cut=st.integers(0, 60), seed=st.integers(0, 9))
def test_a_search_that_was_cut_anywhere_goes_on_as_if_it_was_not(
    name: str, strategy: RegionStrategy, cut: int, seed: int
) -> None:
    truth = truth_of(SPACE, seed)
    budget = Budget(trials=30, seed=seed)
    whole = run(strategy, RecordedEvaluator(truth), budget)
    resumed = run(strategy, RecordedEvaluator(truth), budget, before=whole[:cut])
    assert Counter(trial.candidate.id for trial in resumed) == Counter(trial.candidate.id for trial in whole)
    assert best_label(resumed) == best_label(whole)


@pytest.mark.parametrize(("name", "strategy"), REGIONS)
def test_nothing_is_proposed_without_trials_or_space(name: str, strategy: RegionStrategy) -> None:
    assert proposed(strategy, SPACE, NONE, (), Budget(trials=0)).candidates == ()
    assert proposed(strategy, (), NONE, (), Budget(trials=8)).candidates == ()


def test_halving_times_fewer_candidates_longer_in_each_rung() -> None:
    evaluator = RecordedEvaluator(truth_of(SPACE), noise=0.01)
    run(HALVING, evaluator, Budget(trials=32, rounds=5, finalists=4))
    assert Counter(rounds for _, rounds in evaluator.asked) == {5: 32, 10: 16, 20: 8, 40: 4}


def test_halving_spends_its_rounds_on_the_better_half() -> None:
    truth = truth_of(SPACE)
    evaluator = RecordedEvaluator(truth)
    run(HALVING, evaluator, Budget(trials=len(SPACE)))
    ranked = sorted(truth, key=lambda label: -truth[label])
    assert {label for label, rounds in evaluator.asked if rounds == 10} == set(ranked[: len(SPACE) // 2])


def test_the_first_proposal_holds_every_template_however_the_advice_is() -> None:
    space = space_of(templates=6, points=8)
    head = tuple(candidate.id for candidate in space if candidate.template == "linear/t3")
    proposal = proposed(HALVING, space, Advice(label="partial", order=head), (), Budget(trials=8))
    assert {candidate.template for candidate in proposal.candidates} == {f"linear/t{i}" for i in range(6)}
    assert proposal.candidates[0].id == head[0]


def test_good_advice_finds_the_best_with_few_trials() -> None:
    truth = truth_of(SPACE)
    by_label = {candidate.label: candidate.id for candidate in SPACE}
    order = tuple(by_label[label] for label in sorted(truth, key=lambda label: -truth[label]))
    trials = run(HALVING, RecordedEvaluator(truth), Budget(trials=4), advice=Advice(label="oracle", order=order))
    assert best_label(trials) == max(truth, key=lambda label: truth[label])


@given(st.permutations(range(len(SPACE))), st.integers(0, 20))
def test_advice_changes_the_order_and_never_the_set(order: list[int], named: int) -> None:
    ids = (*(SPACE[i].id for i in order[:named]), "an id from nowhere", SPACE[0].id)
    advice = Advice(label="any", order=ids)
    trials = run(EXHAUSTIVE, RecordedEvaluator(truth_of(SPACE)), Budget(trials=len(SPACE)), advice=advice)
    assert {trial.candidate.id for trial in trials} == {candidate.id for candidate in SPACE}
    assert [trial.candidate.id for trial in trials[:named]] == list(ids[:named])


def test_a_template_that_only_fails_is_put_off() -> None:
    space = space_of(templates=2, points=48)
    truth = {label: ratio for label, ratio in truth_of(space).items() if "t1" in label}
    trials = run(HALVING, RecordedEvaluator(truth), Budget(trials=32), space=space)
    failed = {trial.candidate.id for trial in trials if trial.candidate.template == "linear/t0"}
    assert len(failed) <= 8


def test_a_candidate_that_fails_late_leaves_its_rung() -> None:
    evaluator = RecordedEvaluator(truth_of(SPACE))
    budget = Budget(trials=16)
    trials = run(HALVING, evaluator, budget, stop_after=4)
    crashed = trials[0].candidate
    evaluator.truth = {label: ratio for label, ratio in evaluator.truth.items() if label != crashed.label}
    trials += evaluator.evaluate([crashed], 10)
    before = len(evaluator.asked)
    run(HALVING, evaluator, budget, before=trials)
    assert crashed.label not in [label for label, _ in evaluator.asked[before:]]


def test_longer_measurements_that_are_known_already_are_not_repeated() -> None:
    truth = truth_of(SPACE)
    known = [measured(candidate, truth[candidate.label], rounds=40) for candidate in SPACE[:8]]
    evaluator = RecordedEvaluator(truth)
    run(HALVING, evaluator, Budget(trials=16, finalists=4), before=known)
    assert not {label for label, _ in evaluator.asked} & {trial.candidate.label for trial in known}


def test_a_evaluator_that_makes_fewer_rounds_than_asked_does_not_loop() -> None:
    class Short(RecordedEvaluator):
        def evaluate(self, candidates: Sequence[Candidate], rounds: int) -> list[Trial]:
            return super().evaluate(candidates, min(rounds, 3))

    run(HALVING, Short(truth_of(SPACE)), Budget(trials=16))


def test_what_confirmation_found_does_not_change_the_search() -> None:
    truth = truth_of(SPACE)
    budget = Budget(trials=16)
    trials = run(HALVING, RecordedEvaluator(truth), budget)
    confirmed = [measured(trial.candidate, -1.0, rounds=90, fidelity="confirm") for trial in trials]
    assert proposed(HALVING, SPACE, NONE, [*trials, *confirmed], budget).candidates == ()


def test_the_random_order_depends_on_the_seed_alone() -> None:
    budget = Budget(trials=10, seed=3)
    first = proposed(STRATEGIES["random"].regions, SPACE, NONE, (), budget)
    assert first == proposed(STRATEGIES["random"].regions, SPACE, Advice(label="x", order=(SPACE[-1].id,)), (), budget)
    assert first != proposed(STRATEGIES["random"].regions, SPACE, NONE, (), Budget(trials=10, seed=4))


def test_an_unknown_strategy_is_refused_with_the_nearest() -> None:
    assert strategy_of("halving").regions is HALVING
    with pytest.raises(AgentCompileError) as caught:
        strategy_of("halfing")
    assert caught.value.hint == "did you mean halving? strategies: " + ", ".join(STRATEGIES)


@given(seed=st.integers(0, 30))
def test_halving_climbs_where_the_order_says_nothing(seed: int) -> None:
    domains = {"A": 10, "B": 5, "C": 4}
    params = tuple(Param(name=name, domain=tuple(range(n)), default=0, about="which") for name, n in domains.items())
    templates = [rows_template(id=f"linear/t{i}", params=params, requires=()) for i in range(2)]
    space = tuple(Space(linear_region(), templates, target()))
    draw = random.Random(seed)
    peaks = {template.id: {name: draw.randrange(n) for name, n in domains.items()} for template in templates}

    def ratio(candidate: Candidate) -> float:
        peak = peaks[candidate.template]
        return 1.0 - sum(0.5 * abs(int(v) - peak[name]) / domains[name] for name, v in candidate.params)

    truth = {candidate.label: ratio(candidate) for candidate in space}
    trials = run(HALVING, RecordedEvaluator(truth), Budget(trials=48), space=space)
    assert len({trial.candidate.id for trial in trials}) == 48 < len(space) // 8
    assert truth[best_label(trials)] > 0.8
    plain = run(EXHAUSTIVE, RecordedEvaluator(truth), Budget(trials=48), space=space)
    assert truth[best_label(trials)] >= truth[best_label(plain)]


@pytest.mark.parametrize("templates", [2, 7, 12, 20])
@given(more=st.integers(1, 20))
def test_heads_that_were_looked_at_count(templates: int, more: int) -> None:
    space = space_of(templates=templates, points=6)
    truth = truth_of(space)
    evaluator = RecordedEvaluator(truth)
    heads = list({candidate.template: candidate for candidate in reversed(space)}.values())
    looked = evaluator.evaluate(heads, 5)
    trials = run(HALVING, evaluator, Budget(trials=templates + more), space=space, before=looked)
    assert len({trial.candidate.id for trial in trials}) == min(templates + more, len(space))
