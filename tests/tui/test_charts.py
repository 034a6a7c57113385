"""Charts: what each draws of recorded runs, at every size, and where they fall short says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui.charts import CHARTS
from agentcompile.tui.dots import Dots
from agentcompile.tui.frame import frame
from agentcompile.tui.ink import Ink
from agentcompile.tui.pointing import clicked, wheeled
from agentcompile.tui.roofline import Roof, points_of, roof_of, roofline
from agentcompile.tui.scene import Chart, Reached, Scene, View
from agentcompile.tui.spreads import best_by_time, distributions, timeline
from recorded import run_directory, scene, text
from rich.cells import cell_len
from test_keys import typed

from agentcompile.runs.persistent import GrowingSequence
from agentcompile.runs.rows import changed

INK = Ink()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(run_directory(tmp_path_factory.mktemp("run") / "run", "reviewed"))


def plain(lines: object) -> str:
    return "\n".join(line.plain for line in lines)  # type: ignore[attr-defined]


def busiest(known: Scene) -> str:
    """The region with the most trials."""
    return max(known.state.rows, key=lambda row: row.counts.total).region


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 36), (160, 48)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
def test_every_chart_fits_every_screen(known: Scene, size: tuple[int, int], ascii: bool) -> None:
    for which in range(len(CHARTS)):
        view = View(mode="tune", width=size[0], height=size[1], overlay=Chart(which=which), region=busiest(known))
        lines = frame(known, view, Ink(ascii=ascii))
        assert {cell_len(line.plain) for line in lines} == {size[0]}
        assert not ascii or all(line.plain.isascii() for line in lines)
        assert CHARTS[which].name in lines[4].plain


def test_the_key_leads_from_chart_to_chart_and_from_region_to_region(known: Scene) -> None:
    first = typed(known, View(mode="tune"), "p").view
    assert first.overlay == Chart(which=0)
    assert typed(known, first, "p").view.overlay == Chart(which=1)
    assert typed(known, first, "h").view.overlay == Chart(which=len(CHARTS) - 1)
    assert typed(known, first, "3").view.overlay == Chart(which=2)
    assert typed(known, first, "<escape>").view.overlay is None
    after = typed(known, first, "J").view
    assert after.region not in ("", first.region)
    assert typed(known, after, "K").view.region != after.region
    lines = text(known, first).splitlines()
    assert clicked(known, first, lines[4].index("latencies"), 4, INK).view.overlay == Chart(which=2)
    assert wheeled(known, first, 9, 9, 1, INK).view.overlay == Chart(which=1)
    assert "No region is known yet" in typed(Scene(), View(), "p").view.message


def test_the_roof_is_what_the_floors_imply() -> None:
    assert Roof(bytes=2.0).at(3.0) == 6.0
    assert Roof(bytes=2.0, flops=5.0).at(3.0) == 5.0
    assert roof_of(Scene().state) is None


def test_a_region_that_is_bound_by_arithmetic_gives_the_roof_its_flat_part(known: Scene) -> None:
    rows = known.state.rows
    bound = changed(rows[0], floor_ns=rows[0].floor_ns * 4)
    found = roof_of(changed(known.state, rows=(bound, *rows[1:])))
    assert found is not None
    assert found.flops == pytest.approx(bound.flops / bound.floor_ns)
    assert roof_of(known.state) == Roof(bytes=max(row.bytes / row.floor_ns for row in rows))


def test_no_candidate_lies_above_the_roof_and_pytorch_lies_below_the_best(known: Scene) -> None:
    region = busiest(known)
    roof = roof_of(known.state)
    assert roof is not None
    own = [point for point in points_of(known.state, region) if point.mark[1] != "dim"]
    assert all(point.rate <= roof.at(point.intensity) * 1.01 for point in own)
    pytorch, best = own[0], own[-1]
    assert (pytorch.mark[0], best.mark[0]) == ("○", "●")
    drawn = plain(roofline(known.state, region, 76, 16, INK)).splitlines()
    heights = {mark: next(y for y, line in enumerate(drawn) if mark in line) for mark in "●○"}
    assert (heights["●"] < heights["○"]) == (best.rate > pytorch.rate)
    assert "Nothing with arithmetic" in plain(roofline(known.state, "", 76, 16, INK))


def test_the_best_so_far_rises_by_the_clock_and_the_step_falls() -> None:
    course = GrowingSequence(
        [
            Reached(at_s=1.0, region="r", value=1.5),
            Reached(at_s=2.0, region="r", value=1.2),
            Reached(at_s=3.0, region="r", value=3.0),
            Reached(at_s=3.5, region="", value=4e6),
            Reached(at_s=4.0, region="", value=2e6),
        ]
    )
    drawn = plain(best_by_time(Scene(course=course), "r", 60, 16, INK))
    for label in ("3 measurements", "3.00×", "1.50×", "4 ms", "2 ms", "4 s"):
        assert label in drawn
    alone = plain(best_by_time(Scene(course=course), "another", 60, 16, INK))
    assert "best step that was known" in alone
    assert "×" not in alone
    assert "No candidate was measured" in plain(best_by_time(Scene(), "r", 60, 16, INK))


def test_latencies_stand_beside_one_another_the_fastest_first(known: Scene) -> None:
    drawn = plain(distributions(known.state, busiest(known), 100, 30, INK)).splitlines()
    rows = [line for line in drawn if "(" in line]
    assert len(rows) >= 3
    assert any(glyph in "".join(rows) for glyph in "▂▃▄▅▆▇█")
    medians = [line.index("│") for line in rows]
    assert medians == sorted(medians)
    few = plain(distributions(known.state, busiest(known), 100, 5, INK))
    assert "the fastest 1 of" in few
    assert "No candidate was measured" in plain(distributions(known.state, "", 100, 30, INK))


def test_the_step_is_a_bar_for_each_region_in_the_order_of_the_graph(known: Scene) -> None:
    drawn = plain(timeline(known.state, 116, 30, INK)).splitlines()
    bars = [line for line in drawn if "@" in line]
    assert bars[0].startswith("embedding@")
    starts = [min(line.find(glyph) for glyph in "█░" if glyph in line) for line in bars]
    assert starts == sorted(starts)
    assert "the step as a whole" in drawn[0]
    assert "… " in plain(timeline(known.state, 116, 7, INK))
    assert "No plan yet" in plain(timeline(Scene().state, 116, 30, INK))


def test_dots_outside_the_field_are_left_out_and_a_line_has_no_gaps() -> None:
    field = Dots(4, 2)
    field.dot(-1, 0, "accent")
    field.dot(0, 99, "accent")
    field.glyph(99, 0, "●", "good")
    assert not plain(field.lines(INK)).strip()
    field.line(lambda x: 0 if x < 4 else 7, "accent")
    assert all(any(glyph != " " for glyph in line.plain) for line in field.lines(INK))
    gap = Dots(4, 1)
    gap.line(lambda x: None, "accent")
    assert not plain(gap.lines(INK)).strip()


def test_a_time_that_is_measured_is_noted_with_the_clock_of_the_run(known: Scene, tmp_path: Path) -> None:
    times = [one.at_s for one in known.course]
    assert times == sorted(times)
    assert len(times) >= 20
    assert replace(known).course is known.course
    assert scene(run_directory(tmp_path / "run", "reviewed", upto=5)).course == GrowingSequence[Reached]()
