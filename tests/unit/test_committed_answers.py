"""The committed answers of minds: whole sessions, read as the agents read them, about the tasks as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agentcompile.advice.client import Unanswered
from agentcompile.advice.exchange import ENDING, Cassette, Exchange
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.agents.agents import Agent, Said, Team
from agentcompile.agents.answers import Draft, PlanAnswer, read_draft, read_plan
from agentcompile.agents.arms import ARMS, roles_of
from agentcompile.agents.prompts import RolePrompt
from agentcompile.agents.refining import Settings, refine
from agentcompile.ir.attempt import Contract, Evaluated, Times, Written, WrittenLanguage
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Template
from agentcompile.tasks.contract import contract_of, facts_of, region_of
from agentcompile.tasks.reading import read
from tests.unit.fakes import target
from tests.unit.refined import RAN, Memory
from tests.unit.task_facts import FileTask

ROOT = Path(__file__).parents[2]
FOLDERS = ("tasks-answers", "tasks-cuda-answers")
SESSIONS = [path for name in FOLDERS for path in sorted((ROOT / "bench/results/refine" / name).iterdir())]
ATTEMPTS = {"tasks-answers": 5, "tasks-cuda-answers": 3}
"""The attempts of a session, by folder."""
ENDED_EARLY = {
    "conv_norm_silu-agents-only-0": 1,
    "conv_norm_silu-reflexion-0": 4,
    "conv_norm_silu-search-only-0": 1,
    "conv_norm_silu-stark-0": 2,
    "moe_top2-sampling-0": 1,
    "moe_top2-stark-0": 2,
    "rmsnorm_residual-reflexion-0": 2,
}
"""The attempts of those sessions on a CPU that ended at a floor before they had made all."""
H100 = target(kind="cuda", device="H100", arch="sm_90a", isa=(), threads=132, toolchain="nvrtc 13.0")
CEILING = Ceiling(dram_bytes_per_s=20e9, cache_bytes_per_s=200e9, flops_per_s=200e9)


def task_and_arm(session: str) -> tuple[str, str]:
    """What a session's folder is named by, `<task>-<arm>-<seed>`, where an arm's own name may hold a hyphen."""
    name, _ = session.rsplit("-", 1)
    (arm,) = (arm for arm in ARMS if name.endswith(f"-{arm}"))
    return name.removesuffix(f"-{arm}"), arm


def role_of(exchange: Exchange) -> str:
    """The role that a question was put to."""
    (role,) = (name for name in exchange.keys if name != "place")
    return role


def test_eight_tasks_were_answered_in_every_role_of_the_arm_that_plans() -> None:
    tasks = {path.name.removesuffix("-stark-0") for path in SESSIONS if path.name.endswith("-stark-0")}
    assert len(tasks) >= 8
    for task in tasks:
        assert (ROOT / f"bench/tasks/{task}.py").is_file()
        roles = {role_of(one) for one in Cassette(SESSIONS[0].parent / f"{task}-stark-0").exchanges.values()}
        assert {"plan", "code"} <= roles


@pytest.mark.parametrize("folder", SESSIONS, ids=lambda path: path.name)
def test_a_session_s_answers_are_of_its_arm_and_its_task_s_text_is_that_of_the_package(folder: Path) -> None:
    task, arm = task_and_arm(folder.name)
    text = (ROOT / f"bench/tasks/{task}.py").read_text(encoding="utf-8")
    read: list[PlanAnswer | Draft | str] = []
    for exchange in Cassette(folder).exchanges.values():
        role = role_of(exchange)
        assert role in roles_of(ARMS[arm])
        assert exchange.answered_by == "Claude, which saw the questions alone"
        assert json.dumps(text)[1:-1] in exchange.system, "the question holds the whole task"
        read.append(read_plan(exchange.answer) if role == "plan" else read_draft(exchange.answer))
    assert any(isinstance(one, Draft) for one in read)
    refused = [one for one in read if isinstance(one, str)]
    assert all("characters, at most" in one for one in refused), refused


def attempts_of(session: Path) -> int:
    """The attempts that a session made when its answers were given."""
    whole = ATTEMPTS[session.parent.name]
    return ENDED_EARLY.get(session.name, whole) if session.parent.name == "tasks-answers" else whole


@dataclass
class Reads:
    """An evaluator that reads templates as the gates do, and times none."""

    task: FileTask
    language: WrittenLanguage
    read: list[Template] = field(default_factory=list)

    def evaluate(self, written: Written) -> Evaluated:
        """Read it; each kernel is a little faster than the one before."""
        region = region_of(self.task)  # type: ignore[arg-type] # what it reads
        found = read(written, region, facts_of(region), self.language)
        assert isinstance(found, Template), found
        self.read.append(found)
        return Evaluated(verdict=RAN, ns=1e6 - 1e3 * len(self.read), feedback={})

    def contract(self) -> Contract:
        """The contract on a machine that the answers were not given for, without a floor that would end a session."""
        here = H100 if self.language == "cuda" else target()
        times = Times(reference_ns=2e6, incumbent_ns=2e6)
        found = contract_of(self.task, self.language, here, CEILING, times, {})  # type: ignore[arg-type] # as above
        return replace(found, floor_ns=0.0)


@dataclass
class Remembers:
    """Who answers from a folder, and which answers were used."""

    team: Team
    used: set[str] = field(default_factory=set)

    def ask(self, prompt: RolePrompt) -> Said | Unanswered:
        """Answer."""
        found = self.team.ask(prompt)
        if isinstance(found, Said):
            self.used.add(found.exchange)
        return found


@pytest.mark.usefixtures("socket_disabled")
@pytest.mark.parametrize("folder", SESSIONS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_session_is_made_again_from_its_answers_alone_and_uses_every_one(folder: Path) -> None:
    name, arm = task_and_arm(folder.name)
    evaluator = Reads(
        FileTask(ROOT / f"bench/tasks/{name}.py"), "cuda" if folder.parent.name == "tasks-cuda-answers" else "cpp"
    )
    cassette, made = Cassette(folder), attempts_of(folder)
    asked = {json.loads(one.user)["attempt"] for one in cassette.exchanges.values()}
    assert asked == set(range(1, made + 1))
    team = Remembers(Team({role: Agent(model="") for role in roles_of(ARMS[arm])}, Ledger(Ceilings()), cassette))
    seed = int(folder.name.rpartition("-")[2])
    outcome = refine(evaluator.contract(), evaluator, team, Memory(), Settings(arm=arm, attempts=made + 1, seed=seed))
    assert outcome.attempts == made
    assert len(evaluator.read) + outcome.refused + outcome.repeated == made
    assert "is recorded for this" in outcome.stopped
    assert {path.name for path in folder.iterdir()} == {f"{one[:32]}{ENDING}" for one in team.used}
