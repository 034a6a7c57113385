"""A result beside committed bounds: what breaches them, and what the breaches are worth as an exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.found import UNDISTURBED
from agentcompile.bench.harness.result import ArmResult, Case, Interval, SuiteResult
from agentcompile.bench.harness.workloads import load_workloads
from agentcompile.bench.suite.bounds import BOUNDS, Bound, breaches, load_bounds, worst

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.target import Target

KEY = "sample/chat/greedy"
BOUND = Bound(case=KEY, arm="agentcompile", speedup=4.0)
BASE = ArmResult(name="hf-eager", state="measured")
EMPTY = SuiteResult(
    made="2025-01-01T00:00:00+00:00", command="agentcompile bench", revision="0123abc", changed_since=False, suite="ci",
    machine=Target(kind="cpu", device="Test CPU", arch="x86_64", isa=("avx2",), threads=4, cache_bytes=(1 << 15,)),
    environment={}, policy="p1", seed=0, cases=(),
)  # fmt: skip


def measured(low: float, high: float, name: str = "agentcompile") -> ArmResult:
    gain = Interval(value=(low * high) ** 0.5, low=low, high=high, rounds=5)
    return ArmResult(name=name, state="measured", speedup=gain, agrees="")


def result(*arms: ArmResult, mode: str = "greedy") -> SuiteResult:
    case = Case(
        model="sample", workload="chat", mode="greedy" if mode == "greedy" else "sampled", prompt_tokens=32,
        new_tokens=64, baseline="hf-eager", floor=None, arms=(BASE, *arms), rounds=(),
    )  # fmt: skip
    return replace(EMPTY, cases=(case,))


WRONG = ArmResult(name="agentcompile", state="wrong", reason="token 3 is 7", agrees="token 3 is 7")
PERFORMANCE, CORRECTNESS, UNDECIDED = ExitCode.PERFORMANCE, ExitCode.CORRECTNESS, ExitCode.UNDECIDED
TIMELESS = ArmResult(name="agentcompile", state="failed", reason=UNDISTURBED, agrees="")


@pytest.mark.parametrize(("low", "high"), [(4.5, 5.0), (3.0, 5.0), (3.9, 4.0), (4.0, 4.0)])
def test_an_interval_that_reaches_its_bound_breaches_nothing(low: float, high: float) -> None:
    found = breaches(result(measured(low, high)), [BOUND])
    assert found == ()
    assert worst(found) == ExitCode.OK


def test_an_interval_below_its_bound_is_a_regression_with_both_numbers() -> None:
    (breach,) = breaches(result(measured(2.0, 3.92)), [BOUND])
    assert (breach.code, worst([breach])) == (PERFORMANCE, 5)
    assert breach.text == f"{KEY}: agentcompile is 2.80× (2.00 … 3.92), at least 4× wanted"


def test_a_request_that_became_slow_is_a_regression_though_its_tokens_are_fast() -> None:
    bound = replace(BOUND, total=3.0)
    slow = Interval(value=1.0, low=0.9, high=1.1, rounds=5)
    (breach,) = breaches(result(replace(measured(5.0, 6.0), total_speedup=slow)), [bound])
    assert (breach.code, worst([breach])) == (PERFORMANCE, 5)
    assert breach.text == f"{KEY}: agentcompile is 1.00× (0.90 … 1.10) per request, at least 3× wanted"
    assert breaches(result(replace(measured(5.0, 6.0), total_speedup=replace(slow, high=3.1))), [bound]) == ()


def test_a_request_without_a_figure_is_not_decided() -> None:
    (breach,) = breaches(result(measured(5.0, 6.0)), [replace(BOUND, total=3.0)])
    text = f"{KEY}: agentcompile has no figure per request; 3× wanted"
    assert (breach.code, breach.text) == (UNDECIDED, text)


@pytest.mark.parametrize(
    ("arms", "why"),
    [
        ((), "agentcompile is not among the arms"),
        ((ArmResult(name="agentcompile", state="absent", reason="not here"),), "agentcompile not here"),
        ((TIMELESS,), f"agentcompile {UNDISTURBED}"),
        ((replace(TIMELESS, state="measured", reason=""),), "agentcompile has too few undisturbed rounds"),
    ],
)
def test_a_bound_that_nothing_was_told_about_is_not_decided(arms: tuple[ArmResult, ...], why: str) -> None:
    (breach,) = breaches(result(*arms), [BOUND])
    assert (breach.code, breach.text, worst([breach])) == (UNDECIDED, f"{KEY}: {why}; 4× wanted", 7)


@pytest.mark.parametrize(
    ("arm", "why"),
    [
        (ArmResult(name="agentcompile", state="failed", reason="exit code 3"), "failed: exit code 3"),
        (replace(measured(5.0, 6.0), agrees=None), "nothing was held against its output: fp32 said nothing"),
    ],
)
def test_ours_that_died_or_was_not_checked_is_no_better_than_wrong_where_bounds_are_held(
    arm: ArmResult, why: str
) -> None:
    found = breaches(result(arm), [BOUND])
    assert (found[0].code, found[0].text, worst(found)) == (CORRECTNESS, f"{KEY}: agentcompile: {why}", 4)
    assert breaches(result(arm), None) == ()
    assert worst(breaches(result(measured(5.0, 6.0), replace(arm, name="hf-compile")), [BOUND])) == ExitCode.OK


def test_a_bound_of_a_case_that_was_not_run_is_passed_over() -> None:
    assert breaches(result(measured(1.0, 1.1), mode="sampled"), [BOUND]) == ()
    assert breaches(EMPTY, [BOUND]) == ()


def test_every_bound_is_held_against_its_own_arm() -> None:
    other = Bound(case=KEY, arm="hf-compile", speedup=1.5)
    found = breaches(result(measured(5.0, 6.0), measured(1.0, 1.2, "hf-compile")), [BOUND, other])
    assert [breach.text.split()[1] for breach in found] == ["hf-compile"]


def test_wrong_output_comes_before_a_regression() -> None:
    found = breaches(result(WRONG), [BOUND])
    assert [breach.code for breach in found] == [CORRECTNESS, UNDECIDED]
    assert found[0].text == f"{KEY}: agentcompile: token 3 is 7"
    assert worst(found) == worst(found[::-1]) == 4
    slow = breaches(result(measured(1.0, 2.0)), [BOUND])
    assert worst([*slow, *found[1:]]) == worst([*found[1:], *slow]) == 5


def test_wrong_output_of_ours_is_a_breach_without_any_bound_and_that_of_a_peer_is_none() -> None:
    assert worst(breaches(result(WRONG), None)) == CORRECTNESS
    assert breaches(result(replace(WRONG, name="hf-compile")), None) == ()


def test_committed_bounds_name_cases_and_arms_that_a_suite_runs() -> None:
    suites = load_workloads().suite
    run = {
        (f"{model}/{workload}/{mode}", arm)
        for suite in suites
        for model in suite.models
        for workload in suite.workloads
        for mode in suite.modes
        for arm in suite.arms
        if arm != suite.baseline
    }
    bounds = load_bounds(BOUNDS)
    named = [(bound.case, bound.arm) for bound in bounds]
    assert set(named) <= run
    assert len(set(named)) == len(named) > 0
    assert all(bound.speedup > 0 for bound in bounds)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[bound]]\ncase = "a"\narm = "b"\nspeedup = "4"', 'bounds.toml: bound[0].speedup: "4" is not a number'),
        ('[[bound]]\ncase = "a"\narm = "b"', "bounds.toml: bound[0].speedup: missing"),
        ('[[bound]]\ncase = "a"\narm = "b"\nspeedup = 4.0\nspeed = 1', "bounds.toml: bound[0].speed: unknown key"),
        ("[[bound", "bounds.toml: not TOML"),
    ],
)
def test_bounds_that_cannot_be_read_are_refused_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bounds.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AgentCompileError) as refused:
        load_bounds(path)
    assert refused.value.message.startswith(said)
    assert refused.value.exit_code == ExitCode.USAGE
