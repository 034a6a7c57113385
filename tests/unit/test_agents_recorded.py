"""Answers that a mind gave to earlier questions about a task: they replay, and nobody is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.agents.agents import Agent, Team
from agentcompile.agents.arms import ARMS, roles_of
from agentcompile.agents.refining import Settings, refine
from agentcompile.agents.steering import SessionSteering
from agentcompile.ir.attempt import Contract, Evaluated, Times, Written
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Template
from agentcompile.tasks.contract import contract_of, facts_of, region_of
from agentcompile.tasks.reading import read
from agentcompile.tasks.wire import Loaded, Signature, TensorFact
from tests.unit.fakes import target
from tests.unit.refined import RAN, Memory

TASK = Path(__file__).parents[2] / "bench/tasks/rmsnorm_residual.py"
RECORDED = Path(__file__).parent / "exchanges/rmsnorm_residual-stark-0"
"""One attempt of a session, asked with the prompts `agents/2`."""
SEARCHED = Path(__file__).parents[2] / "bench/results/refine/tasks-answers/rmsnorm_residual-stark-0"
PARENTS = [(1, 0), (2, 1), (3, 2), (4, 2), (5, 4)]
CEILING = Ceiling(dram_bytes_per_s=20e9, cache_bytes_per_s=200e9, flops_per_s=200e9)


@dataclass
class Task:
    """The task as its process tells it, without the process."""

    path: Path = TASK
    kind: str = "task-rmsnorm-residual"

    @property
    def told(self) -> Loaded:
        """Its text, and its tensors."""
        rows = dict.fromkeys(("in0", "in1", "out0"), (512, 2048))
        tensors = (
            TensorFact(name="in0", role="input", dtype="bf16", shape=rows["in0"]),
            TensorFact(name="in1", role="input", dtype="bf16", shape=rows["in1"]),
            TensorFact(name="weight", role="parameter", dtype="bf16", shape=(2048,), source="weight"),
            TensorFact(name="out0", role="output", dtype="bf16", shape=rows["out0"]),
        )
        text = self.path.read_text(encoding="utf-8")
        return Loaded(text=text, signatures=(Signature(tensors=tensors),), flops=0, touched_bytes=6295552, wide=True)


class Keeps:
    """An evaluator that reads templates as the gates do, and times none."""

    def __init__(self) -> None:
        self.read: list[Template] = []

    def evaluate(self, written: Written) -> Evaluated:
        """Read it."""
        region = region_of(Task())  # type: ignore[arg-type] # what it reads
        found = read(written, region, facts_of(region), "cpp")
        assert isinstance(found, Template), found
        self.read.append(found)
        return Evaluated(verdict=RAN, ns=900.0, feedback={})


def contract() -> Contract:
    times = Times(reference_ns=9e3, incumbent_ns=9e3)
    return contract_of(Task(), "cpp", target(), CEILING, times, {})  # type: ignore[arg-type] # what it reads


def replaying(folder: Path) -> Team:
    """A team that answers from a folder alone."""
    return Team({role: Agent(model="") for role in roles_of(ARMS["stark"])}, Ledger(Ceilings()), Cassette(folder))


def test_answers_to_earlier_questions_replay_by_their_place_in_the_session() -> None:
    team = replaying(RECORDED)
    evaluator = Keeps()
    outcome = refine(contract(), evaluator, team, Memory(), Settings(attempts=1))
    (node,) = outcome.nodes[1:]
    assert [step.role for step in node.log] == ["plan", "code"]
    assert (outcome.attempts, outcome.refused) == (1, 0)
    assert [one.launches[0].arguments for one in evaluator.read] == [("in0", "in1", "weight", "out0")]
    assert {one.answered_by for one in Cassette(RECORDED).exchanges.values()} == {
        "Claude, which saw the questions alone"
    }


def test_they_are_no_answers_to_questions_about_another_task() -> None:
    other = replace(contract(), region="another")
    team = Team({"plan": Agent(model="")}, Ledger(Ceilings()), Cassette(RECORDED))
    assert refine(other, Keeps(), team, Memory(), Settings(attempts=1)).stopped.startswith("no answer of the role plan")


class InOrder(Keeps):
    """An evaluator under whom every kernel is faster than the one before, or slower."""

    def __init__(self, change_ns: float) -> None:
        super().__init__()
        self.change_ns = change_ns

    def evaluate(self, written: Written) -> Evaluated:
        """Read it, and make up its time."""
        return replace(super().evaluate(written), ns=1e5 + self.change_ns * len(self.read))


@pytest.mark.parametrize("change_ns", [5e3, -5e3])
def test_a_replay_makes_the_tree_of_its_answers_in_whatever_order_times_fall(change_ns: float) -> None:
    team = replaying(SEARCHED)
    outcome = refine(contract(), InOrder(change_ns), team, Memory(), Settings(attempts=5))
    assert [(node.id, node.parent) for node in outcome.nodes[1:]] == PARENTS
    assert outcome.stopped == "5 of 5 attempts are made"


def test_a_replay_asks_for_no_more_than_is_recorded() -> None:
    team = replaying(SEARCHED)
    outcome = refine(contract(), InOrder(-5e3), team, Memory(), Settings(attempts=9))
    assert outcome.attempts == 5
    assert "is recorded for this" in outcome.stopped


def test_a_replay_does_not_go_on_below_a_branch_that_a_person_closed() -> None:
    team = replaying(SEARCHED)
    closed = SessionSteering(prune=(2,))
    outcome = refine(contract(), InOrder(-5e3), team, Memory(), Settings(attempts=5), steer=lambda: closed)
    assert [(node.id, node.parent) for node in outcome.nodes[1:]] == PARENTS[:2]
