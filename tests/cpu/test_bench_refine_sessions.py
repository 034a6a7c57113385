"""A study of two arms on one task: a server on the loopback interface answers, real compilers build, real gates
evaluate; it is killed in the middle, goes on with the same command, and is replayed with sockets closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.spans import BEGINS, ENDS
from agentcompile.evaluation.machine import this_machine
from agentcompile.options import Options
from agentcompile.system.probe import ceiling
from bench.refine.recipe import read
from bench.refine.result import Study
from tests.cpu import flows
from tests.cpu.tasked import CEILING, KERNEL_SCALED, SCALED
from tests.unit.loopback import Play, Server, completion, serving
from tests.unit.refined import starting_in

pytestmark = pytest.mark.alone

COMPILER = {"AGENTCOMPILE_COMPILER": os.environ.get("CXX_REAL", "")}
"""The compiler itself: what stands before it in tests is a script, which no fence lets run."""
WRONG = KERNEL_SCALED.replace(" * a.weight[i]", "")


def mind(request: dict[str, Any]) -> Play:
    """Writes a wrong kernel for the first attempt alone, with the manifest that the contract shows."""
    data = json.loads(request["messages"][1]["content"])
    kernel = next(one for one in data["nodes"] if one["id"] == data["node"]).get("kernel") or ""
    if data["role"] == "plan":
        shown = f"{BEGINS}\n{kernel}{ENDS}" if kernel else ""
        return completion({"diagnosis": "slow", "instruction": "one loop", "kernel_with_marks": shown})
    text = WRONG if data["attempt"] == 1 else KERNEL_SCALED
    manifest = starting_in(request["messages"][0]["content"])
    return completion({"notes": "", "manifest": manifest, "kernel": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A study that was killed once its second session had asked something, and went on to its end."""

    home: Path
    words: tuple[object, ...]
    record: Path
    server: Server
    before: int
    """Requests of the process that was killed."""
    done: flows.Ended
    study: Study


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    root = tmp_path_factory.mktemp("study")
    home, task, out, record = root / "home", root / "scaled.py", root / "r.json", root / "answers"
    task.write_text(SCALED)
    here = this_machine(Options(threads=2, home=str(home), compiler=COMPILER["AGENTCOMPILE_COMPILER"]))
    ceiling(here.target, here.store, lambda: CEILING)  # no kernel is at the floor
    words = ("bench", "refine", task, "--arms", "sampling,stark", "--attempts", 2, "--eager", "--threads", 2)
    with serving(mind) as server:
        told = (*words, "--advisor", f"openai:m@{server.url}", "--record", record, "--out", out)
        killed_when(home, told, root / "said", record / "scaled-stark-0")
        before = len(server.requests)
        done = flows.cli(home, *told, env=COMPILER)
        assert done.code == 0, done.err
        yield Ran(home=home, words=words, record=record, server=server, before=before, done=done, study=read(out))


def killed_when(home: Path, words: tuple[object, ...], said: Path, folder: Path) -> None:
    """Run a study, and kill it as soon as an answer of its second session is kept."""
    with said.open("w") as file:
        process = subprocess.Popen(
            flows.command(*words), env=flows.environment(home, COMPILER), cwd=flows.ROOT, stdin=subprocess.DEVNULL,
            stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < deadline and not list(folder.glob("*.json")):
            time.sleep(0.02)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL, said.read_text()


def test_a_killed_study_goes_on_and_asks_no_answered_question_again(ran: Ran) -> None:
    asked = [json.loads(one["messages"][1]["content"]) for one in ran.server.requests]
    assert ran.before < len(asked)
    assert [(one["role"], one["attempt"]) for one in asked] in (
        [("code", 1), ("code", 2), ("plan", 1), ("code", 1), ("debug", 2)],
        [("code", 1), ("code", 2), ("plan", 1), ("code", 1), ("plan", 2), ("code", 2)],
    )
    assert "scaled-sampling-0" not in ran.done.err, "it was finished"


def test_each_row_says_what_its_session_reached(ran: Ran) -> None:
    sampling, stark = ran.study.rows
    assert [one.what for one in sampling.attempts] == ["incorrect", "measured"]
    assert stark.attempts[0].what == "incorrect"
    assert sampling.success
    assert (sampling.compiled, sampling.correct) == (2, 1)
    assert [one.arm for one in sampling.beside] == ["pytorch"], sampling.untimed
    assert sampling.beside[0].low <= sampling.beside[0].speedup <= sampling.beside[0].high
    assert {one.ended for one in ran.study.rows} == {"attempts"}
    assert ran.study.tasks[0].us["pytorch"] > 0
    assert "fast_1" in ran.done.out


def test_a_replay_with_sockets_closed_makes_the_same_tree(ran: Ran, tmp_path: Path) -> None:
    out, asked = tmp_path / "again.json", len(ran.server.requests)
    env = {"PYTHONPATH": str(flows.NO_NETWORK), **COMPILER}
    words = (*ran.words, "--arms", "stark", "--replay", ran.record, "--out", out)
    done = flows.cli(ran.home, *words, env=env, limit_s=900)
    assert done.code == 0, done.err
    ((found,), (before,)) = read(out).rows, ran.study.of("stark")
    assert found.attempts == before.attempts
    assert found.success is before.success
    assert len(ran.server.requests) == asked
