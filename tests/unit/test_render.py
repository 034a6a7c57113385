from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest
from runs import PLAN, STARTED, WHOLE

from agentcompile.cli.render import (
    Format,
    Reporter,
    Screen,
    columns,
    complain,
    tee,
)
from agentcompile.events import DriftFound, PlanAdmitted, decode
from agentcompile.ir.region import Regime
from agentcompile.runs.progress import fold
from agentcompile.runs.tables import Table


def screen(
    format: Format = "text", *, quiet: bool = False, redraws: bool = False
) -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Screen(out=out, err=err, format=format, quiet=quiet, redraws=redraws), out, err


def shown(format: Format = "text", *, quiet: bool = False, redraws: bool = False) -> tuple[str, str]:
    paper, out, err = screen(format, quiet=quiet, redraws=redraws)
    with Reporter(paper) as reporter:
        for event in WHOLE:
            reporter(event)
    assert reporter.state == fold(WHOLE)
    return out.getvalue(), err.getvalue()


def test_without_a_terminal_there_is_a_line_a_stage_on_stderr() -> None:
    out, err = shown()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].split() == ["capture", "1.5", "s", "88", "operators"]
    assert [line.split()[0] for line in lines] == ["capture", "search", "plan", "warning:", "wrote"]


def test_a_prompts_plan_is_told_by_its_chunk() -> None:
    paper, _, err = screen()
    plan = replace(
        PLAN,
        regime=Regime(phase="prefill", context=(1, 2048)),
        step_ns=3_100_000,
        baseline_ns=4_000_000,
        log_ratio=0.2549,
        half_width=0.004,
        chunk=256,
    )
    with Reporter(paper) as reporter:
        reporter(PlanAdmitted(plan=plan))
    said = "3.1 ms a chunk of 256, baseline 4 ms: 1.29× (1.29–1.30)"
    assert err.getvalue() == f"plan       {plan.regime.name}: {said}\n"


def test_on_a_terminal_there_is_a_bar_and_it_goes_away() -> None:
    out, err = shown(redraws=True)
    assert out == ""
    assert "88 operators" in err
    assert "wrote x.lock.toml" in err


def test_events_are_lines_of_json_on_stdout() -> None:
    out, _ = shown("events")
    assert tuple(decode(json.loads(line)) for line in out.splitlines()) == WHOLE


def test_quiet_says_nothing_even_on_a_terminal() -> None:
    assert shown(quiet=True, redraws=True) == ("", "")


def test_text_and_json_do_not_share_stdout() -> None:
    paper, out, _ = screen("json")
    paper.text("for people")
    paper.json({"for": "programs"})
    assert json.loads(out.getvalue()) == {"for": "programs"}


def test_drift_is_shown_with_both_values_and_the_repair() -> None:
    paper, _, err = screen()
    with Reporter(paper) as reporter:
        reporter(DriftFound(field="target.threads", locked="2", here="4", grade="remeasure", remedy="--threads 2"))
    assert err.getvalue() == "drift: target.threads: locked 2, here 4 (remeasure); --threads 2\n"


def test_an_error_is_cleaned_and_has_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    complain("bad \x1b[31mtensor\u202e", "look there", err=sys.stderr)
    assert capsys.readouterr().err == "error: bad tensor\nhint: look there\n"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    table = Table(heads=("a", "n"), rows=[("long", "1"), ("b", "22")], right=(1,))
    assert columns(table) == ["a      n", "long   1", "b     22"]


def test_an_empty_table_prints_nothing() -> None:
    paper, out, _ = screen()
    paper.table(Table(heads=("a",), rows=[]))
    assert out.getvalue() == ""


def test_a_tee_hands_every_event_on_in_order() -> None:
    seen: list[str] = []
    tee(lambda e: seen.append("a" + e.kind), lambda e: seen.append("b" + e.kind))(STARTED)
    assert seen == ["arun-started", "brun-started"]
