"""The committed answers of minds: whole sessions, read as the agents read them, about the tasks as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcompile.advice.exchange import Cassette, Exchange
from agentcompile.agents.answers import Draft, PlanAnswer, read_draft, read_plan
from agentcompile.agents.arms import ARMS, roles_of

ROOT = Path(__file__).parents[2]
FOLDERS = ("tasks-answers", "tasks-cuda-answers")
SESSIONS = [path for name in FOLDERS for path in sorted((ROOT / "bench/results/refine" / name).iterdir())]


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
