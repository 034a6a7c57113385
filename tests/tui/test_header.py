"""The lines around every screen: what the header tells of a run that works, and what is said when the app is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from agentcompile.tui import compiler
from agentcompile.tui.chrome import facts_of, life_of
from agentcompile.tui.overlapping import overlaps, whole
from agentcompile.tui.scene import WORKS, Life, Scene, View
from recorded import run_directory, scene, session, text

from agentcompile.events import (
    AdviserCalled,
    AdviserReplied,
    LockWritten,
    ReviewOpened,
    RunFailed,
    RunFinished,
    RunStarted,
    SearchProgress,
    StageFinished,
    StageStarted,
    Steered,
)
from agentcompile.ir.advice import Usage
from agentcompile.runs.progress import State, fold
from agentcompile.runs.rows import changed
from agentcompile.runs.status import Status, status_of
from tests.unit.runs import TARGET, WHOLE

USED = Usage(calls=1, prompt_tokens=12_000, completion_tokens=345, microdollars=31_000)
PACE = SearchProgress(
    elapsed_s=30.0, budget_s=120.0, candidates=34, step_ns=369_000, rounds=90, disturbed=0.05
)  # fmt: skip
WORKING = (
    RunStarted(model="models/sample", target=TARGET, options="o", version="0", budget_trials=160),
    *WHOLE[4:7],
    StageStarted(stage="search"),
    *WHOLE[8:10],
    AdviserCalled(call=1, booked=USED, way="text"),
    AdviserReplied(call=1, booked=USED, used=USED, result="an answer"),
    PACE,
)


def live(state: State) -> Scene:
    return Scene(run="a-run", path="RUN", state=state, life="live", elapsed_s=31.0)


def test_a_search_tells_candidates_of_the_budget_the_best_step_the_time_left_the_machine_and_the_cost() -> None:
    told = facts_of(live(fold(WORKING)))
    assert told[:3] == ["sample", "cpu x86_64", "34/160 candidates"]
    assert told[3:] == ["step ~369 µs", "ETA 1:30", "quiet", "12.3k tok 3.1¢"]
    busy = replace(PACE, disturbed=0.4, measured=True, step_ns=150_000)
    told = facts_of(live(fold([busy], fold(WORKING))))
    assert {"step 150 µs", "busy 40%"} <= set(told)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_what_the_first_line_has_no_room_for_stands_beside_the_names_of_the_screens(width: int) -> None:
    known = live(fold(WORKING))
    lines = text(known, View(width=width, height=36)).splitlines()
    for fact in facts_of(known):
        assert fact in lines[0] or fact in lines[2], fact
    assert "◐search" in lines[1].replace(" ", "")
    sorted_by = text(known, View(width=width, height=36, sort={"regions": 1})).splitlines()
    assert sorted_by[2].endswith("by region")


def test_a_run_that_ended_tells_how_long_it_took_and_no_time_left(tmp_path: Path) -> None:
    known = scene(run_directory(tmp_path / "run", "finished"))
    assert facts_of(known) == ["sample", "cpu x86_64", "202 trials", "1 min 50 s"]


def test_a_lock_that_is_being_written_says_how_far_its_checks_are() -> None:
    before = changed(fold(WHOLE[:-2]), status="running")
    events = [
        StageFinished(stage="admit", seconds=4.2),
        StageStarted(stage="verify", detail="module runs it in float32"),
    ]
    lines = text(live(fold(events, before)), View(mode="lock", width=120, height=36)).splitlines()
    assert "Writing it: ◐ check: module runs it in float32" in lines[5]
    assert "◐ check" in lines[1]
    reviewed = changed(fold(events[:1], before), status="review")
    starting = text(live(reviewed), View(mode="lock", width=120, height=36))
    assert "Writing it: ◐ starting" in starting
    assert "The compiler starts" in starting
    written = fold([*events, LockWritten(path="x", digest="d" * 64)], before)
    assert "Writing it" not in text(live(written), View(mode="lock"))


def test_the_last_words_name_the_run_and_the_commands_that_attach_and_resume(tmp_path: Path) -> None:
    for name, status, resumes in (("finished", "done", False), ("stopped", "failed", True)):
        path = run_directory(tmp_path / name, name)
        one = session(path)
        one.poll(5.0)
        said = one.farewell()
        assert said[0] == f"run a-run: {status}"
        assert said[1] == f"attach: agentcompile tui {path}"
        assert (said[2:] == (f"resume: agentcompile compile --resume --run-dir {path}",)) is resumes


def test_a_run_that_is_left_before_it_was_read_says_how_it_stands_and_no_status_before_that(tmp_path: Path) -> None:
    one = session(run_directory(tmp_path / "run", "finished"))
    assert "◌ reading" in text(one.scene, View())
    one.poll(0.0)
    assert one.scene.reading
    assert one.farewell()[0] == "run a-run: done"
    again = session(run_directory(tmp_path / "again", "stopped"), speed=10.0)
    again.poll(0.0)
    assert "again at 10×" in text(again.scene, View())
    assert again.farewell()[0] == "run a-run: failed"


STATES: tuple[tuple[Life, State, Status], ...] = (
    ("live", fold(WORKING), "running"),
    ("paused", fold([*WORKING, Steered(what="pause")]), "paused"),
    ("ended", fold([*WORKING, ReviewOpened(regions=())]), "waiting for review"),
    ("ended", fold([*WORKING, RunFailed(exit_code=143, message="a signal")]), "stopped"),
    ("lost", fold(WORKING), "interrupted"),
    ("ended", State(), "interrupted"),
    ("ended", fold([*WORKING, RunFailed(exit_code=4, message="no")]), "failed"),
    ("ended", fold([*WORKING, RunFinished()]), "done"),
)


@pytest.mark.parametrize(("life", "state", "word"), STATES)
def test_the_header_has_the_word_of_the_command_line(life: Life, state: State, word: Status) -> None:
    known = Scene(run="a-run", path="RUN", state=state, life=life)
    assert life_of(known)[0].partition(" ")[2] == status_of(state, alive=life in WORKS) == word
    assert {word for _, _, word in STATES} == set(get_args(Status))


def test_the_report_is_written_as_the_verb_does_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_directory(tmp_path / "run", "finished")
    one, opened = session(path), tmp_path / "opened"
    monkeypatch.setenv("PATH", str(tmp_path))
    (effect,) = one.key("O", "O")
    assert one.view.message == "Writing the report …"
    assert one.act(effect).text == f"No program opens files here; the report is {path / 'report.html'}"
    assert (path / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    opener = tmp_path / "xdg-open"
    opener.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    opener.chmod(0o755)
    waits = compiler.show(path / "report.html")
    assert waits is not None
    waits.join(20)
    assert opened.read_text() == f"{path / 'report.html'}\n"
    assert one.act(effect).text == f"Opened {path / 'report.html'}"
    (path / "options.json").unlink()
    refused = one.act(effect)
    assert not refused.ok
    assert "holds no run" in refused.text


def test_shares_of_a_plan_sum_to_one_and_every_other_region_stands_below_one_of_them(tmp_path: Path) -> None:
    for name in ("finished", "reviewed"):
        state = scene(run_directory(tmp_path / name, name)).state
        found = overlaps(state)
        assert round(sum(found.shares.values()), 9) == 1.0
        assert set(found.shares) | set(found.above) == {row.region for row in state.rows}
        for region, above in found.above.items():
            own, top = state.row(region), state.row(above)
            assert own is not None
            assert top is not None
            assert set(own.covers) & set(top.covers)
    without = [changed(row, covers=()) for row in state.rows]
    assert not any(overlaps(changed(state, rows=tuple(without))).above.values())


def test_regions_without_overlap_stand_in_for_a_plan_before_there_is_one(tmp_path: Path) -> None:
    state = scene(run_directory(tmp_path / "run", "stopped")).state
    found = overlaps(state)
    assert not found.planned
    seen: set[int] = set()
    for region in found.shares:
        row = state.row(region)
        assert row is not None
        assert not seen & set(row.covers)
        seen |= set(row.covers)


def test_rounded_shares_lose_nothing() -> None:
    assert whole([1.0, 1.0, 1.0]) == [0.334, 0.333, 0.333]
    assert round(sum(whole([3.1, 0.004, 7.7, 1e-9])), 9) == 1.0
    assert whole([0.0, 0.0]) == [0.0, 0.0]
