"""The mouse: what a click or the wheel does at each cell, held against what is drawn there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui import screen
from agentcompile.tui.frame import frame
from agentcompile.tui.ink import Ink
from agentcompile.tui.pointing import NOTCH, clicked, wheeled
from agentcompile.tui.scene import Ask, Page, Palette, Scene, View
from agentcompile.tui.start import clicked as clicked_at_start
from agentcompile.tui.start import frame as start_frame
from recorded import BY_NAME, run_directory, scene, session
from test_app import app_of, driven, settled, shown
from test_keys import typed
from test_start import PAGE
from textual.pilot import Pilot

SIZES = [(60, 16), (80, 24), (120, 36), (160, 48)]
INK = Ink()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(run_directory(tmp_path_factory.mktemp("run") / "run", "finished"))


def drawn(known: Scene, view: View) -> list[str]:
    return [line.plain for line in frame(known, view, INK)]


def spot(known: Scene, view: View, text: str) -> tuple[int, int]:
    """The cell where a text is drawn, the last line first."""
    for y, line in reversed(list(enumerate(drawn(known, view)))):
        if text in line:
            return line.index(text), y
    raise AssertionError(f"{text!r} is not drawn")


def click(known: Scene, view: View, text: str) -> View:
    return clicked(known, view, *spot(known, view, text), INK).view


@pytest.mark.parametrize("mode", BY_NAME)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_click_on_any_row_puts_the_cursor_there(known: Scene, mode: str, size: tuple[int, int]) -> None:
    view = View(width=size[0], height=size[1], mode=mode)
    spec = BY_NAME[mode]
    found = screen.rows(known, view, spec)
    at = screen.cursor(found, view, spec)
    lines = drawn(known, view)
    table = screen.table_width(view, spec.side)
    (cursor,) = (
        y for y, line in enumerate(lines) if line.startswith("▌") and (mode != "tune" or y > 20 or not view.bench)
    )
    hits = 0
    for by in (-1, 1, 2):
        if not 0 <= at + by < len(found) or not lines[cursor + by][2:table].strip():
            continue
        after = clicked(known, view, 5, cursor + by, INK).view
        assert screen.key_of(known, after, spec) == found[at + by].key
        hits += 1
    assert hits


def test_a_click_on_the_chosen_row_opens_it(known: Scene) -> None:
    view = View(mode="log")
    x, y = spot(known, view, "▌")
    assert clicked(known, view, x + 4, y, INK).view.detail
    wide = View(width=120, height=36)
    assert click(known, wide, "▌").mode == "tune"


def test_the_names_of_the_screens_and_the_keys_of_the_last_line_do_what_they_say(known: Scene) -> None:
    assert click(known, View(), "3 Review").mode == "review"
    assert click(known, View(), "5 Log").mode == "log"
    assert isinstance(click(known, View(), "/ filter").overlay, Ask)
    assert click(known, View(), "] sort").sort["regions"] == 0
    assert isinstance(click(known, View(), "? help").overlay, Page)
    (effect,) = clicked(known, View(), *spot(known, View(), "q quit"), INK).effects
    assert getattr(effect, "what", "") == "leave"
    opened = click(known, View(), "? help")
    assert click(known, opened, "? help").overlay is None


def test_every_cell_of_the_last_line_presses_the_key_that_is_drawn_there(known: Scene) -> None:
    view = View(mode="tune", width=120, height=36)
    line = drawn(known, view)[-1]
    helped = [x for x in range(120) if isinstance(clicked(known, view, x, 35, INK).view.overlay, Page)]
    assert line[helped[0] :].startswith("? help")
    assert line[helped[-1] + 1 :].startswith("q quit")


def test_a_click_on_a_head_sorts_by_that_column_and_again_as_before(known: Scene) -> None:
    x, y = spot(known, View(), "region   ")
    after = clicked(known, View(), x, y, INK).view
    assert after.sort["regions"] == 1
    assert "region▼" in drawn(known, after)[y]
    assert clicked(known, after, x, y, INK).view.sort["regions"] == -1


def test_a_click_in_the_other_table_of_the_workbench_leads_there(known: Scene) -> None:
    view = View(width=160, height=48)
    after = click(known, view, "heads(")
    assert after.mode == "tune"
    assert "heads(" in next(line for line in drawn(known, after)[25:] if line.startswith("▌"))
    assert clicked(known, after, 5, 9, INK).view.mode == "regions"
    detail = clicked(known, view, 140, 20, INK).view
    assert detail.focus == "detail"


def test_the_wheel_scrolls_what_is_under_it(known: Scene) -> None:
    view = View(width=160, height=48)
    found = screen.rows(known, view, BY_NAME["regions"])
    after = wheeled(known, view, 5, 10, 1, INK).view
    assert after.region == found[NOTCH].key
    assert wheeled(known, after, 5, 10, -1, INK).view.region == found[0].key
    assert wheeled(known, view, 140, 10, 1, INK).view.top == NOTCH
    assert wheeled(known, view, 140, 10, -1, INK).view.top == 0
    page = replace(View(), overlay=Page(title="t", kind="text", lines=tuple(map(str, range(90)))))
    scrolled = wheeled(known, page, 5, 10, 1, INK).view.overlay
    assert isinstance(scrolled, Page)
    assert scrolled.top == NOTCH


def test_a_list_over_the_screen_is_clicked_too(known: Scene) -> None:
    asked = typed(known, View(), ":").view
    first = click(known, asked, "the candidates of one region")
    assert isinstance(first.overlay, Palette)
    assert first.overlay.cursor == 1
    assert click(known, first, "the candidates of one region").mode == "tune"
    assert typed(known, View(), "/a").view == clicked(known, typed(known, View(), "/a").view, 5, 2, INK).view


def test_the_start_page_is_clicked() -> None:
    view = View()
    lines = [line.plain for line in start_frame(PAGE, view, INK)]
    at = next(y for y, line in enumerate(lines) if "sample.lock.toml" in line)
    assert clicked_at_start(PAGE, view, 9, at, INK) == ("down",) * 3
    assert clicked_at_start(PAGE, view, 9, at - 3, INK) == ("enter",)
    assert clicked_at_start(PAGE, view, lines[-1].index("t theme"), 23, INK) == ("t",)
    assert clicked_at_start(PAGE, view, 1, at + 4, INK) == ()


def test_the_app_takes_clicks_and_the_wheel(tmp_path: Path) -> None:
    async def walk(pilot: Pilot[int], app: object) -> None:
        lines = shown(one).splitlines()
        await pilot.click(offset=(lines[2].index("2 Tune"), 2))
        await settled(pilot)
        assert "candidate" in shown(one)
        row = next(y for y, line in enumerate(shown(one).splitlines()) if "heads(" in line)
        await pilot.click(offset=(20, row))
        await settled(pilot)
        assert shown(one).splitlines()[row].startswith("▌")
        await pilot._post_mouse_events([MouseScrollUp], offset=(20, row))
        await settled(pilot)
        assert not shown(one).splitlines()[row].startswith("▌")
        last = shown(one).splitlines()[-1]
        await pilot.click(offset=(last.index("q quit"), 23))
        await settled(pilot)

    from textual.events import MouseScrollUp

    one = app_of(session(run_directory(tmp_path / "run", "finished")))
    driven(one, walk)
    assert one.return_value == 0
