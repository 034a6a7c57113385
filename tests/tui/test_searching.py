"""The search as Tune shows it: pictures of a tree, of rungs and of a run without proposals, and how it is reached."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from agentcompile.tui import screen, searching, tuning
from agentcompile.tui.backdrop import AHEAD, Backdrop, backdrop
from agentcompile.tui.branches import Branch, fitted
from agentcompile.tui.frame import frame
from agentcompile.tui.ink import Ink
from agentcompile.tui.plotting import AROUND, legend, plot
from agentcompile.tui.scene import Scene, Send, View
from agentcompile.tui.searching import trace_text
from recorded import text
from rich.cells import cell_len
from test_keys import typed
from test_screens import held

from agentcompile.control.commands import Rerun
from agentcompile.events import AdviceTaken, Event, Proposed
from agentcompile.ir.advice import Advice as Answer
from agentcompile.ir.advice import Claim
from agentcompile.ir.search_events import Transformation
from agentcompile.runs.progress import fold
from agentcompile.runs.recorded_searches import RecordedSearch, RecordedSearches
from agentcompile.runs.searches import Curve
from agentcompile.runs.searches import Search as Found
from tests.unit import runs, searched
from tests.unit.searched import DISTURBED, node, point, proposed, tried

SEARCHES = {"tree": searched.tree(60), "rungs": searched.halving(), "unrecorded": searched.unrecorded()}
SIZES = ((80, 24), (120, 36), (160, 48))
FIT = View(mode="tune", search="fit")


def known(events: list[Event], **more: object) -> Scene:
    return Scene(run="a-run", path="RUN", state=fold(searched.run(events)), **more)  # type: ignore[arg-type]


SCENES = {name: known(events) for name, events in SEARCHES.items()}


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_search_looks_as_it_did(size: tuple[int, int], ascii: bool) -> None:
    pictures = []
    for name, scene in SCENES.items():
        view = replace(FIT, width=size[0], height=size[1])
        pictures.append(f"== {name}\n" + text(scene, view, ascii=ascii))
        if size == (80, 24):
            pictures.append(f"== {name}, detail\n" + text(scene, typed(scene, view, "jj<enter>").view, ascii=ascii))
    held(f"search-{size[0]}x{size[1]}-{'ascii' if ascii else 'unicode'}", "".join(pictures))


def recorded(space: str, strategy: str, *steps: tuple[int, float]) -> RecordedSearch:
    return RecordedSearch(space=space, strategy=strategy, evaluations=200, optimum_ns=100.0, steps=steps)


RECORDED = RecordedSearches(
    searches=(
        recorded("gemm-gpu", "random", (2, 190.0), (18, 140.0), (40, 120.0)),
        recorded("gemm-gpu", "kernel-tuner:genetic_algorithm", (1, 300.0), (9, 150.0), (33, 101.0)),
        recorded("gemm-gpu", "evolutionary:population=20", (1, 200.0), (6, 130.0), (20, 100.0)),
        recorded("convolution-gpu", "random", (3, 200.0), (30, 150.0)),
        recorded("convolution-gpu", "kernel-tuner:genetic_algorithm", (1, 180.0), (25, 110.0)),
        recorded("convolution-gpu", "evolutionary:population=20", (1, 220.0), (12, 105.0)),
    )
)


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_search_before_recorded_ones_looks_as_it_did(size: tuple[int, int], ascii: bool) -> None:
    view = replace(FIT, width=size[0], height=size[1])
    scenes = {name: replace(scene, recorded=RECORDED) for name, scene in SCENES.items()}
    pictures = [f"== {name}\n" + text(scene, view, ascii=ascii) for name, scene in scenes.items()]
    held(f"search-recorded-{size[0]}x{size[1]}-{'ascii' if ascii else 'unicode'}", "".join(pictures))


def test_recorded_curves_end_with_the_search_or_a_little_after_it_began() -> None:
    for own, last in ((Curve(best=(2.0,) * 3), AHEAD), (Curve(best=(2.0,) * 60), 60)):
        behind = backdrop(RECORDED, "linear@aaaaaa", own)
        assert {len(one.best) for one in behind.curves} == {last}
        assert behind.about == "recorded: mean of 2 spaces, optimum drawn at 2.00×"
    assert backdrop(RECORDED, "gemm@gpu", own).about == "recorded: gemm-gpu, optimum drawn at 2.00×"
    assert [one.best[-1] for one in backdrop(RECORDED, "gemm@gpu", own).curves] == pytest.approx([2 / 1.2, 2 / 1.01, 2])


def test_nothing_is_drawn_behind_a_search_that_measured_nothing() -> None:
    for own in (Curve(), Curve(best=(0.0, 0.0))):
        assert backdrop(RECORDED, "linear@aaaaaa", own) == Backdrop()
    assert backdrop(None, "linear@aaaaaa", Curve(best=(1.0,))) == Backdrop()
    scene = known([tried(point(1), verdict=DISTURBED)], recorded=RECORDED)
    assert "No candidate was measured yet" in text(scene, FIT)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("size", [(60, 16), (79, 24), (100, 30), (119, 40), (200, 60)])
@pytest.mark.parametrize("wanted", ["fit", "whole"])
def test_every_line_is_exactly_as_wide_as_the_screen(name: str, size: tuple[int, int], wanted: str) -> None:
    view = View(width=size[0], height=size[1], mode="tune", search=wanted)  # type: ignore[arg-type]
    for ascii, behind in itertools.product((False, True), (None, RECORDED)):
        lines = frame(replace(SCENES[name], recorded=behind), view, Ink(ascii=ascii))
        assert {cell_len(line.plain) for line in lines} == {size[0]}
        assert not ascii or all(line.plain.isascii() for line in lines)


def test_a_key_leads_to_the_search_to_all_of_it_and_back_to_the_candidates() -> None:
    scene, view = SCENES["tree"], View(mode="tune")
    assert "s search" in text(scene, view).splitlines()[-1]
    fit = typed(scene, view, "s").view
    assert "… 13 more" in text(scene, fit)
    whole = typed(scene, fit, "s").view
    assert len(searching.entries(scene, whole)) == 60
    assert "more" not in text(scene, whole)
    assert typed(scene, whole, "s").view.search == ""
    assert typed(scene, fit, "<escape>").view.search == ""
    assert "visits" in "\n".join(line.plain for line in frame(scene, fit, Ink()))
    unrecorded = typed(SCENES["unrecorded"], view, "ss").view
    assert unrecorded.search == "", "where nothing is left out there is nothing more to show"


def test_rows_of_the_search_are_candidates_and_keys_act_on_them() -> None:
    scene = replace(SCENES["tree"], life="live")
    view = typed(scene, View(mode="tune"), "sjj").view
    key = screen.key_of(scene, view, tuning.SCREEN)
    assert any(one.candidate.id == key for one in scene.state.trials)
    (effect,) = typed(scene, view, "r").effects
    assert effect == Send(command=Rerun(candidate=key))
    assert typed(scene, view, "]").view.sort["tune"] == 0
    assert typed(scene, typed(scene, view, "]").view, "s").view.sort["tune"] == -1


@pytest.mark.parametrize(("name", "keys"), [("rungs", "s"), ("tree", "sG")])
def test_a_row_of_several_candidates_lists_them_and_no_command_acts_on_it(name: str, keys: str) -> None:
    scene = replace(SCENES[name], life="live")
    view = typed(scene, View(mode="tune"), keys).view
    for key in "erv":
        assert "Select a candidate first" in typed(scene, view, key).view.message
    opened = text(scene, typed(scene, view, "<enter>").view)
    assert opened.count("rows(") >= 6


def test_a_candidate_that_waits_says_so_and_where_it_comes_from() -> None:
    first, second = point(4, 1), point(8, 1)
    step = Transformation(change="parameter", name="ROWS", value="8")
    scene = known([proposed(node(first)), tried(first), proposed(node(second, "changed", first, step))])
    view = replace(FIT, candidate=second.id)
    assert "○ waiting     ┗━" not in text(scene, view)
    assert "○ waiting     └─ROWS 4 → 8" in text(scene, view)
    opened = text(scene, replace(view, detail=True))
    assert "It waits to be timed" in opened
    assert "rows(ROWS=4, VEC=1)" in opened


def test_claims_are_counted_by_what_became_of_them() -> None:
    claims = tuple(
        Claim(topic="numerical", template="linear/rows", says="accumulates-in", value=str(at), standing=standing)
        for at, standing in enumerate(("confirmed", "refuted", "confirmed", "unverified"))
    )
    taken = AdviceTaken(region=runs.REGION, exchange="e", advice=Answer(label="a-model", claims=claims))
    scene = known([*SEARCHES["tree"], taken])
    assert "claims of a-model: 2 confirmed, 1 refuted, 1 unverified" in text(scene, FIT)


def test_nothing_is_folded_again_while_nothing_new_came() -> None:
    scene = SCENES["tree"]
    before = searching.searched(scene.state, runs.REGION)
    frame(scene, FIT, Ink())
    frame(scene, replace(FIT, candidate=before.path[-1]), Ink())
    assert searching.searched(scene.state, runs.REGION) is before


def test_a_region_without_a_trial_says_that_there_is_nothing_to_show() -> None:
    scene = known([])
    assert "Nothing was tried" in typed(scene, View(mode="tune"), "s").view.message
    assert "No candidate was measured yet" in text(scene, FIT)
    assert "No region yet" in text(Scene(), FIT)
    failed = known([tried(point(1), verdict=DISTURBED)])
    assert "No candidate was measured yet" in text(failed, FIT)


@pytest.mark.parametrize("ascii", [False, True])
def test_other_curves_are_faint_behind_the_own_one_and_named(ascii: bool) -> None:
    own = Curve(best=(1.0, 1.5, 2.0, 2.0), failed=(2,), unknown=(3,))
    behind = (Curve(name="random", best=(0.0, 1.1, 1.1, 1.1, 1.1, 1.3)), Curve(name="greedy", best=(1.2,) * 6))
    lines = plot(own, 60, 5, Ink(ascii=ascii), behind)
    assert len(lines) == 5 + AROUND
    styles = {style for line in lines[:5] for text, style in line.spans if text.strip()}
    assert styles == {"accent", "dim", "rule"}
    assert [one.plain.strip() for one in legend(behind, 60, 1, Ink(ascii=ascii))] == ["faint: random, greedy"]
    front = [line.plain[9:] for line in lines[:5]]
    glyphs = {glyph for line in front for glyph in line if glyph != " "}
    assert glyphs <= ({"*", "."} if ascii else {chr(0x2800 + bits) for bits in range(1, 256)})
    marks = [(text.strip(), style) for text, style in lines[6].spans if style in ("bad", "warn")]
    assert marks == [("x" if ascii else "✗", "bad"), ("^" if ascii else "▲", "warn")]


def test_what_is_below_half_of_the_highest_is_left_out_and_names_are_given_as_far_as_they_fit() -> None:
    own = Curve(best=(1.5, 2.0))
    behind = tuple(Curve(name=f"strategy-{at}", best=(0.1, 1.9 + at / 100)) for at in range(8))
    lines = plot(own, 60, 6, Ink(), behind)
    assert [lines[at].plain.split()[0] for at in (0, 5)] == ["2.00×", "1.00×"]
    (named,) = legend(behind, 60, 1, Ink())
    assert named.plain.strip() == "faint: strategy-7, strategy-6, strategy-5 … 5 more"
    assert len(legend(behind, 60, 3, Ink())) == 3
    assert max(cell_len(one.plain) for one in legend(behind, 20, 3, Ink())) <= 20
    assert legend((), 60, 3, Ink()) == []


def test_one_candidate_and_equal_ones_have_a_curve_too() -> None:
    for best in ((1.5,), (1.5,) * 9):
        lines = plot(Curve(best=best), 40, 3, Ink())
        assert "1.50×" in lines[0].plain
        assert len(lines) == 3 + AROUND


def test_a_tree_that_fits_is_shown_whole_and_its_path_is_heavy() -> None:
    children = {"": ["a", "b"], "a": ["c", "d"], "d": ["e"]}
    rows = fitted(children, {}, ("a", "c"), 9)
    assert [(row.id, row.lines) for row in rows] == [
        ("a", ""), ("c", "┣━"), ("d", "└─"), ("e", "  └─"), ("b", ""),
    ]  # fmt: skip
    assert rows == fitted(children, {}, ("a", "c"), 0)


def test_the_best_subtree_comes_first_and_what_is_left_out_is_counted_once() -> None:
    children = {"": ["a", "b", "z"], "a": ["c", "d"], "c": ["e"], "b": ["f"]}
    worth = {"a": (3.0,), "b": (2.0,), "c": (3.0,), "d": (1.0,), "e": (3.0,), "f": (2.0,), "z": (0.0,)}
    rows = fitted(children, worth, ("a",), 4)
    assert [row.id for row in rows] == ["a", "c", "e", ""]
    assert rows[0].hidden == ("d",)
    assert rows[-1] == Branch(id="", hidden=("b", "f", "z"))
    for room in range(2, 9):
        rows = fitted(children, worth, ("a",), room)
        assert len(rows) <= room
        seen = [row.id for row in rows if row.id] + [id for row in rows for id in row.hidden]
        assert sorted(seen) == sorted("abcdefz")


def test_the_middle_of_a_path_that_is_too_long_is_left_out() -> None:
    names = [f"n{at:02}" for at in range(40)]
    children: dict[str, list[str]] = {"": [names[0]]} | {one: [two] for one, two in itertools.pairwise(names)}
    children["n05"].append("beside")
    rows = fitted(children, {}, tuple(names), 9)
    assert len(rows) <= 9
    assert rows[-1].id == "n39"
    assert (rows[0].id, rows[1].between) == ("n00", True)
    assert "beside" in rows[1].hidden
    assert len(rows[1].hidden) + len(rows) - 1 == 41
    whole = fitted(children, {}, tuple(names), 0)
    assert len(whole) == 41
    assert max(len(row.lines) for row in whole) <= 20


def test_a_tree_of_thousands_is_laid_out_without_recursion() -> None:
    names = [f"n{at}" for at in range(3_000)]
    chain = {"": [names[0]]} | {one: [two] for one, two in itertools.pairwise(names)}
    assert len(fitted(chain, {}, (), 0)) == 3_000
    assert len(fitted({"": names}, {}, (), 10)) == 10


def test_a_trace_is_told_with_what_each_value_was_before() -> None:
    steps = (
        Transformation(change="parameter", name="ROWS", value="8"),
        Transformation(change="step", name="ROWS", value="16"),
        Transformation(change="parameter", name="NEW", value="1"),
        Transformation(change="layout", name="row-major", value="packed-rows"),
        Transformation(change="template", name="linear/rows", value="linear/split"),
        Transformation(change="parameter", name="ROWS", value="2"),
    )
    assert trace_text(steps, (("ROWS", 4),)) == (
        "ROWS 4 → 8, ROWS 8 → 16, NEW → 1, row-major → packed-rows, rows → split, ROWS → 2"
    )


def test_a_search_is_empty_before_its_region_is_found() -> None:
    assert searching.searched(fold([*SEARCHES["tree"]]), "unknown") == Found()
    assert all(not isinstance(event, Proposed) for event in SEARCHES["unrecorded"])
