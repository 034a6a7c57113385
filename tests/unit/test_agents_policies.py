"""Each rule of each policy on fixture trees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.agents.policies import (
    POLICIES,
    Chain,
    EpsilonGreedy,
    EvolutionaryPolicy,
    FromRoot,
    GreedyPolicy,
    MctsPolicy,
    TreePolicy,
    policy_of,
)
from agentcompile.agents.tree import Node, dead
from agentcompile.errors import AgentCompileError
from tests.unit.refined import tree

FAILED = math.inf
MANY = 400


def chosen(policy: TreePolicy, nodes: Sequence[Node], attempts: int = MANY) -> Counter[int]:
    return Counter(policy.choose(nodes, 7, attempt) for attempt in range(attempts))


@pytest.mark.parametrize("policy", [*POLICIES.values(), Chain(), FromRoot()])
def test_the_first_attempt_starts_at_the_root(policy: TreePolicy) -> None:
    assert chosen(policy, tree()) == {0: MANY}


@pytest.mark.parametrize("name", POLICIES)
def test_a_choice_follows_from_seed_and_attempt(name: str) -> None:
    nodes = tree((0, 800), (0, FAILED), (0, 700), (1, 600), (1, 650), (3, FAILED))
    policy = policy_of(name)
    first = [policy.choose(nodes, 1, attempt) for attempt in range(50)]
    assert first == [policy.choose(nodes, 1, attempt) for attempt in range(50)]
    if name != "greedy" and name != "mcts":
        assert first != [policy.choose(nodes, 2, attempt) for attempt in range(50)]


def test_epsilon_is_the_share_of_attempts_from_any_leaf() -> None:
    nodes = tree((0, 800), (0, FAILED), (0, 700), (3, 650), (1, 900))
    found = chosen(EpsilonGreedy(), nodes, 4000)
    assert set(found) == {2, 4, 5}
    assert found[4] / 4000 == pytest.approx(0.65 + 0.35 / 3, abs=0.03), "the best, which is a leaf too"
    assert found[2] / 4000 == pytest.approx(0.35 / 3, abs=0.03)
    assert found[5] / 4000 == pytest.approx(0.35 / 3, abs=0.03)


def test_without_epsilon_the_fastest_sound_node_is_chosen() -> None:
    nodes = tree((0, 800), (0, FAILED), (1, 700))
    assert chosen(EpsilonGreedy(epsilon=0.0), nodes) == {3: MANY}
    assert chosen(EpsilonGreedy(epsilon=0.0), tree((0, 1200), (0, FAILED))) == {0: MANY}, "the reference counts"


def test_the_root_is_throttled_after_five_children() -> None:
    four = tree(*[(0, 1200)] * 4)
    five = tree(*[(0, 1200 + at) for at in range(5)])
    assert 0 in chosen(EpsilonGreedy(), four)
    assert 0 not in chosen(EpsilonGreedy(), five)
    assert chosen(EpsilonGreedy(epsilon=0.0), five) == {1: MANY}


def test_a_throttled_root_with_failures_alone_leaves_them_to_debug() -> None:
    found = chosen(EpsilonGreedy(), tree(*[(0, FAILED)] * 5))
    assert set(found) == {1, 2, 3, 4, 5}


def test_dead_branches_are_never_chosen() -> None:
    nodes = tree((0, FAILED), (1, FAILED), (1, FAILED), (1, FAILED), (0, 700))
    for policy in (EpsilonGreedy(epsilon=1.0), MctsPolicy(roots=2), EvolutionaryPolicy(fresh=0.0)):
        assert set(chosen(policy, nodes)) <= {0, 5}, policy
    sound = tree((0, 500), (1, FAILED), (1, FAILED), (1, FAILED), (0, 700))
    assert chosen(EpsilonGreedy(epsilon=0.0), sound) == {5: MANY}, "its parent is pruned although it is the fastest"


def test_where_everything_else_is_dead_the_root_is_chosen_again() -> None:
    branches = [(0, FAILED)] * 5 + [(at, FAILED) for at in range(1, 6) for _ in range(3)]
    assert chosen(EpsilonGreedy(), tree(*branches)) == {0: MANY}


@pytest.mark.parametrize("name", POLICIES)
def test_a_branch_that_a_person_closed_is_never_chosen(name: str) -> None:
    nodes = tree((0, 500), (1, 400), (0, 700), (3, FAILED))
    closed = (nodes[0], replace(nodes[1], pruned=True), *nodes[2:])
    assert set(chosen(policy_of(name), closed)) <= {0, 3, 4}
    assert set(chosen(policy_of(name), [nodes[0], replace(nodes[1], pruned=True)])) == {0}


def test_greedy_takes_the_fastest_and_of_equals_the_first() -> None:
    assert GreedyPolicy().choose(tree((0, 800), (0, 700), (0, 700)), 0, 3) == 2


def test_mcts_gives_every_node_its_children_before_it_goes_down() -> None:
    policy = MctsPolicy(branching=2, roots=2, exploration=0.0)
    assert policy.choose(tree((0, 800)), 0, 1) == 0
    assert policy.choose(tree((0, 800), (0, FAILED)), 0, 1) == 1
    deeper = tree((0, 800), (0, 900), (1, 850), (1, 600))
    assert policy.choose(deeper, 0, 1) == 4, "to the fastest branch"


def test_mcts_explores_what_was_visited_less() -> None:
    nodes = tree((0, 800), (0, 810), (1, 790), (1, 780))
    assert MctsPolicy(branching=2, roots=2, exploration=5.0).choose(nodes, 0, 1) == 2


def test_a_tournament_prefers_the_fast() -> None:
    nodes = tree(*[(0, 900 - 10 * at) for at in range(6)], (1, FAILED))
    found = chosen(EvolutionaryPolicy(fresh=0.0), nodes, 2000)
    assert set(found) == {1, 2, 3, 4, 5, 6}
    assert [id for id, _ in found.most_common()] == [6, 5, 4, 3, 2, 1]
    assert set(chosen(EvolutionaryPolicy(fresh=0.0, population=2), nodes)) == {5, 6}
    assert chosen(EvolutionaryPolicy(fresh=1.0), nodes) == {0: MANY}


def test_the_chain_goes_on_from_the_last_and_sampling_from_the_root() -> None:
    nodes = tree((0, 800), (1, FAILED), (2, 900))
    assert Chain().choose(nodes, 0, 4) == 3
    assert FromRoot().choose(nodes, 0, 4) == 0


def test_the_chain_goes_on_from_the_last_node_of_no_closed_or_dead_branch() -> None:
    nodes = tree((0, 800), (1, FAILED), (2, 900))
    closed = (*nodes[:2], replace(nodes[2], pruned=True), nodes[3])
    assert Chain().choose(closed, 0, 4) == 1
    assert Chain().choose((nodes[0], replace(nodes[1], pruned=True), *nodes[2:]), 0, 4) == 0
    assert Chain().choose(tree((0, 800), (1, FAILED), *[(2, FAILED)] * 3), 0, 6) == 1


def test_an_unknown_strategy_names_the_nearest() -> None:
    assert policy_of("epsilon-greedy") == EpsilonGreedy(epsilon=0.35, roots=5, failures=3)
    with pytest.raises(AgentCompileError, match="'mtcs' is no strategy") as caught:
        policy_of("mtcs")
    assert policy_of("mcts:branching=2,exploration=0.5") == MctsPolicy(branching=2, exploration=0.5)
    for wrong in ("greedy:epsilon=1", "mcts:branching=0", "epsilon-greedy:epsilon=much"):
        with pytest.raises(AgentCompileError, match="--strategy"):
            policy_of(wrong)
    assert caught.value.hint == "did you mean mcts? strategies: epsilon-greedy, greedy, mcts, evolutionary"


ROWS = st.lists(st.tuples(st.integers(0, 1 << 20), st.sampled_from([FAILED, 500.0, 800.0, 1200.0])), max_size=14)


@given(rows=ROWS, seed=st.integers(0, 3), attempt=st.integers(1, 30))
def test_on_any_tree_a_living_node_is_chosen_or_the_root(
    rows: list[tuple[int, float]], seed: int, attempt: int
) -> None:
    nodes = tree(*((parent % at, ns) for at, (parent, ns) in enumerate(rows, 1)))
    for name, policy in POLICIES.items():
        id = policy.choose(nodes, seed, attempt)
        assert 0 <= id < len(nodes)
        assert name == "greedy" or id not in dead(nodes)
