"""Whole screens as text, of recorded runs: every mode at three sizes in both glyph sets."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui import regions, review, tuning
from agentcompile.tui.decided import changes
from agentcompile.tui.frame import ask_line, frame
from agentcompile.tui.grid import GAP, Column, fitted
from agentcompile.tui.ink import Ink, shaped
from agentcompile.tui.locking import COLUMNS as LOCK_COMPARED
from agentcompile.tui.scene import LEAST, Ask, Replay, Scene, View
from agentcompile.tui.screens import SCREENS
from agentcompile.tui.searching import COLUMNS as SEARCHED
from agentcompile.tui.trials import short
from recorded import BY_NAME, GOLDENS, run_directory, scene, text
from rich.cells import cell_len

from agentcompile.events import StageStarted
from agentcompile.ir.trial import Kernel
from agentcompile.runs.progress import fold
from agentcompile.runs.rows import changed
from tests.walked import Walked

SIZES = ((80, 24), (120, 36), (160, 48))
RUNS = ("stopped", "finished", "reviewed")


@pytest.fixture(scope="module", params=RUNS)
def recorded_scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Scene]:
    folder = tmp_path_factory.mktemp("run") / "run"
    return request.param, scene(run_directory(folder, request.param))


def held(name: str, found: str) -> None:
    """Compare with the golden `name`; the variable GOLDENS=write makes it anew."""
    file = GOLDENS / f"{name}.txt"
    if os.environ.get("GOLDENS") == "write":
        file.write_text(found)
    assert found == file.read_text(), f"{file}: look at the difference; GOLDENS=write accepts it"


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_every_mode_looks_as_it_did(recorded_scene: tuple[str, Scene], size: tuple[int, int], ascii: bool) -> None:
    name, known = recorded_scene
    screens = []
    for mode in BY_NAME:
        view = View(width=size[0], height=size[1], mode=mode)
        screens.append(f"== {mode}\n" + text(known, view, ascii=ascii))
        if size == (80, 24):
            screens.append(f"== {mode}, detail\n" + text(known, View(mode=mode, detail=True), ascii=ascii))
    held(f"{name}-{size[0]}x{size[1]}-{'ascii' if ascii else 'unicode'}", "".join(screens))


@pytest.mark.parametrize("mode", BY_NAME)
@pytest.mark.parametrize("size", [(60, 16), (79, 24), (100, 30), (119, 40), (200, 60)])
@pytest.mark.parametrize("ascii", [False, True])
def test_every_line_is_exactly_as_wide_as_the_screen_and_the_last_one_names_help_and_quit(
    recorded_scene: tuple[str, Scene], mode: str, size: tuple[int, int], ascii: bool
) -> None:
    view = View(width=size[0], height=size[1], mode=mode)
    lines = frame(recorded_scene[1], view, Ink(ascii=ascii))
    assert len(lines) == size[1]
    assert {cell_len(line.plain) for line in lines} == {size[0]}
    assert lines[-1].plain.rstrip().endswith("? help  q quit")
    assert not ascii or all(line.plain.isascii() for line in lines)


@pytest.mark.parametrize("columns", [*(screen.columns(Scene(), View()) for screen in SCREENS), SEARCHED, LOCK_COMPARED])
def test_every_table_has_room_for_the_columns_that_it_keeps(columns: tuple[Column, ...]) -> None:
    """Nothing that a person decides by is cut off at the right, down to the smallest screen."""
    for width in range(LEAST[0], 200):
        kept = fitted(columns, width - GAP)
        assert sum(cells for _, cells in kept) + GAP * (len(kept) - 1) <= width - GAP, width
    assert {"state", "region", "best", "ratio"} <= _heads(regions.COLUMNS)
    assert {"state", "candidate", "median", "ratio"} <= _heads(tuning.COLUMNS)
    assert {"state", "change", "visits", "ratio"} <= _heads(SEARCHED)
    assert {"region", "runs", "ratio", "decision"} <= _heads(review.COLUMNS)


def _heads(columns: tuple[Column, ...]) -> set[str]:
    return {columns[at].head for at, _ in fitted(columns, LEAST[0] - GAP)}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_review_leaves_no_parameter_out_and_has_room_for_three_whole_names(
    recorded_scene: tuple[str, Scene], size: tuple[int, int]
) -> None:
    known = recorded_scene[1]
    shown = text(known, View(width=size[0], height=size[1], mode="review"))
    for change in changes(known.state):
        if isinstance(change.choice, Kernel):
            point = change.choice.candidate
            rows = (line.partition("│")[0] for line in shown.splitlines())
            (row,) = (row for row in rows if point.region[:6] in row and "→" in row)
            assert row.count("=") == len(point.params)
            assert len(point.params) > 3 or short(point.label) in row


@pytest.mark.parametrize("answer", ["x" * 200, "表" * 200, "é表" * 100])
@pytest.mark.parametrize("at", [0, 7, 200])
def test_the_place_where_typing_goes_on_is_always_on_the_screen(answer: str, at: int) -> None:
    for width in (60, 80, 120):
        ask = Ask(action="reject", title="Why not this one?", text=answer, at=min(at, len(answer)))
        shown = shaped([ask_line(ask, width, Ink())], width, 1, Ink())[0]
        assert cell_len(shown.plain) == width
        assert [text for text, style in shown.spans if style == "bar"] == [answer[at : at + 1] or " "]


@pytest.mark.parametrize("size", [(59, 24), (80, 15), (20, 4), (1, 1)])
def test_a_terminal_that_is_too_small_is_told_so(recorded_scene: tuple[str, Scene], size: tuple[int, int]) -> None:
    lines = frame(recorded_scene[1], View(width=size[0], height=size[1]), Ink())
    assert len(lines) == size[1]
    assert size[1] < 4 or "60×16" in "".join(line.plain for line in lines).replace(" ", "")


def test_nothing_is_known_yet_and_every_mode_says_what_will_come(tmp_path: Path) -> None:
    for mode in BY_NAME:
        assert "yet" in text(Scene(), View(mode=mode))


def test_a_state_is_a_glyph_and_a_word(recorded_scene: tuple[str, Scene]) -> None:
    shown = text(recorded_scene[1], View(mode="regions"))
    rows = [line for line in shown.splitlines() if "@" in line]
    assert rows
    assert all(line[2] in "○◌◐●‖-" and line[4:10].replace(" ", "").isalpha() for line in rows)


@pytest.mark.parametrize("mode", BY_NAME)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_no_frame_walks_through_all_trials(recorded_scene: tuple[str, Scene], mode: str, size: tuple[int, int]) -> None:
    known = recorded_scene[1]
    trials = Walked(known.state.trials)
    trials.walks = 0
    many = replace(known, state=changed(known.state, trials=trials))
    assert frame(many, View(width=size[0], height=size[1], mode=mode), Ink())
    assert trials.walks == 0


def test_a_lock_by_itself_is_called_one_and_shows_the_stages_of_its_replay() -> None:
    alone = Scene(run="x.lock.toml", lock_path="x.lock.toml", lock_facts=(("target.arch", "x86_64"),))
    replay = Replay(what="replay", state=fold([StageStarted(stage="rebuild")]))
    assert "● a lock" in text(alone, View(mode="lock"))
    assert "◐ rebuild" in text(replace(alone, replay=replay), View(mode="lock")).splitlines()[1]
