"""A whole session of `refine` on a task's file: a server on the loopback interface answers, real processes evaluate;
it is killed, goes on, is replayed with sockets closed, and its best kernel is kept where no compile looks at it."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.folder import JOURNAL, SessionFolder
from agentcompile.agents.journal import nodes_of
from agentcompile.agents.views import admissible
from agentcompile.evaluation.machine import this_machine
from agentcompile.events import Event
from agentcompile.ir.attempt import Written
from agentcompile.ir.trial import Incorrect, Measured
from agentcompile.options import Options
from agentcompile.refine.provenance import provenance_in
from agentcompile.system.probe import ceiling
from agentcompile.tasks.open import opened_task
from agentcompile.tuning.prepared import templates_for
from tests.cpu import flows
from tests.cpu.sessions_killed import COMPILER, asked_of, killed_when, manifest, marked, tree
from tests.cpu.tasked import KERNEL_SCALED, SCALED, UNCOMPILED
from tests.unit.loopback import Play, Server, completion, serving

FILE = "3_Scaled_ReLU.py"
LOOP = "        for (long i = 0; i < in0_d1; ++i) {"
BACKWARDS = "        for (long i = in0_d1 - 1; i >= 0; --i) {"
WRONG = KERNEL_SCALED.replace(" * a.weight[i]", "")
MANIFEST = manifest("kernel_main", "in0", "weight", "out0")
THREADS, ATTEMPTS, SEED = 1, 3, 5
QUESTIONS = [("plan", 1), ("code", 1), ("debug", 2), ("plan", 3), ("code", 3)]
CHAIN = (
    "--target", "cpu", "--strategy", "epsilon-greedy:epsilon=1.0", "--attempts", ATTEMPTS, "--threads", THREADS,
    "--seed", SEED,
)  # fmt: skip
"""Every attempt starts from the only leaf, whatever the clock says."""


def mind(request: dict[str, Any]) -> Play:
    """Forgets the parameter, mends that, and turns the loop around."""
    data = asked_of(request)
    node = next(one for one in data["nodes"] if one["id"] == data["node"])
    match data["role"], data["attempt"]:
        case "plan", attempt:
            shown = marked(node["kernel"], LOOP) if node.get("kernel") else ""
            idea = "one loop over each row" if attempt == 1 else "walk each row from its end"
            return completion({"diagnosis": "calls cost more", "instruction": idea, "kernel_with_marks": shown})
        case "code", 1:
            kernel = WRONG
        case "debug", _:
            kernel = KERNEL_SCALED
        case _:
            kernel = KERNEL_SCALED.replace(LOOP, BACKWARDS)
    return completion({"notes": "as planned", "manifest": MANIFEST, "kernel": kernel})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """A session that was killed while it evaluated its second attempt, and went on to its end."""

    home: Path
    task: Path
    run: Path
    server: Server
    killed: int
    early: list[tuple[object, ...]]
    done: flows.Ended


@pytest.fixture(scope="module")
def refined(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refined]:
    root = tmp_path_factory.mktemp("refined")
    here = this_machine(Options(threads=THREADS, home=str(warm), compiler=COMPILER["AGENTCOMPILE_COMPILER"]))
    ceiling(here.target, here.store, lambda: flows.AMPLE)  # no kernel is at the floor
    task, run = root / FILE, root / "run"
    task.write_text(UNCOMPILED)
    with serving(mind) as server:
        who = [part for role in ("plan", "code", "debug") for part in (f"--{role}", f"openai:m-{role}@{server.url}")]
        code = killed_when(warm, ("refine", task, *CHAIN, *who, "--run-dir", run), root, exchanges=3)
        early = tree(run)
        done = flows.verb(warm, "refine", "--resume", "--run-dir", run, "--json", env=COMPILER)
        yield Refined(home=warm, task=task, run=run, server=server, killed=code, early=early, done=done)


@pytest.mark.alone
def test_a_killed_session_on_a_task_goes_on_to_its_best_kernel(refined: Refined) -> None:
    assert refined.killed == -signal.SIGKILL
    assert len(refined.early) == 1, "the second attempt was asked for, and not evaluated yet"
    assert refined.done.code == 0, refined.done.err
    found = json.loads(refined.done.out)
    assert (found["attempts"], found["refused"], found["repeated"]) == (ATTEMPTS, 0, 0)
    nodes = nodes_of(SessionFolder(refined.run).entries())
    assert [node.parent for node in nodes] == [None, 0, 1, 2]
    assert isinstance(nodes[1].verdict, Incorrect)
    assert [isinstance(node.verdict, Measured) for node in nodes[2:]] == [True, True], nodes
    assert any(admissible(node) for node in nodes), [node.feedback for node in nodes]
    assert found["subject"]["task"] == hashlib.sha256(UNCOMPILED.encode()).hexdigest()
    told = [(asked_of(one)["role"], asked_of(one)["attempt"]) for one in refined.server.requests]
    assert told == QUESTIONS, "each is asked once, although PyTorch was timed anew"


@pytest.mark.alone
def test_people_see_the_task_its_baseline_and_its_kernels(refined: Refined) -> None:
    assert f"task       {FILE} in cpp: pytorch " in refined.done.err
    assert (refined.run / "kernels/2/kernel.cpp").read_text() == KERNEL_SCALED
    assert 'region = "task-3-scaled-relu"' in (refined.run / "kernels/2/template.toml").read_text()
    shown = flows.verb(refined.home, "refine", "show", refined.run)
    assert shown.code == 0, shown.err
    assert f"task {FILE} in cpp, baseline: pytorch, " in shown.out
    assert "✗ incorrect" in shown.out
    one = flows.verb(refined.home, "refine", "show", refined.run, "--node", 3)
    assert f"+{BACKWARDS}" in one.out


@pytest.mark.alone
def test_a_session_whose_task_changed_does_not_go_on(refined: Refined) -> None:
    refined.task.write_text(UNCOMPILED.replace("relu", "sigmoid"))
    try:
        done = flows.verb(refined.home, "refine", "--resume", "--run-dir", refined.run, "--attempts", 9, env=COMPILER)
    finally:
        refined.task.write_text(UNCOMPILED)
    done.refuses(2, str(refined.task), "the task changed since the session began", "restore the file")
    assert len(refined.server.requests) == len(QUESTIONS)


@pytest.mark.alone
def test_a_replay_with_sockets_closed_makes_the_same_tree_and_keeps_its_best(refined: Refined, tmp_path: Path) -> None:
    before, home = len(refined.server.requests), tmp_path / "home"
    shutil.copytree(refined.home / "cache", home / "cache")
    done = flows.cli(
        home, "refine", refined.task, *CHAIN, "--replay", refined.run / "exchanges", "--run-dir", tmp_path / "again",
        "--promote", env={"PYTHONPATH": str(flows.NO_NETWORK), **COMPILER},
    )  # fmt: skip
    assert done.code == 0, done.err
    assert tree(tmp_path / "again") == tree(refined.run), done.out + done.err
    assert len(refined.server.requests) == before
    (folder,) = (home / "templates/task-3-scaled-relu").iterdir()
    assert f"promoted: {folder}; a kernel of a task, which no compile searches" in done.out
    about = provenance_in(folder)
    assert about is not None
    assert about.task_file == hashlib.sha256(refined.task.read_bytes()).hexdigest()
    assert {role for role, _ in about.models} == {"plan", "code", "debug"}
    assert len(about.exchanges) == (3 if about.node == "2" else 5)
    assert about.times_ns["kernel"] < about.times_ns["pytorch"]
    events = list[Event]()
    found = templates_for(Options(home=str(home)), events.append)
    assert not events
    assert not [id for id in found.ids if id.startswith("task-")]
    options = Options(target="cpu", threads=THREADS, home=str(home), compiler=COMPILER["AGENTCOMPILE_COMPILER"])
    with opened_task(options, refined.task, compiled=(), confirms=False) as opened:
        texts = Written(manifest=(folder / "template.toml").read_text(), kernel=(folder / "kernel.cpp").read_text())
        assert isinstance(opened.evaluator.evaluate(texts).verdict, Measured)


TASK = SCALED.replace("torch.relu(x) * self.weight", "{forward}")
BAD = {
    "a missing import": ("import nowhere_at_all\n" + SCALED, ("imports nowhere_at_all", "install nowhere_at_all")),
    "NaN": (TASK.replace("{forward}", "torch.log(-x.abs() - 1)"), ("out0 holds NaN",)),
    "another kind of file": ("print('hello')\n", ("has no function get_inputs", "KernelBench")),
    "a GPU": (TASK.replace("{forward}", "x.cuda()"), ("the target is the CPU", "leave devices to the caller")),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_task_is_a_sentence_and_exit_code_2(tmp_path: Path, what: str) -> None:
    text, words = BAD[what]
    task = tmp_path / "one.py"
    task.write_text(text)
    done = flows.verb(
        tmp_path / "home", "refine", task, "--target", "cpu", "--threads", 1, "--arm", "sampling",
        "--code", "openai:nobody@http://127.0.0.1:1/v1", "--run-dir", tmp_path / "run", env=COMPILER,
    )  # fmt: skip
    done.refuses(2, str(task), *words)
    assert not (tmp_path / "run" / JOURNAL).exists()


def test_a_device_that_is_not_there_is_a_sentence_and_exit_code_6(tmp_path: Path) -> None:
    task = tmp_path / "one.py"
    task.write_text("raise SystemExit('loaded')\n")
    done = flows.verb(
        tmp_path / "home", "refine", task, "--target", "cuda:77", "--arm", "sampling",
        "--code", "openai:nobody@http://127.0.0.1:1/v1", "--run-dir", tmp_path / "run", env=COMPILER,
    )  # fmt: skip
    done.refuses(6, "cuda:77")


def test_a_language_of_another_device_is_refused_before_the_task_is_loaded(tmp_path: Path) -> None:
    task = tmp_path / "one.py"
    task.write_text("raise SystemExit('loaded')\n")
    done = flows.verb(
        tmp_path / "home", "refine", task, "--target", "cpu", "--language", "triton", "--arm", "sampling",
        "--code", "openai:nobody@http://127.0.0.1:1/v1", "--run-dir", tmp_path / "run", env=COMPILER,
    )  # fmt: skip
    done.refuses(2, "kernels in triton do not run on cpu", "languages of this target: cpp")
