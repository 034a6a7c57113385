"""Tables in a terminal, and those of verbs: whole words, whole names, and no line that is too long."""

from __future__ import annotations

import io
import lzma
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from test_cli import flow
from test_doctor import WHOLE
from test_doctor import flow as machine

from agentcompile.cli import compiling, deciding, looking
from agentcompile.cli.doctor import Cuda, doctor
from agentcompile.cli.fitting import columns, fitted
from agentcompile.cli.render import Screen
from agentcompile.events import Emit, TrialFinished
from agentcompile.options import Options
from agentcompile.runs.session import RunDirectory, options_bytes
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


def tables_of(show: Callable[[Screen], object]) -> list[Table]:
    """The tables that a verb shows."""
    told: list[Table] = []

    class Kept(Screen):
        def table(self, table: Table) -> None:
            told.append(table)

    show(Kept(out=io.StringIO(), err=io.StringIO()))
    return told


def recorded(name: str, folder: Path) -> RunDirectory:
    """A run directory with the recorded events of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_bytes(options_bytes({}))
    (folder / "events.jsonl").write_bytes(lzma.decompress((RECORDED / f"{name}.jsonl.xz").read_bytes()))
    return RunDirectory(folder)


def too_long(tables: Sequence[Table], width: int = 80) -> list[str]:
    """Lines that are longer than a terminal, but for those that are a single word."""
    return [line for table in tables for line in fitted(table, width) if len(line) > width and " " in line.strip()]


@pytest.mark.parametrize("name", ["finished", "reviewed", "stopped"])
def test_the_tables_of_recorded_runs_fit_80_columns(name: str, tmp_path: Path) -> None:
    recorded(name, tmp_path)

    def show(screen: Screen) -> None:
        looking.runs_status({}, str(tmp_path), every=True, screen=screen)
        looking.explain({"run_dir": str(tmp_path)}, "linear", screen=screen)
        deciding.decide({}, str(tmp_path), deciding.DecideFlags(), screen=screen)

    shown = tables_of(show)
    assert len(shown) > 2
    assert max(len(line) for table in shown for line in fitted(table, 80)) <= 80


def inspects(screen: Screen) -> None:
    events = tuple(recorded("finished", Path(os.environ["AGENTCOMPILE_HOME"]) / "elsewhere").events())

    def inspect(options: Options, emit: Emit) -> None:
        for event in events[: next(at for at, one in enumerate(events) if isinstance(one, TrialFinished))]:
            emit(event)

    compiling.inspect({"model": "preset:sample"}, screen=screen, flow=flow(inspect=inspect))


def lists_runs(screen: Screen) -> None:
    runs = Path(os.environ["AGENTCOMPILE_HOME"]) / "runs"
    for at, name in enumerate(("finished", "reviewed", "stopped")):
        recorded(name, runs / f"2099010{at}-000000-a-checkpoint-with-a-name-of-fifty-characters-or-so")
    newer = RunDirectory.create(runs / "newer", {})
    (newer.path / "options.json").write_text('{"version":99,"options":{}}')
    looking.runs_list({}, screen=screen)


def shows_settings(screen: Screen) -> None:
    folders = [f"/home/somebody/templates/of/a/folder/{at}" for at in range(6)]
    looking.config_show({"templates": folders, "advisor": f"openai:NAME@http://{'h' * 50}/v1"}, screen=screen)


VERBS: dict[str, Callable[[Screen], object]] = {
    "inspect": inspects,
    "runs list": lists_runs,
    "cache ls": lambda screen: looking.cache_list({}, screen=screen),
    "config show": shows_settings,
    "doctor": lambda screen: doctor({}, screen=screen, flow=machine(), cuda=lambda: WHOLE),
    "doctor, without CUDA": lambda screen: doctor({}, screen=screen, flow=machine(), cuda=Cuda),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_tables_of_verbs_fit_a_terminal_and_lose_nothing(verb: str, width: int) -> None:
    shown = tables_of(VERBS[verb])
    assert shown
    assert max(len(table.rows) for table in shown) > 2
    assert too_long(shown, width) == []
    for table in shown:
        words = set(" ".join(fitted(table, width)).split())
        assert {word for row in table.rows for cell in row for word in cell.split()} <= words


def test_names_narrow_before_a_column_of_numbers_goes() -> None:
    name = "rmsnorm-gateup-silu-mul@f62781"
    table = Table(heads=("region", *("templates",) * 6), rows=[(name, *("123456",) * 6)], right=tuple(range(1, 7)))
    assert fitted(table, 74) == [
        "region  " + "  templates" * 6,
        name,
        " " * 8 + "     123456" * 6,
    ]
