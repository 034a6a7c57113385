"""Tables in a terminal: whole words, whole names, and no line that is too long."""

from __future__ import annotations

import io
import lzma
from pathlib import Path

import pytest

from agentcompile.cli import deciding, looking
from agentcompile.cli.fitting import columns, fitted
from agentcompile.cli.render import Screen
from agentcompile.runs.session import options_bytes
from agentcompile.runs.tables import Table

RECORDED = Path(__file__).parents[1] / "tui" / "runs"
LONG = "qknorm-rope-attention-decode@7ba473"
TABLE = Table(
    heads=("region", "count", "share", "roofline", "pytorch", "best", "ratio", "choice"),
    rows=[
        (LONG, "6", "35.2%", "3.94 µs", "8.6 ms", "22.9 µs", "345.30×", "PyTorch: " + "no kernel is faster " * 6),
        ("add@0a6317", "12", "0.1%", "6 ns", "6.2 µs", "459 ns", "11.97×", "add/plain"),
    ],
    right=(1, 2, 3, 4, 5, 6),
)


def test_a_table_that_fits_has_a_line_a_row() -> None:
    assert fitted(TABLE, 400) == columns(TABLE)
    narrow = Table(heads=("a", "n"), rows=[("long", "1")], right=(1,))
    assert fitted(narrow, 80) == columns(narrow)


@pytest.mark.parametrize("width", [1, 40, 64, 80, 100, 120])
def test_no_line_is_longer_than_the_terminal_and_nothing_is_lost(width: int) -> None:
    lines = fitted(TABLE, width)
    assert max(map(len, lines)) <= max(width, 40)
    words = " ".join(lines).split()
    for row in TABLE.rows:
        for cell in row:
            assert set(cell.split()) <= set(words), "whole words"


def test_a_long_name_stands_on_its_own_line_and_a_long_text_below_its_row() -> None:
    head, name, numbers, *below, second, choice = fitted(TABLE, 80)
    assert head.split() == list(TABLE.heads[:-1])
    assert (name, numbers.split()) == (LONG, ["6", "35.2%", "3.94", "µs", "8.6", "ms", "22.9", "µs", "345.30×"])
    assert below[0].startswith("  choice: PyTorch: no kernel")
    assert second.startswith("add@0a6317 ")
    assert choice == "  choice: add/plain"


def test_a_text_that_has_room_is_wrapped_in_its_own_column() -> None:
    table = Table(heads=("", "check", "found"), rows=[("ok", "machine", "avx2 " * 30), ("ok", "torch", "2.13")])
    head, first, *more, torch = fitted(table, 80)
    assert head.index("found") == first.index("avx2") == torch.index("2.13") == 13
    assert {line[:14] for line in more} == {" " * 13 + "a"}
    path = Table(heads=("what", "where"), rows=[("store", "/" + "x" * 90), ("runs", "/y")])
    assert fitted(path, 80)[1:] == ["store", "  /" + "x" * 90, "runs   /y"], "no word is cut"


def test_a_column_without_a_head_is_no_name() -> None:
    path = "/" + "x" * 90
    table = Table(heads=("", "check", "found"), rows=[("MISSING", "a check with a long name", path)] * 2)
    assert fitted(table, 60)[1] == "MISSING  a check with a long name"


def test_signs_stay_before_names() -> None:
    rows = [("~", "linear@1", "linear/packed(" + ", ".join(f"PARAM={n}" for n in range(9)) + ")", "4.20×", "approved")]
    lines = fitted(Table(heads=("", "region", "runs", "ratio", "status"), rows=rows, right=(3,)), 80)
    assert lines[1].split() == ["~", "linear@1", "4.20×", "approved"]
    assert lines[2].startswith("  runs: linear/packed(PARAM=0, ")


@pytest.mark.parametrize("name", ["finished", "reviewed", "stopped"])
def test_the_tables_of_recorded_runs_fit_80_columns(name: str, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_bytes(options_bytes({}))
    (tmp_path / "events.jsonl").write_bytes(lzma.decompress((RECORDED / f"{name}.jsonl.xz").read_bytes()))
    screen = Screen(out=io.StringIO(), err=io.StringIO())
    told: list[Table] = []

    class Kept(Screen):
        def table(self, table: Table) -> None:
            told.append(table)

    kept = Kept(out=io.StringIO(), err=io.StringIO())
    looking.runs_status({}, str(tmp_path), every=True, screen=kept)
    looking.explain({"run_dir": str(tmp_path)}, "linear", screen=kept)
    deciding.decide({}, str(tmp_path), deciding.DecideFlags(), screen=kept)
    assert len(told) > 2
    for table in told:
        assert max(map(len, fitted(table, screen.width))) <= 80


def test_names_narrow_before_a_column_of_numbers_goes() -> None:
    name = "rmsnorm-gateup-silu-mul@f62781"
    table = Table(heads=("region", *("templates",) * 6), rows=[(name, *("123456",) * 6)], right=tuple(range(1, 7)))
    assert fitted(table, 74) == [
        "region  " + "  templates" * 6,
        name,
        " " * 8 + "     123456" * 6,
    ]
