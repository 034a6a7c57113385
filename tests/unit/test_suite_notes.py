"""The note on an arm whose tokens varied: on its row wherever that is shown, beside its numbers and other notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.rates import VARIES
from agentcompile.bench.harness.result import Case, SuiteResult, write_result
from agentcompile.bench.report.markdown import arms_table, brief, markdown
from agentcompile.bench.report.page import page
from agentcompile.bench.suite.compare import run
from agentcompile.bench.suite.run import _table as terminal

from agentcompile.errors import AgentCompileError
from tests.unit.test_suite_compare import EMPTY, case_of, drawn, rounds
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


def _compared(path: Path, capsys: pytest.CaptureFixture[str], *more: str, **files: SuiteResult) -> str:
    for name, result in files.items():
        write_result(path / name, result)
    capsys.readouterr()
    run([*(str(path / name) for name in files), *more, "--markdown"])
    return capsys.readouterr().out


def _varying(case: Case, name: str) -> Case:
    return replace(case, arms=tuple(replace(arm, same=arm.name != name) for arm in case.arms))


def test_a_comparison_says_on_which_side_tokens_vary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steady = drawn(1)
    varying = replace(steady, cases=(_varying(steady.cases[0], "hf-compile"),))
    out = _compared(tmp_path, capsys, a=steady, b=varying)
    assert {row.split(" | ")[1] for row in out.splitlines() if f"B: {VARIES}" in row} == {"hf-compile"}
    assert f"A: {VARIES}" not in out
    both = _compared(tmp_path, capsys, a=varying, b=varying)
    assert both.count(f"A: {VARIES}; B: {VARIES}") == 3  # whole request, per token, first token
    paired = _compared(tmp_path, capsys, "--arms", "hf-compile,agentcompile", a=varying)
    assert paired.count(f"hf-compile: {VARIES}") == 3


def test_an_arm_of_a_comparison_may_be_named_by_its_alias_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"hf-eager": 0.05, "agentcompile": 0.02, "agentcompile=again": 0.02, "agentcompile=slow:0.03": 0.0206}
    made = replace(EMPTY, cases=(case_of(rounds(1, times, 0.007)),))
    whole = _compared(tmp_path, capsys, "--arms", "agentcompile,agentcompile=slow:0.03", a=made)
    assert "agentcompile=slow:0.03 against agentcompile" in whole
    for alias in ("slow", "slow:0.03"):
        assert _compared(tmp_path, capsys, "--arms", f"agentcompile,{alias}", a=made) == whole
    twice = replace(EMPTY, cases=(case_of(rounds(1, {**times, "hf-eager=slow:0.03": 0.05}, 0.007)),))
    with pytest.raises(AgentCompileError, match="no arm is called 'slow'"):
        _compared(tmp_path, capsys, "--arms", "agentcompile,slow", a=twice)
