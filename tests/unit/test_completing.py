"""What a shell offers for the word under the cursor, and what that costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from runs import WHOLE

from agentcompile import __version__
from agentcompile.cli import completing
from agentcompile.options import resolve
from agentcompile.runs.session import Journal, RunDirectory
from agentcompile.search import STRATEGIES

HEAVY = {"torch", "numpy", "transformers", "rich", "textual", "openai", "sklearn", "tomli_w", "pydantic"}
HEAVY |= {"agentcompile.search", "agentcompile.events", "agentcompile.cli.render"}
"""Modules that take longer to import than a key may wait; Typer's own values of flags need pydantic."""


@pytest.fixture
def run() -> RunDirectory:
    """A whole run, and an older one in which nothing was found yet."""
    runs = resolve().options.runs
    RunDirectory.create(runs / "20250101-000000-older", {})
    made = RunDirectory.create(runs / "20260101-000000-sample", {})
    with Journal(made) as journal:
        for event in WHOLE:
            journal.append(event)
    return made


def printed(*arguments: str, **variables: str) -> str:
    """What the command line prints in a process of its own, which must import nothing heavy."""
    code = (
        "import json, sys; from agentcompile.cli.main import main; code = main(sys.argv[1:]);"
        f"print(json.dumps([code, sorted(sys.modules.keys() & {HEAVY!r})]), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(ran.stderr.splitlines()[-1]) == [0, []], "it failed, or imported what is heavy"
    return ran.stdout


def offered(*words: str) -> list[str]:
    """What bash gets for the last word."""
    asked = {"COMP_WORDS": " ".join(["agentcompile", *words]), "COMP_CWORD": str(len(words))}
    return printed(**asked, _AGENTCOMPILE_COMPLETE="complete_bash").split()


def test_runs_are_offered_the_newest_first(run: RunDirectory) -> None:
    assert completing.runs("") == ["20260101-000000-sample", "20250101-000000-older", "latest"]
    assert completing.runs("2025") == ["20250101-000000-older"]
    assert completing.sessions("") == []


def test_a_command_line_is_completed_without_a_heavy_import(run: RunDirectory) -> None:
    assert offered("runs", "status", "2026") == ["20260101-000000-sample"]
    assert offered("explain", "lin") == ["linear@aaaaaa"]
    assert offered("decide", run.path.name, "--region", "") == ["linear@aaaaaa"]
    assert offered("compile", "--strategy", "mc") == ["mcts", "mcts+advice"]
    assert offered("compile", "preset:s") == ["preset:sample"]
    assert offered("bench", "comp") == ["compare"]
    assert offered("bench", "report", "comp") == []
    assert offered("compile", "--threads", "4", "--no-mem") == ["--no-memory"]
    assert offered("runs", "sta") == ["status"]


def test_help_and_version_import_nothing_heavy() -> None:
    assert "compile" in printed("--help")
    assert printed("--version").split() == ["agentcompile", __version__]


def test_regions_of_a_run_that_is_not_there_or_found_none_are_no_error(run: RunDirectory) -> None:
    import typer
    from typer.main import get_command

    from agentcompile.cli.main import app

    command = get_command(app).commands["decide"]  # type: ignore[attr-defined] # a group has them
    for name, found in (("20250101-000000-older", []), ("gone", []), ("n" * 300, []), ("latest", ["linear@aaaaaa"])):
        context = typer.Context(command)
        context.params = {"run": name}
        assert completing.regions(context, "") == found


def test_every_strategy_rule_and_adviser_is_offered() -> None:
    assert completing.strategies("") == list(STRATEGIES)
    assert completing.rules("") == ["pytorch", "first", "isolated", "admitted"]
    assert completing.advisers("o") == ["openai:"]


def test_settings_that_cannot_be_read_offer_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCOMPILE_BUDGET", "many")
    assert completing.runs("") == []
