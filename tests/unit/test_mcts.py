"""Monte-Carlo tree search: the tree that a seed gives, the same after a kill, and what the cost model does for it."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agentcompile.ir.advice import Advice
from agentcompile.ir.codec import encode
from agentcompile.ir.search_events import ProposalNode
from agentcompile.ir.template import Candidate, Param
from agentcompile.ir.trial import Trial
from agentcompile.search import Budget, SearchTask
from agentcompile.search.course import Explorer, Ground
from agentcompile.search.mcts import Mcts
from agentcompile.search.points import points_of
from agentcompile.search.traces import replayed
from agentcompile.space import Space
from tests.unit.fakes import RecordedEvaluator, linear_region, rows_template, target

GOLDEN = Path(__file__).with_name("mcts_tree.json")
BUDGET = Budget(trials=40, seed=3, batch=4)


def space_of(*domains: Sequence[int | str], templates: int = 1) -> tuple[Candidate, ...]:
    """`templates` templates with one parameter for each domain."""
    params = tuple(
        Param(name=name, domain=tuple(domain), default=domain[0], about="which")
        for name, domain in zip("ABCD", domains, strict=False)
    )
    made = [rows_template(id=f"linear/t{at}", params=params, requires=()) for at in range(templates)]
    return tuple(Space(linear_region(), made, target()))


SPACE = space_of((1, 2, 4, 8), (1, 2, 3, 4, 5), ("row", "column"), templates=2)
"""80 points."""


def truth() -> dict[str, float]:
    """Speeds of `SPACE`; where A is 8 and B is 1 nothing can be built."""
    found = {}
    for candidate in SPACE:
        params = dict(candidate.params)
        a, b = int(params["A"]), int(params["B"])
        if (a, b) != (8, 1):
            slow = 0.3 * abs(math.log2(a) - 2) + 0.1 * abs(b - 4) + 0.2 * (params["C"] == "row")
            found[candidate.label] = -slow - 0.25 * candidate.template.endswith("t1")
    return found


def task_of(candidates: Sequence[Candidate]) -> SearchTask:
    return SearchTask(candidates=tuple(candidates), advice=Advice(label="none"))


def search(
    table: Mapping[str, float], budget: Budget, task: SearchTask, trials: Sequence[Trial] = ()
) -> tuple[list[ProposalNode], list[Trial]]:
    """The nodes in the order in which they were proposed, and all trials."""
    strategy, evaluator, made, nodes = Explorer(Mcts()), RecordedEvaluator(table), list(trials), list[ProposalNode]()
    while (proposal := strategy.propose(task, made, budget)).candidates:
        assert [node.candidate for node in proposal.nodes] == [one.id for one in proposal.candidates]
        nodes += proposal.nodes
        made += evaluator.evaluate(proposal.candidates, proposal.rounds)
    return nodes, made


def told(nodes: Sequence[ProposalNode], candidates: Sequence[Candidate]) -> list[object]:
    """Nodes as the golden file has them, with labels instead of ids."""
    labels = {one.id: one.label for one in candidates}
    return [[node.origin, labels[node.candidate], labels.get(node.parent, ""), encode(node.trace)] for node in nodes]


def test_the_tree_of_a_seed_is_the_recorded_one() -> None:
    """Written anew, after a change that is meant to change it, by ``python -m tests.unit.test_mcts``."""
    nodes, _ = search(truth(), BUDGET, task_of(SPACE))
    assert told(nodes, SPACE) == json.loads(GOLDEN.read_text())


def test_the_recorded_tree_holds_every_kind_of_node_and_change() -> None:
    rows = json.loads(GOLDEN.read_text())
    assert {"random", "changed", "crossed", "timed-again"} <= {row[0] for row in rows}
    assert {"step", "parameter", "template"} <= {change["change"] for row in rows for change in row[3]}


@pytest.mark.parametrize("cut", [1, 7, 22, 26, 39, 45])
def test_a_search_that_was_killed_grows_the_same_tree(cut: int) -> None:
    nodes, whole = search(truth(), BUDGET, task_of(SPACE))
    rest, resumed = search(truth(), BUDGET, task_of(SPACE), whole[:cut])
    assert [(one.candidate.id, one.rounds) for one in resumed] == [(one.candidate.id, one.rounds) for one in whole]
    assert rest == nodes[cut:], "with the same lineage, from the middle of a batch too"


def test_every_trace_replays_to_its_candidate_from_one_that_has_a_trial() -> None:
    nodes, _ = search(truth(), BUDGET, task_of(SPACE))
    points, before = points_of(SPACE), set[str]()
    for node in nodes:
        if node.parent:
            assert node.parent in before
            start = points.place(node.parent)
            assert start is not None
            end = replayed(points, start, node.trace)
            assert end is not None
            assert SPACE[end].id == node.candidate
        else:
            assert node.trace == ()
        before.add(node.candidate)


WIDE = space_of(range(1, 9), range(1, 9), range(1, 9), range(1, 5))
"""2,048 points."""


def asked(settings: Mcts, table: Sequence[float], seed: int = 0, count: int = 60) -> list[int]:
    """The first points of `WIDE` that are asked for, where `table` has the scores."""
    ground = Ground(points=points_of(WIDE), first=(), advised=(), rng=random.Random(seed), batch=1, trials=len(WIDE))
    course, found = settings.walk(ground), list[int]()
    wanted = next(course)
    while len(found) < count:
        found += [ask.point for ask in wanted]
        wanted = course.send([table[ask.point] for ask in wanted])
    return found


def smooth() -> list[float]:
    """A score of each point of `WIDE`, in which two parameters depend on a third."""
    values = [[int(value) for _, value in one.params] for one in WIDE]
    return [-abs(a * b - 30) / 30 - abs(b - c - 1) / 3 - abs(d - 3) / 9 for a, b, c, d in values]


def test_the_cost_model_finds_more_in_a_smooth_space() -> None:
    table = smooth()

    def lost(settings: Mcts) -> float:
        return statistics.median(
            max(table) - max(table[at] for at in asked(settings, table, seed)) for seed in range(7)
        )

    assert lost(Mcts()) < 0.7 * lost(Mcts(epsilon=1.0))


def test_a_model_that_ranks_badly_is_not_used_and_one_that_ranks_well_is() -> None:
    """What it is not used for does not depend on it: the same tree grows with one rollout as with many."""
    noise, table = random.Random(1), smooth()
    flat = [noise.gauss(0.0, 1.0) for _ in WIDE]
    assert asked(Mcts(rollouts=1), flat) == asked(Mcts(rollouts=50), flat)
    assert asked(Mcts(rollouts=1), table) != asked(Mcts(rollouts=50), table)


@pytest.mark.parametrize("trials", [0, 1])
def test_a_budget_of_nothing_and_of_one(trials: int) -> None:
    nodes, made = search(truth(), Budget(trials=trials, finalists=1), task_of(SPACE))
    assert (len(nodes), len(made)) == (trials, trials)


def test_a_space_of_one_point_is_tried_once() -> None:
    only = space_of((1,))
    nodes, made = search({only[0].label: 0.0}, Budget(trials=9), task_of(only))
    assert [node.candidate for node in nodes] == [trial.candidate.id for trial in made] == [only[0].id]


def test_where_every_point_fails_each_is_tried_once() -> None:
    nodes, made = search({}, Budget(trials=200), task_of(SPACE))
    assert len(made) == len({node.candidate for node in nodes}) == len(SPACE)


def test_no_node_has_more_children_than_it_may() -> None:
    strategy, trials, evaluator = Explorer(Mcts(branching=3)), list[Trial](), RecordedEvaluator(truth())
    parents = list[str]()
    while (proposal := strategy.propose(task_of(SPACE), trials, Budget(trials=60))).candidates:
        parents += [node.parent for node in proposal.nodes if node.parent]
        trials += evaluator.evaluate(proposal.candidates, proposal.rounds)
    assert max(parents.count(one) for one in parents) == 3


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(told(search(truth(), BUDGET, task_of(SPACE))[0], SPACE), indent=1) + "\n")
