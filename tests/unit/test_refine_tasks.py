"""The verb `refine` on a task's file, without PyTorch: what is refused, what is said, and what a promotion writes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.folder import SessionFolder
from agentcompile.agents.journal import nodes_of
from agentcompile.agents.rules import rules
from agentcompile.cli import main as cli
from agentcompile.cli import refine_steering, refining
from agentcompile.cli.flow import Flow, OpenRegion
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Event
from agentcompile.ir.attempt import WrittenLanguage
from agentcompile.ir.kind import TASK
from agentcompile.options import Options
from agentcompile.refine.provenance import provenance_in
from agentcompile.regions.kinds import facts as kinds
from agentcompile.tuning.prepared import templates_for
from tests.unit.loopback import Play, Server, refusal, serving
from tests.unit.refined import CONTRACT
from tests.unit.runs import TARGET
from tests.unit.sessions import SUBJECT, Admits, asked_of, faster, paper

TEXT = "a task's text, which only a process of its own would read\n"
TASKED = replace(CONTRACT, kind=f"{TASK}small-sum")


def flow(opened: list[tuple[object, ...]] | None = None) -> Flow:
    """A compiler whose every task is the same; `opened` keeps what was asked for."""

    @contextmanager
    def task(options: Options, path: Path, language: WrittenLanguage | None, *, fenced: bool) -> Iterator[OpenRegion]:
        if opened is not None:
            opened.append((path, language, fenced, options.target))
        subject = replace(
            SUBJECT,
            region=path.name,
            kind=TASKED.kind,
            contract=TASKED.digest,
            incumbent="torch.compile",
            task=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        yield OpenRegion(subject=subject, contract=TASKED, evaluator=Admits(), target=TARGET)

    made = Flow()
    vars(made).update({"task": task})
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "Small_Sum.py"
    path.write_text(TEXT)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def begin(server: Server, file: Path, run: Path | None, **more: Any) -> tuple[str, str]:
    """Begin or go on with a session of one agent on a task; returns what it said on stdout and stderr."""
    screen, out, err = paper()
    names = ("target", "context", "seed")
    flags = {"run_dir": str(run) if run else None, "advisor": f"openai:loop@{server.url}"}
    flags |= {name: more.pop(name) for name in names if name in more}
    resume, compiler = more.pop("resume", False), more.pop("flow", flow())
    if not resume:
        flags["model"] = str(file)
        more = {"arm": "sampling", "attempts": 3, **more}
    assert refining.refine(flags, more, resume=resume, screen=screen, flow=compiler) == 0
    return out.getvalue(), err.getvalue()


def refusal_of(file: Path, run: Path, **more: Any) -> AgentCompileError:
    with serving(faster) as server, pytest.raises(AgentCompileError) as caught:
        begin(server, file, run, **more)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


def test_a_session_names_the_task_and_its_baseline_and_no_region(file: Path, run: Path) -> None:
    with serving(faster) as server:
        out, err = begin(server, file, run)
    (line,) = (line for line in err.splitlines() if line.startswith("task"))
    assert line.startswith("task       Small_Sum.py in cpp: pytorch 1")
    assert line.endswith("to beat 900 ns (torch.compile), roofline 100 ns")
    assert "1.14× of the baseline" in err
    assert "node 3 passed every gate: 1.17× of the baseline, torch.compile" in out
    screen, shown, _ = paper()
    assert refine_steering.show({}, str(run), node=None, screen=screen) == 0
    assert "task Small_Sum.py in cpp, baseline: torch.compile, 900 ns" in shown.getvalue()
    for text in (out, err, shown.getvalue()):
        assert "incumbent" not in text
        assert "region" not in text
    row = next(line for line in out.splitlines() if line.lstrip().startswith("baseline"))
    assert "to beat" in row


def test_a_new_folder_is_named_by_the_task(file: Path) -> None:
    with serving(faster) as server:
        _, err = begin(server, file, run=None)
    name = Path(next(line for line in err.splitlines() if line.startswith("session")).split()[-1]).name
    assert name.endswith("-Small_Sum")


def test_what_was_asked_for_reaches_the_task(file: Path, run: Path) -> None:
    opened = list[tuple[object, ...]]()
    with serving(faster) as server:
        begin(server, file, run, language="cpp", unsafe=True, target="cpu", flow=flow(opened))
        begin(server, file, run.parent / "other", language="triton", target="cuda:0", flow=flow(opened))
    assert opened == [(file, "cpp", False, "cpu"), (file, "triton", True, "cuda:0")]


def test_a_setting_of_checkpoints_is_left_out_with_a_warning(file: Path, run: Path) -> None:
    with serving(faster) as server:
        _, err = begin(server, file, run, context="64")
    assert "warning: --context says nothing about a task, and is left out" in err


def test_a_region_of_a_task_is_refused_and_one_of_a_checkpoint_is_needed(file: Path, run: Path) -> None:
    error = refusal_of(file, run, region="rmsnorm")
    assert "--region: 'rmsnorm'" in error.message
    assert str(file) in error.message
    assert "leave --region out" in error.hint
    error = refusal_of(run.parent, run)
    assert "no region was named" in error.message
    assert "a task is a .py file" in error.hint
    assert not run.exists()


@pytest.mark.parametrize("what", ["missing", "folder", "large"])
def test_what_is_no_task_is_refused_before_there_is_a_folder(file: Path, run: Path, what: str) -> None:
    other = file.with_name("other.py")
    words = {"missing": "no such file", "folder": "a folder", "large": "bytes; a task has at most"}
    match what:
        case "folder":
            other.mkdir()
        case "large":
            other.write_bytes(b"#" * (1 << 21))
    error = refusal_of(other, run)
    assert words[what] in error.message
    assert "KernelBench" in error.hint
    assert str(other) in error.message
    assert not run.exists()


def test_a_task_that_changed_is_noticed_and_one_that_was_never_opened_may_change(file: Path, run: Path) -> None:
    with serving(faster) as server:
        begin(server, file, run)
    file.write_text(TEXT + "# and more\n")
    error = refusal_of(file, run, resume=True, attempts=4)
    assert f"{file}: the task changed since the session began" in error.message
    assert hashlib.sha256(TEXT.encode()).hexdigest()[:8] in error.message
    assert "restore the file" in error.hint
    file.unlink()
    assert "no such file" in refusal_of(file, run, resume=True).message
    file.write_text(TEXT)
    with serving(faster) as server:
        begin(server, file, run, resume=True, attempts=4)
    assert len(nodes_of(SessionFolder(run).entries())) == 5
    other = run.parent / "silent"
    with serving(refusal(401, "no")) as server, pytest.raises(AgentCompileError, match="never opened"):
        begin(server, file, other, flow=_refuses())
    file.write_text(TEXT + "# mended\n")
    with serving(faster) as server:
        begin(server, file, other, resume=True)
    subject = SessionFolder(other).subject()
    assert subject is not None
    assert subject.task == SessionFolder(other).settings()[1].task


def _refuses() -> Flow:
    """A compiler that finds a task's file wrong."""

    def task(*_: object, **__: object) -> object:
        raise AgentCompileError("never opened", hint="mend the file")

    made = Flow()
    vars(made).update({"task": task})
    return made


def test_a_session_on_a_task_is_steered_as_any(file: Path, run: Path) -> None:
    def mind(request: dict[str, Any]) -> Play:
        if asked_of(request)["attempt"] == 2:
            refine_steering.prune({}, str(run), 1, screen=paper()[0])
            refine_steering.command({}, str(run), "pause", screen=paper()[0])
            refine_steering.command({}, str(run), "resume", screen=paper()[0])
            refine_steering.stop({}, str(run), now=False, screen=paper()[0])
        return faster(request)

    with serving(mind) as server:
        out, err = begin(server, file, run)
        assert "stopped: asked by user" in out
        assert f"resume with: agentcompile refine --resume --run-dir {run}" in err
        out, _ = begin(server, file, run, resume=True)
    assert "stopped: 3 of 3 attempts are made" in out
    assert [node.pruned for node in nodes_of(SessionFolder(run).entries())] == [False, True, False, False]


def test_a_promoted_kernel_of_a_task_is_kept_and_disturbs_no_compile(file: Path, run: Path) -> None:
    home = Path(os.environ["AGENTCOMPILE_HOME"])
    with serving(faster) as server:
        out, _ = begin(server, file, run, promote=True)
    (folder,) = (home / "templates/task-small-sum").iterdir()
    assert f"promoted: {folder}; a kernel of a task, which no compile searches" in out
    assert (folder / "kernel.cpp").read_text() == "// 770\n"
    screen, said, _ = paper()
    assert refine_steering.promote({}, str(run), 1, called="first", screen=screen) == 0
    assert "which no compile searches" in said.getvalue()
    first = folder.with_name("first")
    assert sorted(path.name for path in first.iterdir()) == ["kernel.cpp", "provenance.json", "template.toml"]
    about = provenance_in(first)
    assert about is not None
    assert (about.task, about.node) == ("Small_Sum.py", "1")
    assert about.task_file == hashlib.sha256(TEXT.encode()).hexdigest()
    assert about.models == (("code", "loop"),)
    assert len(about.exchanges) == 1
    assert set(about.times_ns) == {"kernel", "pytorch", "floor"}
    assert about.machine == {"device": "a machine"}
    events = list[Event]()
    found = templates_for(Options(home=str(home)), events.append)
    assert (events, found.quarantined) == ([], ())
    assert not [id for id in found.ids if id.startswith(TASK)]


def test_no_kind_of_region_is_called_like_a_task() -> None:
    assert not [name for name in kinds() if name.startswith(TASK)]


def test_agents_are_told_that_it_is_a_task(file: Path, run: Path) -> None:
    with serving(faster) as server:
        begin(server, file, run, attempts=1)
        system = server.requests[0]["messages"][0]["content"]
    assert "for a task in PyTorch" in system
    assert "region of a model" not in system
    assert "region of a model" in rules("code", "cpp", contract="{}", starting="{}")


def test_json_has_the_digest_of_the_task(file: Path, run: Path) -> None:
    with serving(faster) as server:
        begin(server, file, run)
    screen, out, _ = paper("json")
    refine_steering.show({}, str(run), node=None, screen=screen)
    found = json.loads(out.getvalue())
    assert found["subject"]["task"] == hashlib.sha256(TEXT.encode()).hexdigest()
    assert found["subject"]["region"] == file.name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "nowhere.py: no such file"),
        (["nowhere.py", "--region", "r"], "--region: 'r'"),
        (["folder"], "a task is a .py file"),
    ],
)
def test_a_command_line_that_names_no_task_ends_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["refine", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_help_tells_of_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["refine", "--help"]) == 0
    assert "task's .py file" in capsys.readouterr().out
