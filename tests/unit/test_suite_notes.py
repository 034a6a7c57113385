"""The note on an arm whose tokens varied: on its row wherever that is shown, beside its numbers and other notes."""

from __future__ import annotations

from dataclasses import replace

from agentcompile.bench.figures.rates import VARIES
from agentcompile.bench.suite.markdown import arms_table, brief, markdown
from agentcompile.bench.suite.page import page
from agentcompile.bench.suite.run import _table as terminal

from tests.unit.test_suite_report import ABSENT, RESULT, cells, result_of

CASE = RESULT.cases[0]
VARYING = replace(CASE.arms[1], same=False)
MADE = result_of(replace(CASE, arms=(CASE.arms[0], VARYING, ABSENT)))
START = f"| chat, greedy | {VARYING.name}"


def test_the_row_has_its_numbers_and_the_note() -> None:
    steady, varying = (cells(markdown(one, {}), START) for one in (RESULT, MADE))
    assert steady[-1] == ""
    assert varying == [*steady[:-1], VARIES]
    assert cells("\n".join(brief(MADE)), START)[-1] == VARIES


def test_the_page_and_the_terminal_have_it_too() -> None:
    assert page(MADE, ()).count(f">{VARIES}</td>") == 1
    assert VARIES not in page(RESULT, ())
    noted = [line for line in terminal(MADE.cases) if VARIES in line]
    assert len(noted) == 1
    assert VARYING.name in noted[0]
    assert "1.60 (1.52 … 1.68)" in noted[0]


def test_it_hides_nothing_else_that_is_noted() -> None:
    others = (replace(VARYING, agrees=None), replace(VARYING, state="wrong", reason="token 7 differs"))
    notes = [row[-1] for row in arms_table([replace(CASE, arms=others)]).rows]
    assert notes == [f"output not compared; {VARIES}", f"wrong: token 7 differs; {VARIES}"]
    (line,) = (line for line in terminal([replace(CASE, arms=others[:1], reference="died")]) if VARIES in line)
    assert line.endswith(f"fp32: died; {VARIES}")
