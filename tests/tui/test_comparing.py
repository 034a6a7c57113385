"""What is compared with what: the groups of candidates, the one marked best, sorting, and the detail beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agentcompile.tui import screen
from agentcompile.tui.grid import Column, Entry, fitted, picked, table
from agentcompile.tui.ink import Ink
from agentcompile.tui.scene import Scene, View
from agentcompile.tui.trials import brief, named
from recorded import BY_NAME, run_directory, scene, text
from rich.cells import cell_len
from test_keys import typed

from agentcompile.events import TrialFinished
from agentcompile.runs.progress import fold
from tests.unit.runs import FOUND, STARTED, candidate, measured, trial

INK = Ink()
HEADS = [column.head for column in BY_NAME["tune"].columns(Scene(), View())]


def timed(log_ratio: float, median_ns: int, p95_ns: int) -> object:
    found = measured(log_ratio)
    return replace(found, measurement=replace(found.measurement, median_ns=median_ns, p95_ns=p95_ns))


TRIALS = (
    trial(1, timed(0.9, 900, 950)),  # type: ignore[arg-type]
    trial(2, timed(0.5, 1_000, 1_900), fidelity="confirm"),  # type: ignore[arg-type]
    trial(4, timed(0.4, 950, 1_000), fidelity="confirm"),  # type: ignore[arg-type]
)
KNOWN = Scene(path="RUN", state=fold([STARTED, FOUND, *(TrialFinished(trial=one) for one in TRIALS)]))


@pytest.fixture(scope="module")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(run_directory(tmp_path_factory.mktemp("run") / "run", "finished"))


def rows(view: View) -> list[tuple[str, str]]:
    """The state and the candidate of each row, in their order."""
    return [(entry.cells[0][0], entry.cells[1][0]) for entry in screen.rows(KNOWN, view, BY_NAME["tune"])]


def sorted_by(head: str) -> View:
    return View(mode="tune", sort={"tune": HEADS.index(head)})


def test_fresh_rounds_come_before_those_of_the_search_whose_ratio_may_look_better() -> None:
    found = rows(View(mode="tune"))
    assert found == [("▲ best", "rows(ROWS=2)"), ("✓ confirmed", "rows(ROWS=4)"), ("✓ measured", "rows(ROWS=1)")]
    assert "fresh rounds first, then search" in text(KNOWN, View(mode="tune"))


@pytest.mark.parametrize(("head", "best"), [("median", 4), ("p95", 4), ("ratio", 2), ("n", 2)])
def test_the_one_marked_best_is_best_by_the_column_that_is_sorted(head: str, best: int) -> None:
    found = rows(sorted_by(head))
    assert [name for word, name in found if word == "▲ best"] == [f"rows(ROWS={best})"]
    if head != "n":
        assert found[0] == ("▲ best", f"rows(ROWS={best})")
    assert found[-1][1] == "rows(ROWS=1)"
    assert f"{head}▼" in text(KNOWN, replace(sorted_by(head), width=160, height=47))


def test_a_ratio_to_another_candidate_is_said_to_be_of_different_rounds() -> None:
    shown = text(KNOWN, View(mode="tune", baseline="best"))
    assert "~ is a ratio of different rounds" in shown
    ratios = [entry.cells[6][0] for entry in screen.rows(KNOWN, View(mode="tune", baseline="best"), BY_NAME["tune"])]
    assert ratios == ["1.00×", "~0.90×", "~1.49×"]
    assert "~" not in text(KNOWN, View(mode="tune"))


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (160, 48)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_only_columns_that_are_shown_are_offered_and_each_has_its_arrow(
    recorded_run: Scene, size: tuple[int, int]
) -> None:
    for mode in BY_NAME:
        view = View(width=size[0], height=size[1], mode=mode)
        shown = screen.visible(recorded_run, view, BY_NAME[mode])
        for at in shown:
            view = typed(recorded_run, view, "]").view
            assert view.sort[mode] == at
            head = BY_NAME[mode].columns(recorded_run, view)[at].head
            assert any(f"{one}▼" in text(recorded_run, view) for one in (head, head[:-1]))
        assert typed(recorded_run, view, "]").view.sort[mode] == -1


def test_the_detail_and_the_other_table_follow_the_cursor_through_filter_and_sort(recorded_run: Scene) -> None:
    wide = View(width=160, height=48)
    for keys in ("/embed<enter>", "]]", "]]]G", "/zzz<enter><escape>"):
        view = typed(recorded_run, wide, keys).view
        key = screen.key_of(recorded_run, view, BY_NAME["regions"])
        row = recorded_run.state.row(key)
        assert row is not None
        lines = text(recorded_run, view).splitlines()
        assert lines[4].endswith(f"│ {row.name}"), keys
        assert any(line.startswith(f"  {row.name}  {row.sites} occurrences") for line in lines), keys


def test_rows_below_another_stay_there_however_they_are_sorted() -> None:
    made = [
        Entry(key="a", cells=(("a", ""),), order=(3.0,)),
        Entry(key="b", cells=(("b", ""),), order=(1.0,), under="a"),
        Entry(key="c", cells=(("c", ""),), order=(2.0,)),
        Entry(key="d", cells=(("d", ""),), order=(0.0,), under="a"),
    ]
    assert [entry.key for entry in picked(made, "", -1)] == ["a", "b", "d", "c"]
    assert [entry.key for entry in picked(made, "", 0)] == ["c", "a", "d", "b"]
    assert [entry.key for entry in picked(made, "b", 0)] == ["b"]
    apart = [replace(entry, group=group, under="") for entry, group in zip(made, (1, 1, 0, 0), strict=True)]
    assert [entry.key for entry in picked(apart, "", 0)] == ["d", "c", "b", "a"]


def test_a_column_that_wants_more_gets_it_at_the_cost_of_others_and_does_without_where_nothing_helps() -> None:
    columns = (Column(head="a", width=4, wants=10), Column(head="b", width=6, drop=1))
    assert fitted(columns, 20) == [(0, 10), (1, 6)]
    assert fitted(columns, 14) == [(0, 10)]
    assert fitted(columns, 6) == [(0, 4)]


def test_a_name_is_shortened_in_its_middle() -> None:
    assert INK.middle("qknorm-rope-attention-decode@7ba473", 16) == "qknorm-r…@7ba473"
    assert INK.middle("short", 8) == "short   "
    assert Ink(ascii=True).middle("qknorm-rope-attention", 9) == "qkno~tion"
    for width in range(12):
        assert cell_len(INK.middle("表表表表表表表表", width)) == width
    (_, row) = table(
        (Column(head="r", width=8, middle=True),), [Entry(key="x", cells=(("abcdefghijkl", ""),))],
        width=10, height=4, cursor=-1, ink=INK,
    )  # fmt: skip
    assert row.plain.strip() == "abcd…jkl"


def test_parameters_keep_names_that_tell_them_apart() -> None:
    one = replace(candidate(), params=(("TILES", 4), ("TILED", 1), ("AHEAD", 0)))
    assert brief(one) == "rows(TILES=4, TILED=1, A=0)"
    assert named(one, 40) == "rows(TILES=4, TILED=1, AHEAD=0)"
    assert named(one, 29) == "rows(TILES=4, TILED=1, AHE=0)"
    assert brief(replace(one, params=())) == "rows"
