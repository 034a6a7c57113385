"""Rounds, then a local search: what is proposed when, and that a killed search goes on the same."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcompile.ir.advice import Advice
from agentcompile.ir.search_events import ProposalNode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.search import Budget, SearchTask
from agentcompile.search.course import Explorer
from agentcompile.search.llm_rounds import LlmRounds
from agentcompile.search.points import points_of
from agentcompile.search.traces import replayed
from tests.unit.fakes import measured
from tests.unit.rounds import (
    BUDGET,
    LABELS,
    ORDER,
    WIDE,
    AttemptEvaluator,
    Model,
    nothing,
    search,
    smooth,
    upwards,
    values,
)
from tests.unit.test_mcts import SPACE, space_of
from tests.unit.test_mcts import truth as small_truth


def test_it_goes_in_rounds_of_fifteen_and_then_in_batches() -> None:
    found = search(AttemptEvaluator(table=smooth()), nothing)
    assert [len(one) for one in found.rounds[:5]] == [15, 15, 15, 15, 8]
    first = [node.candidate for one in found.rounds[:4] for node in one]
    assert first == list(ORDER.order[:60])
    assert {node.origin for one in found.rounds[:4] for node in one} == {"order"}
    assert all(node.origin == "changed" and len(one) <= 8 for one in found.rounds[4:] for node in one)
    assert len(found.nodes) == len({node.candidate for node in found.nodes}) == BUDGET.trials


@pytest.mark.parametrize("seed", range(5))
def test_the_local_search_finds_the_summit_of_a_smooth_space(seed: int) -> None:
    table = smooth()
    budget, course = Budget(trials=100, seed=seed), LlmRounds(rounds=1)
    found = search(AttemptEvaluator(table=table), None, advice=Advice(label="none"), budget=budget, course=course)
    best = max(found.nodes, key=lambda node: table[LABELS[node.candidate]])
    assert LABELS[best.candidate] == max(table, key=lambda label: table[label])
    assert best.origin == "changed"


def test_the_local_search_changes_one_parameter_of_the_best_with_near_values_first() -> None:
    table = smooth()
    found = search(AttemptEvaluator(table=table), None)
    known, of = set(ORDER.order[:60]), {one.id: values(one) for one in WIDE}
    local = found.rounds[4:]
    assert local
    for batch in local:
        (parent,) = {node.parent for node in batch}
        near = sorted(
            sum(abs(a - b) for a, b in zip(of[id], of[parent], strict=True))
            for id in of
            if id not in known and sum(a != b for a, b in zip(of[id], of[parent], strict=True)) == 1
        )
        changed = [[abs(a - b) for a, b in zip(of[node.candidate], of[parent], strict=True)] for node in batch]
        assert all(sum(way > 0 for way in one) == 1 for one in changed)
        assert [sum(one) for one in changed] == near[: len(batch)]
        better = [id for id in known if table[LABELS[id]] > table[LABELS[parent]]]
        for id in better:
            beside = {one for one in of if sum(a != b for a, b in zip(of[one], of[id], strict=True)) == 1}
            assert beside <= known, "a better one still has untried neighbours"
        known |= {node.candidate for node in batch}


def test_it_moves_only_to_what_is_better_when_it_is_timed_again() -> None:
    table = smooth()
    summit = max(table, key=lambda label: table[label])
    order = sorted(WIDE, key=lambda one: -table[one.label])[5:]
    lucky = next(one for one in order if sum(a != b for a, b in zip(values(one), values(order[0]), strict=True)) == 1)

    class Lucky(AttemptEvaluator):
        def _trial(self, one: Candidate, rounds: int) -> Trial:
            more = 5.0 if one == lucky and rounds == 5 else 0.0
            return measured(one, self.table[one.label] + more - 2 * (one == lucky), rounds=rounds)

    advice = Advice(label="some", order=tuple(one.id for one in [order[0], *order[::-1]]))
    found = search(
        Lucky(table=table), None, advice=advice, course=LlmRounds(rounds=1), budget=replace(BUDGET, trials=60)
    )
    assert lucky.id in {node.candidate for node in found.nodes}
    assert lucky.id not in {node.parent for node in found.nodes}
    assert summit in {LABELS[node.candidate] for node in found.nodes}


def test_where_nothing_runs_yet_the_order_goes_on_until_something_does() -> None:
    table = {label: speed for label, speed in smooth().items() if label not in {LABELS[id] for id in ORDER.order[:40]}}
    found = search(AttemptEvaluator(table=table), None, course=LlmRounds(rounds=1))
    assert [node.candidate for one in found.rounds[:5] for node in one] == list(ORDER.order[:47])
    assert {node.origin for one in found.rounds[5:] for node in one} == {"changed"}


def test_what_is_timed_again_costs_nothing_of_the_budget() -> None:
    found = search(AttemptEvaluator(table=smooth()), None, budget=replace(BUDGET, trials=16))
    assert [(rounds, len(nodes)) for rounds, nodes in found.proposals[:3]] == [(5, 15), (10, 3), (5, 1)]


def test_every_point_is_tried_once_where_the_budget_has_room_and_then_it_ends() -> None:
    found = search(
        AttemptEvaluator(table=small_truth()),
        None,
        candidates=SPACE,
        advice=Advice(label="none"),
        budget=Budget(trials=500),
    )
    assert sorted(node.candidate for node in found.nodes) == sorted(one.id for one in SPACE)
    assert len({node.parent for node in found.nodes if node.origin == "changed"}) > 1, "it fell back to others"
    assert {one.template for one in SPACE} == {trial.candidate.template for trial in found.trials[:2]}


def test_the_first_point_of_every_template_comes_first_in_the_advised_order() -> None:
    first = [one.id for one in SPACE if one.template == "linear/t1"][7:12]
    then = [one.id for one in SPACE if one.template == "linear/t0"][3:30]
    found = search(
        AttemptEvaluator(table=small_truth()),
        None,
        candidates=SPACE,
        advice=Advice(label="some", order=(*first, *then, *first)),
    )
    assert [node.candidate for node in found.rounds[0]] == [first[0], then[0], *first[1:], *then[1:10]]


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_whatever_is_proposed_every_candidate_is_proposed_once_and_of_the_space(data: st.DataObject) -> None:
    ids = [one.id for one in SPACE]
    known: dict[tuple[str, ...], Any] = {}

    def says(focus: tuple[str, ...], number: int) -> Any:
        ways = st.lists(st.lists(st.sampled_from([*ids, "of another space"]), max_size=4).map(tuple), max_size=9)
        return known.setdefault((*focus, str(number)), data.draw(st.none() | ways.map(tuple)))

    found = search(AttemptEvaluator(table=small_truth()), says, candidates=SPACE, budget=Budget(trials=200, batch=3))
    assert sorted(node.candidate for node in found.nodes) == sorted(ids)


CRASH = {**dict.fromkeys(sorted(smooth())[::3], 5), **dict.fromkeys(sorted(smooth())[1::3], 10)}


@pytest.mark.parametrize("advice", [ORDER, Advice(label="none")], ids=["advice", "none"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_search_that_was_killed_anywhere_proposes_and_asks_what_it_would_have(advice: Advice, noise: float) -> None:
    def evaluator() -> AttemptEvaluator:
        return AttemptEvaluator(table=smooth(), noise=noise, crash=CRASH)

    whole_model = Model(upwards)
    whole = search(evaluator(), whole_model, advice=advice)
    tries = Counter(trial.candidate.label for trial in whole.trials)
    lost = {trial.candidate.label for trial in whole.trials if trial.verdict.kind == "build-failed"}
    assert {tries[label] for label in lost} == {2, 3}, "some were lost when they were timed again, and when once more"
    assert {"advised", "changed"} <= {node.origin for node in whole.nodes}
    ends = list(itertools.accumulate(len(nodes) for _, nodes in whole.proposals))
    for cut in range(len(whole.trials) + 1):
        model = Model(upwards)
        task = SearchTask(candidates=WIDE, advice=advice, consult=model)
        proposal = Explorer(LlmRounds()).propose(task, whole.trials[:cut], BUDGET)
        at = next((at for at, end in enumerate(ends) if end > cut), None)
        rounds, nodes = whole.proposals[at] if at is not None else (0, ())
        left = ends[at] - cut if at is not None else 0
        assert (proposal.rounds, proposal.nodes) == (rounds, nodes[len(nodes) - left :])
        assert model.asked == whole_model.asked[: len(model.asked)]
    for cut in (0, 20, 47, len(whole.trials) - 3):
        assert search(evaluator(), upwards, advice=advice, trials=whole.trials[:cut]).trials == whole.trials


def test_advice_that_comes_late_orders_what_is_left() -> None:
    late = Advice(label="late", order=ORDER.order[::-1])
    evaluator, strategy, trials = AttemptEvaluator(table=smooth()), Explorer(LlmRounds()), list[Trial]()
    sizes, order = list[int](), ORDER
    while True:
        if len(trials) > 15:  # as the tuner has it: what was tried comes first
            tried = dict.fromkeys(trial.candidate.id for trial in trials)
            order = replace(late, order=(*tried, *(id for id in late.order if id not in tried)))
        task = SearchTask(candidates=WIDE, advice=order, consult=upwards)
        proposal = strategy.propose(task, trials, BUDGET)
        if not proposal.candidates:
            break
        sizes += [len(proposal.candidates)] if proposal.rounds == 5 else []
        if len(sizes) == 2 and proposal.rounds == 5:
            assert [node.candidate for node in proposal.nodes if node.origin == "order"] == [
                id for id in late.order if id in {node.candidate for node in proposal.nodes if node.origin == "order"}
            ]
        trials += evaluator.evaluate(proposal.candidates, proposal.rounds)
    assert sizes[:4] == [15, 15, 15, 15]
    assert len({trial.candidate.id for trial in trials}) == BUDGET.trials


@pytest.mark.parametrize("trials", [0, 1])
def test_a_budget_of_nothing_and_of_one(trials: int) -> None:
    model = Model(upwards)
    found = search(AttemptEvaluator(table=smooth()), model, budget=Budget(trials=trials))
    assert [node.candidate for node in found.nodes] == list(ORDER.order[:trials])
    assert model.asked == []


def test_a_space_of_one_point_is_tried_once() -> None:
    only = space_of((1,))
    found = search(AttemptEvaluator(table={only[0].label: 0.0}), upwards, candidates=only, budget=Budget(trials=9))
    assert [node.candidate for node in found.nodes] == [only[0].id]


def test_where_every_point_fails_each_is_tried_once_and_the_model_is_told_of_no_fastest() -> None:
    model = Model(lambda *_: ((WIDE[77].id,),))
    found = search(AttemptEvaluator(table={}), model, budget=Budget(trials=600))
    assert len(found.trials) == len({node.candidate for node in found.nodes}) == len(WIDE)
    assert model.asked == [(2, ()), (3, ()), (4, ())]
    assert ProposalNode(candidate=WIDE[77].id, origin="advised") in found.rounds[1]


def test_the_seed_decides_only_what_no_advice_names() -> None:
    def ids(seed: int, advice: Advice) -> list[str]:
        found = search(AttemptEvaluator(table=smooth()), None, advice=advice, budget=replace(BUDGET, seed=seed))
        return [node.candidate for node in found.nodes]

    none = Advice(label="none", order=ORDER.order[:4])
    assert ids(1, none) == ids(1, none)
    assert ids(1, none) != ids(2, none)
    assert ids(1, none)[:4] == ids(2, none)[:4] == list(ORDER.order[:4])
    assert ids(1, ORDER) == ids(2, ORDER)
    found = search(AttemptEvaluator(table=smooth()), None, advice=none)
    assert [node.origin for node in found.rounds[0]] == ["order"] * 4 + ["random"] * 11


def test_every_trace_replays_to_its_candidate_from_one_that_was_proposed_before() -> None:
    found, points, before = search(AttemptEvaluator(table=smooth()), upwards), points_of(WIDE), set[str]()
    for _, nodes in found.proposals:
        for node in nodes:
            if node.parent:
                assert node.parent in before
                parent = points.place(node.parent)
                assert parent is not None
                assert replayed(points, parent, node.trace) == points.place(node.candidate)
            else:
                assert node.trace == ()
        before |= {node.candidate for node in nodes}
    assert {"order", "advised", "changed", "timed-again"} <= {
        node.origin for _, made in found.proposals for node in made
    }
