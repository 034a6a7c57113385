"""What the search in rounds asks a model, when, and what becomes of the answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.advice.client import Client
from agentcompile.advice.counsel import Counsel
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.prompt import prompt_of
from agentcompile.advice.wire import ModelRequest, Reply
from agentcompile.errors import AgentCompileError
from agentcompile.events import Consulted, Event
from agentcompile.ir.advice import Advice, Usage
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.search import STRATEGIES, Budget, strategy_of
from agentcompile.search.course import Explorer
from agentcompile.search.llm_rounds import LlmRounds
from agentcompile.search.strategy import Consult
from agentcompile.space import Space
from agentcompile.system.store import Store
from agentcompile.tuning.prepared import consulting
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import TrialDatabase
from bench.ablation.compiling import arms_of
from bench.ablation.run import _ALONE
from bench.ablation.simulate import simulate
from tests.unit import recorded
from tests.unit.answers import answer, question
from tests.unit.fakes import measured
from tests.unit.rounds import (
    BUDGET,
    LABELS,
    ORDER,
    WIDE,
    AttemptEvaluator,
    Model,
    Search,
    nothing,
    search,
    smooth,
    upwards,
)


def test_the_width_the_rounds_and_how_many_are_timed_again_are_settings() -> None:
    course = LlmRounds(width=4, rounds=2, again=1)
    model = Model(nothing)
    found = search(AttemptEvaluator(table=smooth()), model, course=course)
    assert [len(one) for one in found.rounds[:3]] == [4, 4, 8]
    assert [(number, len(focus)) for number, focus in model.asked] == [(2, 1)]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_three_best_are_timed_twice_as_long_before_the_next_question_names_them(noise: float) -> None:
    evaluator = AttemptEvaluator(table=smooth(), noise=noise)
    model = Model(nothing, evaluator.log)
    search(evaluator, model)
    known, longer, questions = dict[str, float](), set[str](), 0
    table = AttemptEvaluator(table=smooth(), noise=noise)
    for event in evaluator.log:
        if event[0] != "asked":
            rounds, labels = event
            by_label = {one.label: one for one in WIDE}
            for trial in table.evaluate([by_label[label] for label in labels], rounds):
                known[trial.candidate.label] = trial.verdict.measurement.log_ratio  # type: ignore[union-attr]
            longer |= set(labels) if rounds == 10 else set()
            assert rounds != 5 or not longer & set(labels)
            continue
        questions += 1
        _, number, focus = event
        best = sorted(known, key=lambda label: -known[label])[:3]
        assert [LABELS[id] for id in focus] == best
        assert longer >= set(best)
        assert len(known) == 15 * (number - 1)
    assert questions == 3


def test_where_a_time_does_not_hold_the_next_best_is_timed_again_before_the_question() -> None:
    lucky = LABELS[ORDER.order[0]]

    class Lucky(AttemptEvaluator):
        def _trial(self, one: Candidate, rounds: int) -> Trial:
            return (
                measured(one, 9.0, rounds=rounds) if one.label == lucky and rounds == 5 else super()._trial(one, rounds)
            )

    evaluator = Lucky(table={**smooth(), lucky: -9.0})
    model = Model(nothing, evaluator.log)
    search(evaluator, model)
    before = evaluator.log[: evaluator.log.index(("asked", *model.asked[0]))]
    assert [(rounds, len(labels)) for rounds, labels in before] == [(5, 15), (10, 3), (10, 1)]
    assert lucky in before[1][1]
    assert ORDER.order[0] not in model.asked[0][1]


def test_each_round_is_asked_for_once_with_its_number() -> None:
    model = Model(upwards)
    search(AttemptEvaluator(table=smooth()), model)
    assert [number for number, _ in model.asked] == [2, 3, 4]


def test_the_ends_of_its_sequences_come_first_then_their_ways_and_the_order_fills_up() -> None:
    table, fresh = smooth(), ORDER.order[200:205]
    ways = ((fresh[0], fresh[1]), ("of another space", ORDER.order[0], fresh[2], fresh[3]), (), (fresh[4],))
    model = Model(lambda _, number: ways if number == 2 else None)
    found = search(AttemptEvaluator(table=table), model)
    second = found.rounds[1]
    best = max(ORDER.order[:15], key=lambda id: table[LABELS[id]])
    assert [node.candidate for node in second[:5]] == [fresh[1], fresh[3], fresh[4], fresh[0], fresh[2]]
    assert {(node.origin, node.parent) for node in second[:5]} == {("advised", best)}
    assert [node.candidate for node in second[5:]] == list(ORDER.order[15:25])
    assert {(node.origin, node.parent) for node in second[5:]} == {("order", "")}
    assert [node.candidate for node in found.rounds[2]] == list(ORDER.order[25:40])


def test_a_model_that_proposes_more_than_a_round_holds_is_cut() -> None:
    many = tuple((id,) for id in ORDER.order[300:340])
    found = search(AttemptEvaluator(table=smooth()), Model(lambda _, number: many if number == 2 else None))
    assert [node.candidate for node in found.rounds[1]] == list(ORDER.order[300:315])


@pytest.mark.parametrize(
    "says", [nothing, lambda *_: (), lambda focus, _: (focus,), lambda *_: (("of another space",),)]
)
def test_where_nothing_new_is_proposed_the_search_is_that_of_no_model(says: Consult) -> None:
    assert search(AttemptEvaluator(table=smooth()), says) == search(AttemptEvaluator(table=smooth()), None)


def test_rounds_end_when_half_of_the_budget_is_used_up() -> None:
    for trials, numbers in ((30, []), (31, [2]), (60, [2]), (61, [2, 3])):
        model = Model(nothing)
        search(AttemptEvaluator(table=smooth()), model, budget=replace(BUDGET, trials=trials))
        assert [number for number, _ in model.asked] == numbers


def test_no_question_is_asked_when_everything_is_tried() -> None:
    model = Model(nothing)
    found = search(AttemptEvaluator(table=smooth()), model, candidates=WIDE[:20])
    assert [number for number, _ in model.asked] == [2]
    assert len(found.nodes) == 20
    search(AttemptEvaluator(table=smooth()), Model(lambda *_: pytest.fail("nothing is left")), candidates=WIDE[:15])


def test_the_method_has_its_name_and_its_settings() -> None:
    found = strategy_of("llm-rounds:width=4,rounds=2,again=1").regions
    assert isinstance(found, Explorer)
    assert found.course == LlmRounds(width=4, rounds=2, again=1)
    for wrong, hint in (
        ("llm-round", "did you mean llm-rounds?"),
        ("llm-rounds:depth=4", "settings of llm-rounds: width, rounds, again"),
        ("llm-rounds:width=0", "its default: width=15"),
    ):
        with pytest.raises(AgentCompileError) as caught:
            strategy_of(wrong)
        assert hint in (caught.value.hint or "")


def test_an_ablation_takes_it_with_a_model_and_leaves_it_out_where_nobody_is_asked() -> None:
    assert {name for name, method in STRATEGIES.items() if method.consults} == set(STRATEGIES) - set(_ALONE)
    assert not {"llm-rounds", "mcts+advice"} & set(_ALONE)
    (arm,) = arms_of(["llm-rounds:width=4@openai:m@http://127.0.0.1:1/v1"])
    assert (arm.strategy, arm.adviser) == ("llm-rounds:width=4", "openai:m@http://127.0.0.1:1/v1")


def test_it_searches_a_recorded_space_without_a_model(tmp_path: Path) -> None:
    times: list[object] = [recorded.FAILED if at % 5 == 0 else 1 + abs(at - 61) / 10 for at in range(90)]
    space = recorded.small(tmp_path, times)
    assert simulate(space, "llm-rounds", 200, 0).ended == "space"
    curve = simulate(space, "llm-rounds:width=5,rounds=2", 40, 0)
    assert (curve.ended, curve.evaluations) == ("budget", 40)
    assert curve.evaluations_to(0) is not None


# The question for a round, and a model behind a wire.

ASKED = question()
FAST = tuple(one.id for one in ASKED.candidates[:2])


def test_a_question_for_a_round_says_which_and_names_the_fastest() -> None:
    asked = replace(ASKED, focus=FAST, round=3, tries=15, history=(measured(ASKED.candidates[0], 0.5, rounds=10),))
    made, plain, node = prompt_of([asked]), prompt_of([ASKED]), prompt_of([replace(ASKED, focus=FAST)])
    (region,) = json.loads(made.user)["regions"]
    assert (region["round"], region["tries"]) == (3, 15)
    assert [one[0] for one in region["fastest"]] == ["c1", "c2"]
    assert "measured" in region["fastest"][0]
    assert region["fastest"][1][-1] == "not measured"
    assert "focus" not in region
    assert "- round, tries, fastest: " in made.system
    assert "focus" not in made.system
    assert "fastest:" not in plain.system
    cut = [text.split("\n- ") for text in (made.system, node.system)]
    assert [a.partition(":")[0] for a in cut[0] if a not in cut[1]] == ["round, tries, fastest"]


def test_the_same_fastest_candidates_in_another_round_are_another_question() -> None:
    questions = [ASKED, replace(ASKED, focus=FAST)]
    questions += [replace(ASKED, focus=FAST, round=number) for number in (2, 3)] + [replace(ASKED, round=2)]
    assert len({prompt_of([one]).asked[0].key for one in questions}) == 5


class Wired:
    """A wire on which a model widens the tiles of the first candidate that the question names."""

    def __init__(self) -> None:
        self.rounds, self.tries = list[int](), list[int]()

    def send(self, ask: ModelRequest) -> Reply:
        (region,) = json.loads(ask.user)["regions"]
        self.rounds.append(region["round"])
        self.tries.append(region.get("tries", 0))
        made = answer(prompt_of([ASKED]))
        steps = [{"change": "parameter", "name": "TILES", "value": value} for value in (1, 2, 4)]
        start = region["fastest"][0][0] if region["fastest"] else "c1"
        made["regions"][0]["sequences"] = [{"start": start, "steps": [step], "rationale": "wider"} for step in steps]
        return Reply(status=200, text=json.dumps(made), usage=Usage(prompt_tokens=10, completion_tokens=10))

    def close(self) -> None:
        """Nothing."""


def test_a_search_with_a_model_behind_a_wire_is_the_same_from_its_cassette(tmp_path: Path) -> None:
    table = {one.label: 0.1 * at for at, one in enumerate(ASKED.candidates)}

    told = list[Event]()

    def searched(wire: Wired) -> Search:
        kept = Cassette(tmp_path)
        client = Client(wire, "m", Ledger(Ceilings(calls=9)))
        first = {ASKED.region.id: (ASKED, Advice(label="heuristic"))}
        counsel = Counsel(first, asks=client, recalls=kept, keeps=kept, tell=told.append)

        def consult(focus: tuple[str, ...], number: int) -> Any:
            advice = counsel.consult(replace(ASKED, focus=focus, round=number))
            return None if advice is None else tuple(sequence.points for sequence in advice.sequences)

        return search(
            AttemptEvaluator(table=table),
            consult,
            candidates=ASKED.candidates,
            advice=Advice(label="none"),
            course=LlmRounds(width=2, rounds=3),
            budget=Budget(trials=12, seed=2, batch=2),
        )

    wire, silent = Wired(), Wired()
    first = searched(wire)
    assert wire.rounds == [2, 3]
    assert [event.round for event in told if isinstance(event, Consulted)] == [2, 3]
    assert "advised" in {node.origin for node in first.nodes}
    assert searched(silent) == first
    assert silent.rounds == []


def test_a_compile_hands_the_round_and_the_trials_on_to_the_question(tmp_path: Path) -> None:
    space = Space(ASKED.region, ASKED.templates, ASKED.target)
    task = TuneTask(region=ASKED.region, space=space, advice=Advice(label="none"), residency="dram", floor_ns=1.0)
    prepared: Any = SimpleNamespace(ceiling=ASKED.ceiling, here=SimpleNamespace(store=Store(tmp_path)))
    wire = Wired()
    counsel = Counsel(
        {ASKED.region.id: (ASKED, task.advice)}, asks=Client(wire, "m", Ledger(Ceilings())), keeps=Cassette(tmp_path)
    )
    ask = consulting(prepared, counsel, TrialDatabase((), None, "p"), 7)
    assert ask is not None
    start = next(one for one in ASKED.candidates if dict(one.params).get("TILES") == 1)
    assert ask(task, (start.id,), 2, False) is None
    ways = ask(task, (start.id,), 2, True)
    assert ways is not None
    assert {id for way in ways for id in way} < {one.id for one in ASKED.candidates}
    assert wire.tries == [7]
    assert ask(task, (start.id,), 2, False) == ways
    assert ask(task, (start.id,), 3, False) is None
    assert wire.rounds == [2]
    assert counsel.digests


def test_a_search_in_rounds_says_how_many_candidates_one_tries() -> None:
    assert [strategy_of(name).tries for name in ("llm-rounds", "llm-rounds:width=7", "mcts+advice")] == [15, 7, 0]
