from __future__ import annotations

import io
import json
import sys

import pytest
from runs import FOUND, KERNEL, PLAN, REGION, STARTED, WHOLE, trial

from agentcompile.events import ChoiceMade, DriftFound, TrialFinished, decode
from agentcompile.ir.trial import Fallback
from agentcompile.progress import fold
from agentcompile.render import (
    REGION_HEADS,
    Format,
    Reporter,
    Screen,
    columns,
    complain,
    duration,
    plan_line,
    region_rows,
    size,
    state_json,
    tee,
)


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


def test_the_region_table_says_what_was_chosen_and_by_how_much() -> None:
    (row,) = region_rows(fold(WHOLE))
    assert dict(zip(REGION_HEADS, row, strict=True)) == {
        "region": "linear@aaaaaa", "sites": "7", "share": "60.0%", "floor": "500 ns", "pytorch": "1.65 µs",
        "best": "1 µs", "ratio": "1.65×", "choice": "linear/rows(ROWS=4)",
    }  # fmt: skip


def test_a_fallback_shows_its_reason_and_what_is_unknown_is_a_dash() -> None:
    state = fold([STARTED, FOUND, ChoiceMade(region=REGION, choice=Fallback(reason="nothing was faster"))])
    assert region_rows(state)[0][4:] == ("-", "-", "-", "PyTorch: nothing was faster")


def test_a_plan_is_one_line_with_its_interval() -> None:
    assert plan_line(PLAN) == "decode b1 c1-64: 100 µs a step, baseline 250 µs: 2.46× (2.41–2.51)"


def test_drift_is_shown_with_both_values_and_the_repair() -> None:
    paper, _, err = screen()
    with Reporter(paper) as reporter:
        reporter(DriftFound(field="target.threads", locked="2", here="4", grade="remeasure", remedy="--threads 2"))
    assert err.getvalue() == "drift: target.threads: locked 2, here 4 (remeasure); --threads 2\n"


def test_a_run_is_one_json_value_without_its_single_trials() -> None:
    state = fold([*WHOLE, TrialFinished(trial=trial(9))])
    data = json.loads(json.dumps(state_json(state)))
    assert data["status"] == "finished"
    assert data["regions"][0]["choice"]["kind"] == KERNEL.kind
    assert data["trials"]["measured"] == 3


def test_an_error_is_cleaned_and_has_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    complain("bad \x1b[31mtensor\u202e", "look there", err=sys.stderr)
    assert capsys.readouterr().err == "error: bad tensor\nhint: look there\n"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns(("a", "n"), [("long", "1"), ("b", "22")], right=(1,)) == ["a      n", "long   1", "b     22"]


def test_units_are_the_ones_that_read_best() -> None:
    assert [duration(ns) for ns in (812, 14_230, 341_000, 3_410_000, 1.2e9)] == [
        "812 ns",
        "14.2 µs",
        "341 µs",
        "3.41 ms",
        "1.2 s",
    ]
    assert [size(n) for n in (12, 1_500, 2_000_000, 1_190_000_000)] == ["12 B", "1.5 kB", "2 MB", "1.19 GB"]


def test_a_tee_hands_every_event_on_in_order() -> None:
    seen: list[str] = []
    tee(lambda e: seen.append("a" + e.kind), lambda e: seen.append("b" + e.kind))(STARTED)
    assert seen == ["arun-started", "brun-started"]
