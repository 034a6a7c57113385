"""The verb `refine` without PyTorch: flags, limits, hostile answers, steering, what people and programs are shown."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import TARGET

from agentcompile.agents import views
from agentcompile.agents.folder import Command, SessionFolder, Subject
from agentcompile.agents.journal import Pruned, Refused, nodes_of
from agentcompile.agents.tree import Node
from agentcompile.cli import looking, refine_steering, refining
from agentcompile.cli import main as cli
from agentcompile.cli.exits import Stopped, guarded
from agentcompile.cli.flow import Flow, OpenRegion
from agentcompile.cli.render import Format, Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Emit
from agentcompile.ir.attempt import Judged, Written, WrittenLanguage
from agentcompile.options import Options
from tests.unit.loopback import Play, Server, completion, refusal, serving
from tests.unit.refined import CONTRACT, LAUNCH, RAN, Gate

MANIFEST = {
    "layouts": [], "params": [], "workspaces": [], "requires": [], "arch": [], "accumulation": "float32", "rounds": [],
    "launch": [LAUNCH | {"grid": [], "block": [], "shared_bytes": 0, "cooperative": False, "cluster": [], "pdl": False,
                         "early": [], "in_place": [], "pitched": []}],
}  # fmt: skip
SUBJECT = Subject(
    region="rmsnorm@0123",
    kind=CONTRACT.kind,
    language=CONTRACT.language,
    contract=CONTRACT.digest,
    floor_ns=CONTRACT.floor_ns,
    reference_ns=CONTRACT.reference_ns,
    incumbent_ns=CONTRACT.incumbent_ns,
    incumbent="rmsnorm/rows",
    machine={"device": "a machine"},
)


class Admits(Gate):
    """A gate that admits what is faster than the incumbent."""

    def judge(self, written: Written) -> Judged:
        found = super().judge(written)
        told = {**(found.feedback if isinstance(found.feedback, dict) else {}), "admissible": found.ns < 900}
        return Judged(verdict=found.verdict, ns=found.ns, feedback=told)


def flow(gate: Gate | None = None, fences: list[bool] | None = None) -> Flow:
    """A compiler whose every region is the same; `fences` says of each that was opened whether it was confined."""

    @contextmanager
    def region(
        options: Options, region: str, language: WrittenLanguage | None, emit: Emit, *, fenced: bool
    ) -> Iterator[OpenRegion]:
        if fences is not None:
            fences.append(fenced)
        yield OpenRegion(subject=SUBJECT, contract=CONTRACT, judge=gate or Admits(), target=TARGET)

    made = Flow()
    vars(made).update({"region": region})
    return made


def paper(format: Format = "text") -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Screen(out=out, err=err, format=format), out, err


def asked_of(request: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(request["messages"][1]["content"])
    return data


def draft(kernel: str) -> Play:
    return completion({"notes": "n", "manifest": MANIFEST, "kernel": kernel})


def faster(request: dict[str, Any]) -> Play:
    """Writes a kernel that is faster at each attempt, and one in three that fails."""
    number = asked_of(request)["attempt"]
    return draft(f"broken {number}\n" if number == 2 else f"// {800 - 10 * number}\n")


@pytest.fixture
def home() -> Path:
    return Path(os.environ["AGENTCOMPILE_HOME"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def begin(server: Server | None, run: Path, gate: Gate | None = None, screen: Screen | None = None, **more: Any) -> int:
    """Begin a session of one agent; `more` are settings of the model and of the session."""
    settings = {
        name: more.pop(name) for name in list(more) if name.startswith("advisor") or name in ("seconds", "seed")
    }
    resume = more.pop("resume", False)
    flags = {"run_dir": str(run), **settings}
    if not resume:
        flags["model"] = "m"
        more = {"region": "rmsnorm", "arm": "sampling", "attempts": 3, **more}
    if server is not None:
        flags["advisor"] = f"openai:loop@{server.url}"
    return refining.refine(flags, more, resume=resume, screen=screen or paper()[0], flow=flow(gate))


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
    assert "3 attempts: 3 judged, 0 refused, 0 repeated" in text
    assert "asked: 3 calls, 3.6k tokens" in text
    assert f"agentcompile refine promote {run} 3" in text
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


def test_hostile_answers_cost_an_attempt_each_and_are_never_judged(run: Path) -> None:
    gate = Admits()
    answers = ["prose", "```json\n{}\n```\n```json\n{}\n```", "x" * 300_000, '{"notes": "n", "kernel": "k"}', ""]
    with serving(*(completion(text) for text in answers)) as server:
        begin(server, run, gate, attempts=len(answers))
        assert len(server.requests) == len(answers)
    assert gate.judged == []
    entries = SessionFolder(run).entries()
    assert [type(one).__name__ for one in entries[1:]] == ["Refused"] * len(answers)
    assert json.loads((run / "summary.json").read_text())["refused"] == len(answers)


def test_the_same_code_again_is_not_judged_again(run: Path) -> None:
    gate, (screen, out, err) = Admits(), paper()
    with serving(draft("// 700\n")) as server:
        begin(server, run, gate, screen)
    assert len(gate.judged) == 1
    assert "the code of node 1 again" in err.getvalue()
    assert "1 judged, 0 refused, 2 repeated" in out.getvalue()


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
    assert any("4 KiB" in one["text"] for one in asked_of(first)["principles"])


def test_written_code_is_confined_unless_somebody_says_unsafe(run: Path) -> None:
    fences = list[bool]()
    with serving(faster) as server:
        flags = {"model": "m", "advisor": f"openai:x@{server.url}"}
        for name, unsafe in (("one", None), ("two", True)):
            given = {"region": "r", "arm": "sampling", "attempts": 1, "unsafe": unsafe}
            own = {**flags, "run_dir": str(run / name)}
            refining.refine(own, given, resume=False, screen=paper()[0], flow=flow(fences=fences))
    assert fences == [True, False]


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_session_is_paused_pruned_and_stopped_by_others(run: Path) -> None:
    folder, went = SessionFolder(run), threading.Event()

    def mind(request: dict[str, Any]) -> Play:
        number = asked_of(request)["attempt"]
        if number == 2:
            refine_steering.command({}, str(run), "pause", screen=paper()[0])
            refine_steering.prune({}, str(run), 1, screen=paper()[0])
        return draft(f"// {800 - number}\n")

    def person() -> None:
        wait_for(lambda: run.exists() and refine_steering.status_of(folder) == "paused")
        refine_steering.command({}, str(run), "resume", screen=paper()[0])
        wait_for(lambda: len(nodes_of(folder.entries())) > 3)
        refine_steering.stop({}, str(run), now=False, screen=paper()[0])
        went.set()

    other = threading.Thread(target=person)
    screen, out, err = paper()
    with serving(mind) as server:
        other.start()
        assert begin(server, run, screen=screen, attempts=5000) == 0
    other.join()
    assert went.is_set()
    assert "stopped: a person stopped it" in out.getvalue()
    assert "go on with: agentcompile refine --resume" in err.getvalue()
    assert [one.pruned for one in nodes_of(folder.entries())[:3]] == [False, True, False]


def test_a_session_that_nobody_works_on_is_pruned_at_once_and_not_paused(run: Path) -> None:
    with serving(faster) as server:
        begin(server, run)
    refine_steering.prune({}, str(run), 1, screen=paper()[0])
    refine_steering.prune({}, str(run), 1, screen=paper()[0])
    entries = SessionFolder(run).entries()
    assert [one for one in entries if isinstance(one, Pruned)] == [Pruned(node=1)]
    with pytest.raises(AgentCompileError, match="no process works"):
        refine_steering.command({}, str(run), "pause", screen=paper()[0])
    with pytest.raises(AgentCompileError, match="no node 9"):
        refine_steering.prune({}, str(run), 9, screen=paper()[0])
    with pytest.raises(AgentCompileError, match="node 0 is the reference"):
        refine_steering.prune({}, str(run), 0, screen=paper()[0])
    SessionFolder(run).ask(Command(what="stop"))  # it came too late
    with serving(faster) as server:
        screen, out, _ = paper()
        begin(server, run, resume=True, attempts=4, screen=screen)
    assert "stopped: 4 of 4" in out.getvalue()


def test_two_processes_never_drive_one_session(run: Path) -> None:
    def mind(request: dict[str, Any]) -> Play:
        with pytest.raises(AgentCompileError, match="another agentcompile runs here"):
            begin(None, run, resume=True)
        return draft("// 700\n")

    with serving(mind) as server:
        assert begin(server, run, attempts=1) == 0


def test_a_signal_ends_a_session_with_the_command_that_goes_on(run: Path) -> None:
    class Interrupted(Gate):
        def judge(self, written: Written) -> Judged:
            raise KeyboardInterrupt

    with serving(faster) as server:
        with pytest.raises(Stopped) as caught:
            begin(server, run, Interrupted())
        assert f"agentcompile refine --resume --run-dir {run}" in caught.value.hint
        assert begin(server, run, resume=True) == 0
        assert len(server.requests) == 3, "the first answer was kept"


def test_sessions_are_listed_and_shown_beside_runs(home: Path) -> None:
    path = home / "runs" / "20990101-refined"
    with serving(faster) as server:
        begin(server, path)
    screen, out, _ = paper()
    assert looking.runs_list({}, screen=screen) == 0
    assert "20990101-refined  finished (refine)       3" in out.getvalue()
    screen, out, _ = paper()
    assert looking.runs_status({}, path.name, screen=screen) == 0
    assert "finished, 3 of 3 attempts" in out.getvalue()
    with pytest.raises(AgentCompileError, match="a session of `refine`") as caught:
        looking.named(Options(home=str(home)), path.name)
    assert "refine show" in caught.value.hint
    (path / "session.json").write_text("{}")
    screen, out, _ = paper("json")
    assert looking.runs_list({}, screen=screen) == 0
    assert json.loads(out.getvalue())[0]["status"] == "unreadable"


def test_a_node_is_shown_with_its_changes_and_no_control_characters(run: Path) -> None:
    with serving(draft("// 700\n\x1b[2Jevil();\n"), draft("// 650\nevil();\n")) as server:
        begin(server, run, arm="reflexion", attempts=2)
    screen, out, _ = paper()
    assert refine_steering.show({}, str(run), node=2, screen=screen) == 0
    assert "node 2, from node 1: ● admissible, 650 ns" in out.getvalue()
    assert "+// 650" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    screen, out, _ = paper("json")
    refine_steering.show({}, str(run), node=2, screen=screen)
    assert "+evil();" in json.loads(out.getvalue())["changes"]


def test_a_session_that_is_none_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="no sessions of `refine`"):
        refine_steering.show({}, "", node=None, screen=paper()[0])
    with pytest.raises(AgentCompileError, match="holds no session"):
        refine_steering.show({}, str(tmp_path), node=None, screen=paper()[0])
    with pytest.raises(AgentCompileError, match="no unfinished session"):
        refining.refine({}, {}, resume=True, screen=paper()[0], flow=flow())


def test_every_state_has_a_glyph_and_a_word() -> None:
    node = Node(id=1, parent=0, written=Written(manifest="", kernel=""), verdict=RAN, ns=1.0)
    assert views.state_of(node) == ("○", "measured")
    assert views.state_of(Node(id=0, parent=None, ns=1.0)) == ("◆", "reference")
    assert views.speedup(float("inf"), 1.0) == views.over(1.0, 0.0) == "-"
    refused = Refused(node=0, reason="why", log=())
    assert refused.kind == "refused"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["refine", "--help"], 0, "refine show"),
        (["refine", "show", "--help"], 0, "--node"),
        (["refine"], 2, "no model was named"),
        (["refine", "m"], 2, "no region was named"),
        (["refine", "m", "--region", "r"], 2, "no model was named for the role plan"),
        (["refine", "show"], 2, "no sessions"),
        (["refine", "promote", "nowhere", "1"], 2, "holds no session"),
        (["refine", "prune", "nowhere"], 2, "NODE"),
        (["refine", "m", "--region", "r", "--json", "--events", "jsonl"], 2, "share stdout"),
    ],
)
def test_a_command_line_ends_with_its_exit_code(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
    assert "Traceback" not in captured.err


def test_an_error_in_a_session_is_an_exit_code(run: Path) -> None:
    with serving(refusal(403, "no")) as server:
        assert guarded(lambda: begin(server, run)) == ExitCode.ENVIRONMENT
