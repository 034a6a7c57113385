"""A tree search that asks a model how to change a node: what it sees, what it may do, and that it hears the same."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcompile.advice.client import Client
from agentcompile.advice.counsel import Counsel
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.prompt import prompt_of
from agentcompile.advice.wire import ModelRequest, Reply, WireError
from agentcompile.errors import AgentCompileError
from agentcompile.events import Consulted, Event
from agentcompile.ir.advice import Advice, Usage
from agentcompile.ir.search_events import ProposalNode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.runs.progress import fold
from agentcompile.search import STRATEGIES, Budget, SearchTask, strategy_of
from agentcompile.search.course import Explorer
from agentcompile.search.mcts import Mcts
from agentcompile.search.points import points_of
from agentcompile.search.strategy import Consult
from agentcompile.search.traces import replayed
from tests.unit import runs
from tests.unit.answers import answer, question
from tests.unit.fakes import RecordedEvaluator, measured
from tests.unit.test_courses import space, truth
from tests.unit.test_mcts import SPACE, space_of, told
from tests.unit.test_mcts import truth as small_truth

GOLDEN = Path(__file__).with_name("mcts_advised_tree.json")
BUDGET = Budget(trials=60, seed=3, batch=4)


def search(
    candidates: Sequence[Candidate],
    table: Mapping[str, float],
    consult: Consult | None,
    *,
    budget: Budget = BUDGET,
    settings: Mcts = Mcts(history=3),  # noqa: B008 - frozen
    trials: Sequence[Trial] = (),
) -> tuple[list[ProposalNode], list[Trial]]:
    """The nodes in the order in which they were proposed, and all trials."""
    task = SearchTask(candidates=tuple(candidates), advice=Advice(label="none"), consult=consult)
    strategy, evaluator, made, nodes = Explorer(settings), RecordedEvaluator(table), list(trials), list[ProposalNode]()
    while (proposal := strategy.propose(task, made, budget)).candidates:
        nodes += proposal.nodes
        made += evaluator.evaluate(proposal.candidates, proposal.rounds)
    return nodes, made


class Mind:
    """Knows the truth, and proposes the best change of every parameter one after another; remembers what it heard."""

    def __init__(self, candidates: Sequence[Candidate], table: Mapping[str, float]) -> None:
        self.by_id, self.table = {one.id: one for one in candidates}, table
        self.points = {(one.template, one.params): one for one in candidates}
        self.heard: list[tuple[str, ...]] = []

    def __call__(self, focus: tuple[str, ...], number: int) -> tuple[tuple[str, ...], ...]:
        assert not number
        self.heard.append(focus)
        at, way = self.by_id[focus[0]], list[str]()
        for name, _ in at.params:
            ways = [one for one in self.points.values() if _but(one, name) == _but(at, name)]
            at = max(ways, key=lambda one: self.table.get(one.label, -math.inf))
            way.append(at.id)
        return (tuple(way),)


def _but(candidate: Candidate, name: str) -> object:
    return candidate.template, tuple((key, value) for key, value in candidate.params if key != name)


def to_near(trials: Sequence[Trial], table: Mapping[str, float]) -> int:
    """The number of evaluations until one was within 5 % of the best; more than there are where none was."""
    seen = dict.fromkeys(trial.candidate.label for trial in trials)
    near = max(table.values()) - math.log(1.05)
    return next((at for at, label in enumerate(seen, 1) if table.get(label, -math.inf) >= near), 10**6)


def test_a_mind_that_knows_gets_there_in_few_evaluations_and_every_trace_replays() -> None:
    table, mind = truth(), Mind(space(), truth())
    nodes, _ = search(space(), table, mind)
    budgets = [replace(BUDGET, seed=seed) for seed in range(5)]
    minds = [search(space(), table, Mind(space(), table), budget=budget)[1] for budget in budgets]
    alone = [search(space(), table, None, budget=budget)[1] for budget in budgets]
    few = statistics.median(to_near(trials, table) for trials in minds)
    assert 3 * few < statistics.median(to_near(trials, table) for trials in alone)
    advised = [node for node in nodes if node.origin == "advised"]
    points = points_of(space())
    for node in advised:
        parent, own = points.place(node.parent), points.place(node.candidate)
        assert parent is not None
        assert replayed(points, parent, node.trace) == own
    assert advised
    assert len(set(mind.heard)) == len(mind.heard), "the same node is not asked about twice"


def half_minded() -> list[object]:
    """The tree of a mind that answers about every second node alone, as the golden file has it."""
    mind = Mind(SPACE, small_truth())

    def says(focus: tuple[str, ...], number: int) -> tuple[tuple[str, ...], ...] | None:
        way = mind(focus, number)
        return way if len(mind.heard) % 2 else None

    return told(search(SPACE, small_truth(), says)[0], SPACE)


def test_the_advised_tree_of_a_seed_is_the_recorded_one() -> None:
    """Written anew, after a change that is meant to change it, by ``python -m tests.unit.test_mcts_advice``."""
    assert half_minded() == json.loads(GOLDEN.read_text())


def test_the_recorded_tree_holds_advised_nodes_of_several_steps_and_plain_ones() -> None:
    rows = json.loads(GOLDEN.read_text())
    assert {"advised", "changed", "random", "timed-again"} <= {row[0] for row in rows}
    steps = {len(row[3]) for row in rows if row[0] == "advised"}
    assert max(steps) > 1, "a sequence leads as far as it can at once"


@pytest.mark.parametrize("history", [1, 2, 3, 5])
def test_it_hears_of_a_node_and_as_many_above_it_as_are_asked_for(history: int) -> None:
    mind = Mind(SPACE, small_truth())
    nodes, _ = search(SPACE, small_truth(), mind, settings=Mcts(history=history))
    above = {node.candidate: node.parent for node in nodes if node.origin != "timed-again"}
    for focus in mind.heard:
        assert 1 <= len(focus) <= history
        for one, parent in itertools.pairwise(focus):
            assert above[one] == parent
        if len(focus) < history:
            assert not above[focus[-1]], "it ends early only at a root"
    assert max(map(len, mind.heard)) == min(history, 5)


@pytest.mark.parametrize("says", [lambda *_: None, lambda *_: (), lambda focus, _: (focus,), None])
def test_where_nothing_new_is_proposed_the_tree_is_that_of_no_model(says: Consult | None) -> None:
    plain = search(SPACE, small_truth(), None, settings=Mcts())
    assert search(SPACE, small_truth(), says) == plain


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_whatever_is_proposed_every_candidate_is_proposed_once_and_of_the_space(data: st.DataObject) -> None:
    ids = [one.id for one in SPACE]
    known: dict[tuple[str, ...], Any] = {}

    def says(focus: tuple[str, ...], _: int) -> Any:
        ways = st.lists(st.lists(st.sampled_from([*ids, "of another space"]), max_size=4).map(tuple), max_size=4)
        return known.setdefault(focus, data.draw(st.none() | ways.map(tuple)))

    nodes, _ = search(SPACE, small_truth(), says, budget=Budget(trials=len(SPACE), seed=1, batch=3))
    first = [node.candidate for node in nodes if node.origin != "timed-again"]
    assert sorted(first) == sorted(ids)


@pytest.mark.parametrize("killed", [1, 7, 20, 41, 59])
def test_a_killed_search_goes_on_with_the_same_tree(killed: int) -> None:
    whole, trials = search(SPACE, small_truth(), Mind(SPACE, small_truth()))
    part = trials[:killed]
    nodes, again = search(SPACE, small_truth(), Mind(SPACE, small_truth()), trials=part)
    assert again == trials
    done = {trial.candidate.id for trial in part}
    assert {node.candidate for node in nodes} >= {node.candidate for node in whole} - done


def test_a_space_of_one_point_and_one_where_all_fail() -> None:
    one = space_of((1,))
    assert len(search(one, {}, Mind(one, {}))[1]) == 1
    assert len({trial.candidate.id for trial in search(SPACE, {}, Mind(SPACE, {}))[1]}) == BUDGET.trials
    assert search(SPACE, small_truth(), Mind(SPACE, small_truth()), budget=Budget(trials=0))[1] == []


def test_the_method_has_its_name_and_its_depth_is_a_setting() -> None:
    found = strategy_of("mcts+advice:history=1,branching=4").regions
    assert isinstance(found, Explorer)
    assert found.course == Mcts(history=1, branching=4)
    with pytest.raises(AgentCompileError, match="history=0"):
        strategy_of("mcts+advice:history=0")
    assert isinstance(STRATEGIES["mcts+advice"].regions, Explorer)


# A model behind a wire: what it sees, and what becomes of its answer.

ASKED = question()
POINTS = {candidate.label: candidate for candidate in ASKED.candidates}
NODE, PARENT, *_ = ASKED.candidates


class Wired:
    """A wire that answers with what a function says of the data of the prompt, or fails."""

    def __init__(self, say: Callable[[Any], object]) -> None:
        self.say, self.data = say, list[Any]()

    def send(self, ask: ModelRequest) -> Reply:
        (region,) = json.loads(ask.user)["regions"]
        self.data.append(region)
        said = self.say(region)
        if said is None:
            raise WireError("refused")
        text = said if isinstance(said, str) else json.dumps(said)
        return Reply(status=200, text=text, usage=Usage(prompt_tokens=10, completion_tokens=10))

    def close(self) -> None:
        """Nothing."""


def from_focus(region: Any) -> object:
    """One legal sequence, one that is legal at first, one that is not, all from where the search stands."""
    made = answer(prompt_of([ASKED]))
    start = region["focus"][0][0]
    values = {"change": "parameter", "name": "TILES", "value": 4}, {"change": "parameter", "name": "TILES", "value": 9}
    made["regions"][0]["sequences"] = [
        {"start": start, "steps": [values[0]], "rationale": "wider"},
        {"start": start, "steps": [values[0], values[1]], "rationale": "wider still"},
        {"start": start, "steps": [values[1]], "rationale": "too wide"},
    ]
    return made


def counsel(
    say: Callable[[Any], object], folder: Path | None = None, calls: int = 50
) -> tuple[Counsel, list[Event], Wired]:
    told, wire = list[Event](), Wired(say)
    kept = Cassette(folder) if folder else None
    client = Client(wire, "m", Ledger(Ceilings(calls=calls)))
    first = {ASKED.region.id: (ASKED, Advice(label="heuristic"))}
    return Counsel(first, asks=client, recalls=kept, keeps=kept, tell=told.append), told, wire


def start() -> Candidate:
    return next(
        one for one in ASKED.candidates if dict(one.params).get("TILES") == 1 and dict(one.params)["AHEAD"] == 0
    )


def test_it_is_told_where_the_search_stands_with_what_was_measured() -> None:
    node, parent = start(), PARENT
    asked = replace(ASKED, focus=(node.id, parent.id), history=(measured(node, 0.5),))
    found, _, wire = counsel(from_focus)
    assert found.consult(asked) is not None
    ids = {candidate.id: id for id, candidate in prompt_of([ASKED]).asked[0].candidates.items()}
    own, above = wire.data[0]["focus"]
    assert own[0] == ids[node.id]
    assert own[4] == "measured"
    assert 1.649 in [round(value, 3) if isinstance(value, float) else value for value in own] or 1.65 in own
    assert above[0] == ids[parent.id]
    assert above[-1] == "not measured"
    assert "focus" not in json.loads(prompt_of([ASKED]).user)["regions"][0]


def test_legal_beginnings_are_kept_and_counted_and_an_answer_is_heard_once(tmp_path: Path) -> None:
    asked = replace(ASKED, focus=(start().id,))
    found, told, wire = counsel(from_focus, tmp_path)
    advice = found.consult(asked)
    assert advice is not None
    assert [len(sequence.points) for sequence in advice.sequences] == [1, 1]
    (event,) = told
    assert isinstance(event, Consulted)
    assert (event.candidate, event.full, event.partial, event.dropped) == (start().id, 1, 1, 1)
    assert found.digests == (event.exchange,)
    assert found.consult(asked) == advice
    assert (len(wire.data), len(told)) == (1, 1)
    again, told_again, wire_again = counsel(lambda _: pytest.fail("it is recorded"), tmp_path)
    assert again.consult(asked) == advice
    assert told_again == told
    assert wire_again.data == []
    other, _, wire_other = counsel(lambda _: None, tmp_path)
    assert other.consult(replace(ASKED, focus=(PARENT.id,))) is None
    assert len(wire_other.data) == 1, "another question"


def test_when_no_time_is_left_only_what_is_recorded_counts(tmp_path: Path) -> None:
    asked = replace(ASKED, focus=(start().id,))
    found, told, wire = counsel(from_focus, tmp_path)
    assert found.consult(asked, asks=False) is None
    assert (told, wire.data) == ([], [])
    advice = found.consult(asked)
    assert advice is not None
    assert counsel(from_focus, tmp_path)[0].consult(asked, asks=False) == advice


def test_a_run_counts_what_it_heard_once_however_often_it_goes_on() -> None:
    heard = Consulted(region=runs.FOUND.region, candidate="c", exchange="e", full=2)
    other = replace(heard, candidate="d")
    told = [runs.STARTED, runs.FOUND, heard, other, runs.STARTED, runs.FOUND, heard]
    assert fold(told).rows[0].consulted == (heard, other)


def test_one_without_a_focus_and_one_with_it_are_two_questions() -> None:
    plain, node = prompt_of([ASKED]).asked[0], prompt_of([replace(ASKED, focus=(NODE.id,))]).asked[0]
    assert plain.key != node.key
    assert node.key != prompt_of([replace(ASKED, focus=(NODE.id, PARENT.id))]).asked[0].key


@pytest.mark.parametrize(
    "say",
    [lambda _: None, lambda _: "", lambda _: "{", lambda _: {"regions": []}, lambda _: {"regions": [{"region": 3}]}],
)
def test_a_model_that_is_down_or_hostile_costs_one_question_and_nothing_else(say: Callable[[Any], object]) -> None:
    found, told, _ = counsel(say)
    asked = replace(ASKED, focus=(start().id,))
    advice = found.consult(asked)
    assert advice is None or advice.sequences == ()
    assert found.consult(asked) == advice
    (event,) = told
    assert isinstance(event, Consulted)
    assert event.full == event.partial == 0


def test_what_may_be_asked_is_what_the_ceilings_allow() -> None:
    found, told, wire = counsel(from_focus, calls=1)
    assert found.consult(replace(ASKED, focus=(start().id,))) is not None
    assert found.consult(replace(ASKED, focus=(PARENT.id,))) is None
    assert len(wire.data) == 1
    event = told[-1]
    assert isinstance(event, Consulted)
    assert "1 of 1 calls" in event.reason


def test_a_search_with_a_model_behind_a_wire_is_the_same_from_its_cassette(tmp_path: Path) -> None:
    table = {one.label: 0.1 * at for at, one in enumerate(ASKED.candidates)}

    def searched(say: Callable[[Any], object]) -> list[ProposalNode]:
        counsels, _, _ = counsel(say, tmp_path)

        def consult(focus: tuple[str, ...], _: int) -> tuple[tuple[str, ...], ...] | None:
            advice = counsels.consult(replace(ASKED, focus=focus))
            return None if advice is None else tuple(sequence.points for sequence in advice.sequences)

        return search(ASKED.candidates, table, consult, budget=Budget(trials=8, seed=2, batch=2))[0]

    first = searched(from_focus)
    assert "advised" in {node.origin for node in first}
    assert searched(lambda _: pytest.fail("every answer is recorded")) == first


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(half_minded(), indent=1) + "\n")
