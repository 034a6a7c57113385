"""A whole session of `refine`: a server on the loopback interface answers every role, real compilers build, real
workers evaluator; it is killed, goes on, is replayed with sockets closed, and its best kernel becomes a template."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.folder import JOURNAL, SessionFolder
from agentcompile.agents.journal import nodes_of
from agentcompile.agents.views import admissible
from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.trial import BuildFailed, Measured
from agentcompile.options import Options
from agentcompile.refine.provenance import provenance_in
from agentcompile.system.probe import ceiling
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.sessions_killed import COMPILER, asked_of, killed_when, manifest, marked, tree
from tests.unit.loopback import Play, Server, completion, serving

pytestmark = pytest.mark.alone

REGION = "mul"
"""PyTorch runs it: no template that ships serves it."""
LOOP = "    for (long i = rank; i < numel; i += size) a.y[i] = a.a[i] * a.b[i];"
KERNEL = f"""\
extern "C" void product(const product_args& a, int rank, int size) {{
{LOOP}
}}
"""
SHARES = """\
    long share = (numel + size - 1) / size, end = (rank + 1) * share < numel ? (rank + 1) * share : numel;
    for (long i = rank * share; i < end; ++i) a.y[i] = a.a[i] * a.b[i];"""
MANIFEST = manifest("product", "a", "b", "y")
THREADS, ATTEMPTS = 1, 4
QUESTIONS = [
    ("plan", 1), ("code", 1), ("debug", 2), ("plan", 3), ("code", 3), ("plan", 4), ("code", 4)
]  # fmt: skip
CHAIN = ("--strategy", "epsilon-greedy:epsilon=1.0", "--attempts", ATTEMPTS, "--context", CONTEXT, "--threads", THREADS)
"""Every attempt starts from the only leaf, whatever the clock says."""


def draft(kernel: str) -> Play:
    return completion({"notes": "as planned", "manifest": MANIFEST, "kernel": kernel})


def mind(request: dict[str, Any]) -> Play:
    """Writes what does not compile, mends it, tries an idea, and at last changes what it was not to change."""
    data = asked_of(request)
    node = next(one for one in data["nodes"] if one["id"] == data["node"])
    match data["role"], data["attempt"]:
        case "plan", attempt:
            shown = marked(node["kernel"], LOOP, SHARES) if node.get("kernel") else ""
            idea = {1: "one loop over all elements", 3: "give each thread a share in a row"}.get(attempt, "rename it")
            return completion({"diagnosis": "calls cost more", "instruction": idea, "kernel_with_marks": shown})
        case "code", 1:
            return draft(KERNEL.replace("numel", "nothing"))
        case "debug", 2:
            return draft(KERNEL)
        case "code", 3:
            return draft(KERNEL.replace(LOOP, SHARES))
        case _:
            return draft(node["kernel"].replace("product", "other"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """A session that was killed while it evaluated its second attempt, and went on to its end."""

    home: Path
    model: Path
    run: Path
    server: Server
    killed: int
    early: list[tuple[object, ...]]
    done: flows.Ended


@pytest.fixture(scope="module")
def refined(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Refined]:
    root = tmp_path_factory.mktemp("refined")
    here = this_machine(Options(threads=THREADS, home=str(warm), compiler=COMPILER["AGENTCOMPILE_COMPILER"]))
    ceiling(here.target, here.store, lambda: flows.AMPLE)  # no kernel is at the floor
    model, run = checkpoint("tiny-qwen3", "fp32"), root / "run"
    with serving(mind) as server:
        who = [part for role in ("plan", "code", "debug") for part in (f"--{role}", f"openai:m-{role}@{server.url}")]
        start = ("refine", model, "--region", REGION, *CHAIN, *who, "--run-dir", run, "--debug-temperature", 0.25)
        code = killed_when(warm, start, root, exchanges=3)
        early = tree(run)
        done = flows.verb(warm, "refine", "--resume", "--run-dir", run, "--json", env=COMPILER)
        yield Refined(home=warm, model=model, run=run, server=server, killed=code, early=early, done=done)


def test_a_killed_session_goes_on_to_its_best_kernel(refined: Refined) -> None:
    assert refined.killed == -signal.SIGKILL
    assert len(refined.early) == 1, "the second attempt was asked for, and not evaluated yet"
    assert refined.done.code == 0, refined.done.err
    found = json.loads(refined.done.out)
    assert (found["attempts"], found["refused"], found["repeated"]) == (ATTEMPTS, 1, 0)
    assert found["stopped"] == "4 of 4 attempts are made"
    nodes = nodes_of(SessionFolder(refined.run).entries())
    assert [node.parent for node in nodes] == [None, 0, 1, 2]
    assert isinstance(nodes[1].verdict, BuildFailed)
    assert [isinstance(node.verdict, Measured) for node in nodes[2:]] == [True, True], nodes
    assert any(admissible(node) for node in nodes), [node.feedback for node in nodes]
    assert found["best"] in (2, 3)
    assert "resumed after attempt 1" in refined.done.err
    assert "attempt 4 of 4  from node 3  plan+code  refused: code: line 1, outside every span" in refined.done.err


def test_every_role_asks_its_model_at_its_temperature_and_nothing_twice(refined: Refined) -> None:
    told = [(asked_of(one)["role"], asked_of(one)["attempt"]) for one in refined.server.requests]
    assert told == QUESTIONS
    heat = {"plan": 0.8, "code": 0.1, "debug": 0.25}
    for one in refined.server.requests:
        role = asked_of(one)["role"]
        assert (one["model"], one["temperature"]) == (f"m-{role}", heat[role])
    assert len(list((refined.run / "exchanges").glob("*.json"))) == len(QUESTIONS)


def test_people_find_every_kernel_and_see_the_tree(refined: Refined) -> None:
    assert (refined.run / "kernels/2/kernel.cpp").read_text() == KERNEL
    assert 'region = "mul"' in (refined.run / "kernels/2/template.toml").read_text()
    shown = flows.verb(refined.home, "refine", "show", refined.run)
    assert shown.code == 0, shown.err
    assert "✗ build-failed" in shown.out
    assert "done, 4 of 4 attempts" in shown.out
    one = flows.verb(refined.home, "refine", "show", refined.run, "--node", 3)
    assert f"+{SHARES.splitlines()[0]}" in one.out
    assert "give each thread a share" in one.out
    assert "product" not in flows.verb(refined.home, "refine", "show", refined.run, "--node", 0).out


def test_a_replay_with_sockets_closed_makes_the_same_tree_and_promotes_its_best(
    refined: Refined, tmp_path: Path
) -> None:
    before, home = len(refined.server.requests), tmp_path / "home"
    shutil.copytree(refined.home / "cache", home / "cache")
    done = flows.cli(
        home, "refine", refined.model, "--region", REGION, *CHAIN, "--replay", refined.run / "exchanges",
        "--run-dir", tmp_path / "again", "--promote", env={"PYTHONPATH": str(flows.NO_NETWORK), **COMPILER},
    )  # fmt: skip
    assert done.code == 0, done.err
    assert tree(tmp_path / "again") == tree(refined.run), done.out + done.err
    assert len(refined.server.requests) == before
    (folder,) = (home / "templates/mul").iterdir()
    assert f"promoted: {folder}" in done.out
    assert done.err.splitlines()[-1].startswith("next: agentcompile compile "), "the kernel is one more candidate"


def test_a_promoted_kernel_is_one_more_candidate_and_says_who_wrote_it(refined: Refined, tmp_path: Path) -> None:
    best = json.loads(refined.done.out)["admissible"]
    home = tmp_path / "home"
    shutil.copytree(refined.home / "cache", home / "cache")
    assert "next: " not in refined.done.out + refined.done.err, "it is JSON"

    def candidates() -> int:
        done = flows.verb(home, "inspect", refined.model, "--context", CONTEXT, "--threads", THREADS, "--json")
        return next(row["points"] for row in json.loads(done.out)["regions"] if row["kind"] == REGION)

    assert candidates() == 0
    done = flows.verb(home, "refine", "promote", refined.run, best, "--name", "by-hand")
    assert done.code == 0, done.err
    assert candidates() == 1
    about = provenance_in(home / "templates/mul/by-hand")
    assert about is not None
    assert {role for role, _ in about.models} == {"plan", "code", "debug"}
    assert about.node == str(best)
    again = flows.verb(home, "refine", "promote", refined.run, 1)
    again.refuses(2, "cannot be promoted")


def test_a_region_that_is_not_there_leaves_a_session_that_says_so(refined: Refined, tmp_path: Path) -> None:
    done = flows.verb(
        refined.home, "refine", refined.model, "--region", "nonsense", *CHAIN, "--replay", refined.run / "exchanges",
        "--run-dir", tmp_path / "run",
    )  # fmt: skip
    done.refuses(2, "no region is called that", "rmsnorm-linear")
    assert not (tmp_path / "run" / JOURNAL).exists()
