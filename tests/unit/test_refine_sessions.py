"""The verb `refine` without PyTorch: flags, limits, hostile answers, records, and what is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.folder import SessionFolder
from agentcompile.agents.journal import Refused, nodes_of
from agentcompile.agents.tree import Node
from agentcompile.cli import refining
from agentcompile.errors import AgentCompileError, ExitCode
from tests.unit.loopback import Play, completion, refusal, serving
from tests.unit.sessions import Admits, asked_of, begin, draft, faster, flow, paper


@pytest.fixture
def home() -> Path:
    return Path(os.environ["AGENTCOMPILE_HOME"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_session_says_each_attempt_its_leaderboard_and_how_to_keep_the_best(run: Path) -> None:
    screen, out, err = paper()
    with serving(faster) as server:
        assert begin(server, run, screen=screen) == 0
    said = err.getvalue().splitlines()
    lines = [line for line in said if line.startswith("attempt")]
    assert lines[0].startswith(
        "attempt 1 of 3  node 1 from 0  code  ● admissible: 790 ns, 1.14× of the incumbent, 7.90×"
    )
    assert "(1.2k tokens)" in lines[0]
    assert "✗ build-failed: broken 2" in lines[1].replace("no such thing as ", "") or "build-failed" in lines[1]
    assert "to beat 900 ns (rmsnorm/rows)" in err.getvalue()
    text = out.getvalue()
    assert "incumbent" in text
    assert "stopped: 3 of 3 attempts are made" in text
    assert "3 attempts: 3 evaluated, 0 refused, 0 repeated" in text
    assert "asked: 3 calls, 3.6k tokens" in text
    assert err.getvalue().splitlines()[-1] == f"next: agentcompile refine promote {run} 3"
    assert json.loads((run / "summary.json").read_text())["admissible"] == 3
    assert (run / "kernels/1/kernel.cpp").read_text() == "// 790\n"


def test_json_and_events_say_the_same(run: Path, tmp_path: Path) -> None:
    screen, out, _ = paper("json")
    other, lines, _ = paper("events")
    with serving(faster) as server:
        begin(server, run, screen=screen)
        begin(server, tmp_path / "other", screen=other)
    found = json.loads(out.getvalue())
    assert [node["ns"] for node in found["nodes"]] == [1000.0, 790.0, None, 770.0]
    assert found["speedup"] == round(900 / 770, 4)
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    kinds = [one["kind"] for one in told]
    assert kinds[0] == "run-started"
    assert kinds.count("node") == 3
    assert kinds[-1] == "run-finished"
    assert [one["ns"] for one in told if one["kind"] == "node" and one["verdict"]["kind"] == "measured"] == [
        790.0,
        770.0,
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"arm": "stark", "advisor": "heuristic"}, "no model was named for the role plan; --advisor openai:"),
        ({"code": "gpt"}, "--code: 'gpt' is no model; --advisor"),
        ({"arm": "best"}, "--arm: 'best' is no arm; arms: stark"),
        ({"strategy": "halving"}, "--strategy: 'halving'; did you mean|strategies: epsilon-greedy"),
        ({"language": "rust"}, "--language: 'rust'; allowed: cpp, cuda, triton"),
        ({"attempts": 0}, "--attempts; from 1"),
        ({"region": ""}, "no region was named; inspect"),
        ({"model": ""}, "no model was named; refine MODEL --region R"),
        ({"code_temperature": "hot"}, "--code-temperature: 'hot'; from 0 to 2"),
        ({"code_temperature": "3"}, "--code-temperature: '3'; from 0 to 2"),
        ({"code_key": "sk-not-a-variable"}, "--code-key: no name of a variable; name that"),
        ({"plan_key": "sk-not-a-variable", "replay": "x"}, "--plan-key: no name of a variable; name that"),
        ({"code_key": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set; NO_SUCH_KEY"),
        ({"debug_price": "dear"}, "--debug-price: 'dear'; IN,OUT"),
        ({"replay": "nowhere"}, "nowhere: holds no exchange; exchanges"),
        ({"replay": "x", "record": "y"}, "nothing new is asked; one of them"),
        ({"advisor_cents": 5}, "--advisor-cents: 5; --advisor-price"),
        ({"advisor_key": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set; "),
    ],
)
def test_what_is_wrong_is_said_before_there_is_a_folder(run: Path, more: dict[str, Any], words: str) -> None:
    given = {"region": "rmsnorm", "arm": "sampling", **more}
    flags = {name: given.pop(name) for name in list(given) if name.startswith("advisor") or name == "model"}
    flags = {"model": "m", "advisor": "openai:x@http://127.0.0.1:1/v1", "run_dir": str(run), **flags}
    with pytest.raises(AgentCompileError) as caught:
        refining.refine(flags, given, resume=False, screen=paper()[0], flow=flow())
    assert caught.value.exit_code is ExitCode.USAGE
    said, _, hint = words.partition("; ")
    assert said in caught.value.message
    assert any(one in caught.value.hint for one in hint.split("|"))
    assert not run.exists()


def test_hostile_answers_cost_an_attempt_each_and_are_never_evaluated(run: Path) -> None:
    gate = Admits()
    answers = ["prose", "```json\n{}\n```\n```json\n{}\n```", "x" * 300_000, "y" * 3_000_000, '{"kernel": "k"}', ""]
    with serving(*(completion(text) for text in answers), completion("{", finish="length")) as server:
        begin(server, run, gate, attempts=len(answers) + 1)
        assert len(server.requests) == len(answers) + 1
    assert gate.evaluated == []
    entries = SessionFolder(run).entries()
    assert [type(one).__name__ for one in entries[1:]] == ["Refused"] * (len(answers) + 1)
    assert json.loads((run / "summary.json").read_text())["refused"] == len(answers) + 1
    assert [one.reason for one in entries if isinstance(one, Refused)][
        -1
    ] == "code: the answer was cut off after 1 characters"


def test_each_role_has_its_own_key_and_price(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNING_KEY", "sk-planning-0123456789")
    monkeypatch.setenv("OTHER_KEY", "sk-other-0123456789")

    def mind(request: dict[str, Any]) -> Play:
        if asked_of(request)["role"] == "plan":
            text = "the key is sk-planning-0123456789"
            return completion({"diagnosis": text, "instruction": "i", "kernel_with_marks": ""})
        return draft("// 700\n")

    own = {"plan_key": "PLANNING_KEY", "plan_price": "10,100", "code_price": "1,2", "debug_price": "1,2"}
    with serving(mind) as server:
        begin(server, run, arm="stark", attempts=1, advisor_key="OTHER_KEY", advisor_cents=500, **own)
    assert server.keys == ["Bearer sk-planning-0123456789", "Bearer sk-other-0123456789"]
    (node,) = (one for one in SessionFolder(run).entries() if isinstance(one, Node))
    assert [step.usage.microdollars for step in node.log] == [1000 * 10 + 200 * 100, 1000 * 1 + 200 * 2]
    assert not [path for path in run.rglob("*") if path.is_file() and b"sk-planning" in path.read_bytes()]


def test_the_same_code_again_is_not_evaluated_again(run: Path) -> None:
    gate, (screen, out, err) = Admits(), paper()
    with serving(draft("// 700\n")) as server:
        begin(server, run, gate, screen)
    assert len(gate.evaluated) == 1
    assert "the code of node 1 again" in err.getvalue()
    assert "1 evaluated, 0 refused, 2 repeated" in out.getvalue()


def test_nobody_there_is_said_with_the_command_that_goes_on(run: Path) -> None:
    with (
        pytest.raises(AgentCompileError, match="nobody answers") as caught,
        serving(refusal(401, "no such key")) as server,
    ):
        begin(server, run)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert f"agentcompile refine --resume --run-dir {run}" in caught.value.hint
    state = SessionFolder(run).run.state()
    assert state.status == "failed"
    with serving(faster) as server:
        assert begin(server, run, resume=True) == 0
    assert len(nodes_of(SessionFolder(run).entries())) == 4


def test_ceilings_hold_over_a_resume(run: Path) -> None:
    with serving(faster) as server:
        screen, out, _ = paper()
        begin(server, run, screen=screen, attempts=6, advisor_calls=2)
        assert "stopped: a ceiling is reached: 2 of 2 calls are made" in out.getvalue()
        begin(server, run, resume=True)
        assert len(server.requests) == 2
        begin(server, run, resume=True, advisor_calls=3)
        assert len(server.requests) == 3
        begin(server, run, resume=True, advisor_calls=20)
    assert len(server.requests) == 6
    assert SessionFolder(run).run.state().spent.calls == 6


def test_a_session_goes_on_with_what_it_was_begun_with_alone(run: Path) -> None:
    with serving(faster) as server:
        begin(server, run)
        for more in ({"arm": "stark"}, {"region": "linear"}, {"language": "cuda"}, {"seed": 3}):
            with pytest.raises(AgentCompileError, match="the session was begun with"):
                begin(server, run, resume=True, **more)
        begin(server, run, resume=True, attempts=4, region="rmsnorm")
    assert SessionFolder(run).settings()[1].attempts == 4
    with pytest.raises(AgentCompileError, match="already holds a run"), serving(faster) as server:
        begin(server, run)


def test_a_replay_makes_the_same_tree_and_asks_nobody(run: Path, tmp_path: Path) -> None:
    with serving(faster) as server:
        begin(server, run)
    begin(None, tmp_path / "again", attempts=9, replay=str(run / "exchanges"))
    own, other = (SessionFolder(path).entries() for path in (run, tmp_path / "again"))
    assert [one.written for one in nodes_of(own)] == [one.written for one in nodes_of(other)]
    assert SessionFolder(tmp_path / "again").run.state().spent.calls == 0


def test_who_answered_is_in_the_record_and_the_key_is_nowhere(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-0123456789-secret")
    with serving(faster) as server:
        begin(server, run, advisor_key="A_KEY", answered_by="somebody else", record=str(run.parent / "kept"))
        assert set(server.keys) == {"Bearer sk-0123456789-secret"}
    files = [path for path in run.parent.rglob("*") if path.is_file()]
    assert len(list((run.parent / "kept").iterdir())) == 3
    assert any(b"somebody else" in path.read_bytes() for path in files)
    assert [path for path in files if b"sk-0123456789-secret" in path.read_bytes()] == []


def test_refuted_ideas_are_told_to_the_next_session_and_a_session_keeps_what_it_was_told(run: Path, home: Path) -> None:
    def mind(request: dict[str, Any]) -> Play:
        data = asked_of(request)
        if data["role"] == "plan":
            return completion({"diagnosis": "d", "instruction": "skip every second row", "kernel_with_marks": ""})
        return draft("broken")

    with serving(mind) as server:
        begin(server, run, arm="stark", attempts=2, strategy="greedy")
        told = (home / "principles.toml").read_text()
        assert "skip every second row" in told
        assert "skip every second row" not in (run / "principles.toml").read_text()
        before = len(server.requests)
        begin(server, run.parent / "next", arm="stark", attempts=1, strategy="greedy")
    (first, *_) = server.requests[before:]
    assert [one["text"] for one in asked_of(first)["principles"] if "skip" in one["text"]] == ["skip every second row"]
    assert not any("4 KiB" in one["text"] for one in asked_of(first)["principles"]), "that is about products"


def test_written_code_is_confined_unless_somebody_says_unsafe(run: Path) -> None:
    fences = list[bool]()
    with serving(faster) as server:
        flags = {"model": "m", "advisor": f"openai:x@{server.url}"}
        for name, unsafe in (("one", None), ("two", True)):
            given = {"region": "r", "arm": "sampling", "attempts": 1, "unsafe": unsafe}
            own = {**flags, "run_dir": str(run / name)}
            refining.refine(own, given, resume=False, screen=paper()[0], flow=flow(fences=fences))
    assert fences == [True, False]
