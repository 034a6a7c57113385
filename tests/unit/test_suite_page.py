"""The page for its reader: a workload is named once, and a reason has the room of numbers that are not there."""

from __future__ import annotations

import re

from agentcompile.bench.report.page import _table

from agentcompile.runs.tables import Table

HEADS = ("workload", "arm", "tokens/s", "ms", "note")
ROWS = [
    ("chat", "hf-eager", "10", "100", ""),
    ("chat", "vllm", "-", "-", "absent: not <here>"),
    ("chat", "agentcompile", "90", "11", ""),
    ("code", "hf-eager", "9", "110", ""),
]


def shown(table: Table) -> list[str]:
    return re.findall(r"<tr.*?</tr>", "".join(_table(table)))


def test_a_workload_is_named_in_its_first_row_alone_and_a_line_stands_before_the_next() -> None:
    _, *rows = shown(Table(heads=HEADS, rows=ROWS, right=(2, 3)))
    assert [row.count(">chat<") for row in rows] == [1, 0, 0, 0]
    assert [row.count('class="begins"') for row in rows] == [0, 0, 0, 1]
    assert [row.count('class="ours"') for row in rows] == [0, 0, 1, 0]


def test_a_reason_spans_the_numbers_that_are_not_there() -> None:
    _, eager, absent, *_ = shown(Table(heads=HEADS, rows=ROWS, right=(2, 3)))
    assert '<td class="note" colspan="3">absent: not &lt;here&gt;</td>' in absent
    assert absent.count("<td") == 3
    assert eager.count("<td") == 5
    assert "colspan" not in eager


def test_a_number_in_the_last_column_spans_nothing() -> None:
    _, row = shown(Table(heads=HEADS, rows=[("chat", "hf-eager", "-", "-", "7")], right=(2, 3, 4)))
    assert "colspan" not in row


def test_facts_without_heads_are_neither_groups_nor_ours() -> None:
    rows = shown(Table(heads=("", ""), rows=[("agentcompile", "0.1.0"), ("agentcompile", "0.2.0")]))
    assert [row.count("agentcompile") for row in rows] == [1, 1]
    assert not any('class="ours"' in row or "begins" in row for row in rows)


def test_rows_that_are_each_of_their_own_have_no_lines_between_them() -> None:
    _, *rows = shown(Table(heads=HEADS, rows=[ROWS[0], ROWS[3]], right=(2, 3)))
    assert [row.count("begins") for row in rows] == [0, 0]
