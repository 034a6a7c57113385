"""Whether two runs agree within their intervals, ratio by ratio, and the exit code that asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentcompile.bench.harness.means import Logs
from agentcompile.bench.harness.result import ArmResult, SuiteResult, write_result
from agentcompile.bench.suite.compare import run
from agentcompile.bench.suite.verdicts import Compared, change_between, compare_runs

from agentcompile.errors import ExitCode
from tests.unit.test_suite_compare import drawn

FAILED = ArmResult(name="hf-compile", state="failed", reason="killed by signal 9")


def compared(
    folder: Path, capsys: pytest.CaptureFixture[str], a: SuiteResult, b: SuiteResult, *more: str
) -> tuple[int, str]:
    paths = [str(folder / "a.json"), str(folder / "b.json")]
    for path, result in zip(paths, (a, b), strict=True):
        write_result(Path(path), result)
    code = run([*paths, *more])
    return code, capsys.readouterr().out


def column(out: str, name: str) -> list[str]:
    """The cells of a Markdown table's column."""
    lines = [line.strip("| ").split(" | ") for line in out.splitlines() if line.startswith("| ")]
    at = [cell.strip() for cell in lines[0]].index(name)
    return [cells[at].strip() for cells in lines[2:]]


def test_two_runs_of_the_same_agree_on_every_ratio_though_none_is_claimed_to_be_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = drawn(1, noise=0.05), drawn(2, noise=0.05)
    code, out = compared(tmp_path, capsys, a, b, "--fail-on-difference", "--markdown")
    assert code == ExitCode.OK
    assert "6 of 6 agree within their intervals" in out
    assert "SAME" not in out
    assert sorted(set(column(out, "agree"))) == ["-", "yes"]  # nothing is beside the baseline


def test_a_ratio_that_changed_does_not_agree_and_fails_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = drawn(1), drawn(2, agentcompile=0.95)  # faster, which fails nothing else
    code, out = compared(tmp_path, capsys, a, b, "--markdown")
    assert code == ExitCode.OK
    assert "3 of 6 agree within their intervals" in out
    assert column(out, "agree").count("no") == 3
    assert compared(tmp_path, capsys, a, b, "--fail-on-slower")[0] == ExitCode.OK
    assert compared(tmp_path, capsys, a, b, "--fail-on-difference")[0] == ExitCode.PERFORMANCE
    assert compared(tmp_path, capsys, a, b, "--fail-on-difference", "--anyway")[0] == ExitCode.PERFORMANCE


def test_what_nobody_knows_to_agree_is_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = compared(tmp_path, capsys, drawn(1), drawn(2, FAILED), "--fail-on-difference")
    assert failed[0] == ExitCode.UNDECIDED
    assert "3 of 3 agree within their intervals, not known of 1" in failed[1]
    few = drawn(2, keep=lambda number: number < 2)
    code, out = compared(tmp_path, capsys, drawn(1), few, "--fail-on-difference")
    assert code == ExitCode.UNDECIDED
    assert "0 of 6 agree within their intervals, not known of 6" in out


def test_the_json_says_of_every_ratio_whether_it_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = compared(tmp_path, capsys, drawn(1), drawn(2, agentcompile=1.05), "--json")
    said = {(row["arm"], row["quantity"]): row["changes"] for row in json.loads(out)["rows"]}
    assert [said["agentcompile", quantity]["ratio"]["agrees"] for quantity in ("token", "first")] == [False, False]
    assert [said["hf-compile", quantity]["ratio"]["agrees"] for quantity in ("token", "first")] == [True, True]


def test_processes_that_disagree_in_sign_tell_nothing_apart() -> None:
    steady = Logs(by_process=((0.0, 0.001, -0.001),) * 3, total=9)
    torn = Logs(by_process=((0.05, 0.051, 0.049), (0.05, 0.049, 0.051), (-0.002, -0.001, -0.002)), total=9)
    found = change_between(steady, torn, claim=0.01, level=0.2)
    assert found.span is not None
    assert found.span.low > 1
    assert found.agrees


def test_an_arm_that_is_not_here_on_either_side_is_no_question() -> None:
    absent = ArmResult(name="vllm", state="absent", reason="is not installed")
    report = compare_runs(drawn(1, absent), drawn(2, absent), claim=0.01)
    assert not report.untold
    assert all(isinstance(row, Compared) for row in report.rows)
