"""Sessions of `refine` that others look at and steer, and how the command line ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents import sessions, views
from agentcompile.agents.folder import Command, SessionFolder
from agentcompile.agents.journal import Pruned, Refused, nodes_of
from agentcompile.agents.steering import SteeredSession
from agentcompile.agents.tree import Node
from agentcompile.cli import looking, refine_steering, refining
from agentcompile.cli import main as cli
from agentcompile.cli.exits import Stopped, guarded
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import silent
from agentcompile.ir.attempt import Evaluated, Written
from agentcompile.options import Options
from tests.unit.loopback import Play, refusal, serving
from tests.unit.refined import RAN, Gate
from tests.unit.sessions import asked_of, begin, draft, faster, flow, paper


@pytest.fixture
def home() -> Path:
    return Path(os.environ["AGENTCOMPILE_HOME"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


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
        wait_for(lambda: run.exists() and sessions.status_of(folder) == "paused")
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
    assert "stopped: asked by user" in out.getvalue()
    assert "resume with: agentcompile refine --resume" in err.getvalue()
    assert [one.pruned for one in nodes_of(folder.entries())[:3]] == [False, True, False]


class Hand:
    """A clock that moves when a test moves it."""

    now = 0.0

    def read(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


def test_the_time_of_work_is_kept_over_processes_and_pauses_do_not_count(run: Path) -> None:
    folder, hand = SessionFolder(run), Hand()

    def resumed(seconds: float) -> None:
        hand.move(seconds)
        folder.ask(Command(what="resume"))

    def process() -> SteeredSession:
        return SteeredSession(folder, silent, sleep=resumed, clock=hand.read)

    killed = process()
    assert killed.spent_s == 0.0
    hand.move(4.0)
    killed.steer()
    hand.move(100.0)  # its last attempt, in which it was killed, and the time without a process
    second = process()
    assert second.spent_s == 4.0
    with suppress(KeyboardInterrupt), second:
        folder.ask(Command(what="pause"))
        second.steer()
        hand.move(2.0)
        raise KeyboardInterrupt
    assert process().spent_s == pytest.approx(6.0), "the pause does not count"


def test_a_budget_of_seconds_holds_over_a_resume(run: Path) -> None:
    screen, out, _ = paper()
    with serving(faster) as server:
        begin(server, run, attempts=2)
        worked_s = SessionFolder(run).worked_s()
        assert worked_s > 0
        SessionFolder(run).keep_worked_s(50.0 + worked_s)
        begin(server, run, resume=True, attempts=9, seconds=50, screen=screen)
    assert "stopped: 50 s are over" in out.getvalue()
    assert len(nodes_of(SessionFolder(run).entries())) == 3


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
        def evaluate(self, written: Written) -> Evaluated:
            raise KeyboardInterrupt

    with serving(faster) as server:
        with pytest.raises(Stopped) as caught:
            begin(server, run, Interrupted())
        assert f"agentcompile refine --resume --run-dir {run}" in caught.value.hint
        assert begin(server, run, resume=True) == 0
        assert len(server.requests) == 3, "the first answer was kept"


SLOW = """
import sys, time; sys.path[:0] = {paths!r}
from pathlib import Path
from agentcompile.cli.exits import guarded
from tests.unit.loopback import serving
from tests.unit.refined import Gate
from tests.unit.sessions import begin, faster

class Sleeps(Gate):
    def evaluate(self, written):
        print("ready", flush=True)
        time.sleep(60)

with serving(faster) as server:
    code = guarded(lambda: begin(server, Path({run!r}), Sleeps()))
sys.exit(code)
"""


def test_a_session_is_stopped_in_the_middle_of_an_attempt(run: Path) -> None:
    unit = Path(__file__).parent
    script = SLOW.format(paths=[str(unit.parents[1]), str(unit)], run=str(run))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    screen, out, err = paper()
    assert refine_steering.stop({}, str(run), now=True, screen=screen) == 0
    assert "ended" in out.getvalue()
    assert f"next: agentcompile refine --resume --run-dir {run}" in err.getvalue()
    _, said = child.communicate(timeout=20)
    assert child.returncode == 128 + signal.SIGTERM
    assert f"resume with: agentcompile refine --resume --run-dir {run}" in said
    with serving(faster) as server:
        assert begin(server, run, resume=True) == 0
        assert len(server.requests) == 2


def test_sessions_are_listed_and_shown_beside_runs(home: Path) -> None:
    path = home / "runs" / "20990101-refined"
    with serving(faster) as server:
        begin(server, path)
    screen, out, _ = paper()
    assert looking.runs_list({}, screen=screen) == 0
    assert "20990101-refined  done (refine)       3" in out.getvalue()
    screen, out, _ = paper()
    assert looking.runs_status({}, path.name, screen=screen) == 0
    assert "done, 3 of 3 attempts" in out.getvalue()
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


def test_verbs_on_a_session_name_what_follows(run: Path) -> None:
    def last(err: io.StringIO) -> str:
        return err.getvalue().splitlines()[-1]

    with serving(faster) as server:
        begin(server, run, Gate())
    screen, _, err = paper()
    refine_steering.show({}, str(run), node=None, screen=screen)
    assert last(err) == f"next: agentcompile refine --resume --run-dir {run} --attempts 6", "nothing may be promoted"
    with serving(lambda request: draft(f"// {800 - asked_of(request)['attempt']}\nf(rank, size);\n")) as server:
        begin(server, run, resume=True, attempts=5)
    screen, _, err = paper()
    refine_steering.show({}, str(run), node=None, screen=screen)
    best = views.best_admissible(nodes_of(SessionFolder(run).entries()))
    assert best is not None
    assert last(err) == f"next: agentcompile refine promote {run} {best.id}"
    for node, said in ((best.id, f"promote {run} {best.id}"), (2, f"show {run}")):
        screen, _, err = paper()
        refine_steering.show({}, str(run), node=node, screen=screen)
        assert last(err) == f"next: agentcompile refine {said}"
    screen, _, err = paper()
    refine_steering.promote({}, str(run), best.id, called="mine", screen=screen)
    assert last(err) == f"next: agentcompile compile {Path.cwd() / 'm'}"
    screen, _, err = paper()
    refine_steering.prune({}, str(run), 1, screen=screen)
    assert last(err) == f"next: agentcompile refine show {run}"


def test_a_session_that_works_names_what_follows(run: Path) -> None:
    found = dict[str, str]()

    def mind(request: dict[str, Any]) -> Play:
        if asked_of(request)["attempt"] == 2:
            for what, call in {
                "show": lambda screen: refine_steering.show({}, str(run), node=None, screen=screen),
                "pause": lambda screen: refine_steering.command({}, str(run), "pause", screen=screen),
                "resume": lambda screen: refine_steering.command({}, str(run), "resume", screen=screen),
                "stop": lambda screen: refine_steering.stop({}, str(run), now=False, screen=screen),
            }.items():
                screen, _, err = paper()
                call(screen)
                found[what] = err.getvalue().splitlines()[-1].removeprefix("next: agentcompile refine ")
        return faster(request)

    with serving(mind) as server:
        assert begin(server, run, attempts=9) == 0
    assert found == {
        "show": f"show {run} --node 1",
        "pause": f"resume {run}",
        "resume": f"show {run}",
        "stop": f"--resume --run-dir {run}",
    }


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
