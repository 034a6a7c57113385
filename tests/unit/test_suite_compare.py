"""Comparing result files of the suite: what is claimed from rounds, what is refused, how a command ends."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agentcompile.bench.harness.result import ArmResult, Case, Compiled, RoundTimes, Spread, SuiteResult, write_result
from agentcompile.bench.suite.compare import differences, run
from agentcompile.bench.suite.verdicts import Change, Compared, Report, Unmeasured, compare_arms, compare_runs

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.target import Target

MACHINE = Target(kind="cpu", device="Test CPU", arch="x86_64", isa=("avx2",), threads=4, cache_bytes=(1 << 15,))
TIMES = {"hf-eager": 0.050, "hf-compile": 0.030, "agentcompile": 0.020}
"""Seconds a token; the first token takes ten times as long."""
EMPTY = SuiteResult(
    made="2025-01-01T00:00:00+00:00", command="agentcompile bench suite", revision="0123abc", changed_since=False,
    suite="quick", machine=MACHINE, environment={"torch": "2.12.0"}, policy="p1", seed=0, cases=(),
)  # fmt: skip
CASE = Case(
    model="sample", workload="chat", mode="greedy", prompt_tokens=32, new_tokens=64, baseline="hf-eager", floor=None,
    arms=(), rounds=(),
)  # fmt: skip
compared = partial(compare_runs, claim=0.01)
Keep = Callable[[int], bool]


def rounds(seed: int, times: Mapping[str, float], noise: float, keep: Keep = lambda _: True) -> tuple[RoundTimes, ...]:
    """Three processes of five rounds; arms drift together by 3 %, and `noise` is the spread of a log ratio of two."""
    generator = random.Random(seed)

    def timed(number: int) -> RoundTimes:
        drift, own = generator.gauss(0, 0.03), noise / math.sqrt(2)
        token, first = (
            {arm: scale * time * math.exp(drift + generator.gauss(0, own)) for arm, time in times.items()}
            for scale in (1, 10)
        )
        return RoundTimes(process=number // 5, kept=keep(number), token_s=token, first_s=first, read_bytes_per_s=2e10)

    return tuple(timed(number) for number in range(15))


def case_of(found: Sequence[RoundTimes], *others: ArmResult, workload: str = "chat") -> Case:
    """A case whose arms are those of the rounds, but for what `others` say of them."""
    arms = {}
    for name, time in found[0].token_s.items():
        token, first = (Spread(median=scale * time, p95=scale * time, count=15) for scale in (1, 10))
        arms[name] = ArmResult(name=name, state="measured", token_s=token, first_s=first)
    arms |= {arm.name: arm for arm in others}
    return replace(CASE, workload=workload, arms=tuple(arms.values()), rounds=tuple(found))


def drawn(
    seed: int, *others: ArmResult, noise: float = 0.007, keep: Keep = lambda _: True, **slowed: float
) -> SuiteResult:
    """A run of one case; `slowed` multiplies the times of an arm."""
    times = {arm: time * slowed.get(arm.replace("-", "_"), 1.0) for arm, time in TIMES.items()}
    return replace(EMPTY, cases=(case_of(rounds(seed, times, noise, keep), *others),))


def with_case(result: SuiteResult, **changed: Any) -> SuiteResult:
    return replace(result, cases=(replace(result.cases[0], **changed),))


def verdicts(report: Report) -> list[str]:
    changes = [report.verdict(row) for row in report.rows if isinstance(row, Compared)]
    return [change.comparison for change in changes if change]


def change(report: Report, arm: str = "agentcompile") -> Change:
    """What decides on the arm's time per token."""
    found = {row.arm: report.verdict(row) for row in report.rows[::-1] if isinstance(row, Compared)}[arm]
    assert found is not None
    return found


def unmeasured(report: Report) -> list[tuple[str, str, str, str]]:
    return [(row.arm, row.a, row.b, row.reason) for row in report.rows if isinstance(row, Unmeasured)]


def span(found: Change) -> tuple[float, float]:
    assert found.span is not None
    return found.span.low, found.span.high


Files = Callable[..., list[str]]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes results and names their files."""

    def write(*results: SuiteResult) -> list[str]:
        for name, result in enumerate(results):
            write_result(tmp_path / f"{name}.json", result)
        return [str(tmp_path / f"{name}.json") for name in range(len(results))]

    return write


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the recipe: its exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return run(arguments), *capsys.readouterr()

    return call


def refusal(*arguments: str) -> AgentCompileError:
    with pytest.raises(AgentCompileError) as refused:
        run(arguments)
    return refused.value


def test_equal_arms_are_hardly_ever_called_different() -> None:
    noises, changed = random.Random(1), {"FASTER", "SLOWER"}
    claims = differ = pairs = 0
    for seed in range(200):
        noise = noises.uniform(0.005, 0.01)
        a, b = drawn(2 * seed, noise=noise), drawn(2 * seed + 1, noise=noise)
        claims += bool(changed & set(verdicts(compared(a, b))))
        # Without a claim size, alpha alone holds all comparisons of a report together.
        differ += bool(changed & set(verdicts(compared(a, b, claim=0.0))))
        twins = replace(EMPTY, cases=(case_of(rounds(seed, {"x": 0.02, "y": 0.02}, noise)),))
        pairs += bool(changed & set(verdicts(compare_arms(twins, "x", "y", claim=0.0))))
    assert claims <= 2
    assert differ <= 20
    assert pairs <= 20


def test_a_planted_slow_down_is_found_and_its_sign_is_never_wrong() -> None:
    noises, found = random.Random(2), list[str]()
    for seed in range(120):
        noise = noises.uniform(0.005, 0.01)
        a, b = drawn(2 * seed, noise=noise), drawn(2 * seed + 1, noise=noise, agentcompile=1.03)
        found.append(change(compared(a, b)).comparison)
    assert found.count("SLOWER") >= 114
    assert "FASTER" not in found
    assert change(compared(b, a)).comparison == "FASTER"


def test_the_ratio_does_not_see_a_machine_that_became_slower() -> None:
    a, b = drawn(1, noise=0.003), drawn(2, noise=0.003, agentcompile=1.2, hf_compile=1.2, hf_eager=1.2)
    assert set(verdicts(compared(a, b))) == {"SAME"}
    assert set(verdicts(compared(a, b, absolute=True))) == {"SLOWER"}


def test_alpha_is_divided_by_all_comparisons() -> None:
    found = rounds(1, TIMES, 0.007)
    three = replace(EMPTY, cases=tuple(case_of(found, workload=name) for name in ("chat", "code", "long")))
    report, wide = compared(drawn(1), drawn(1)), compared(three, three)
    assert (report.comparisons, wide.comparisons, wide.level) == (6, 18, pytest.approx(0.05 / 18))
    assert span(change(wide))[0] < span(change(report))[0]


def test_rounds_that_were_not_kept_or_lack_an_arm_are_left_out() -> None:
    a, b = drawn(1, noise=0.003), drawn(2, noise=0.003)
    spoilt, lacking, *rest = b.cases[0].rounds
    spoilt = replace(spoilt, kept=False, token_s={**spoilt.token_s, "agentcompile": 99.0})
    lacking = replace(lacking, token_s={"agentcompile": 99.0})
    found = change(compared(a, with_case(b, rounds=(spoilt, lacking, *rest))))
    assert (found.rounds, found.comparison) == ((15, 13), "SAME")


@pytest.mark.parametrize(
    ("keep", "comparison", "why"),
    [
        (lambda at: at % 5 > 0, "SLOWER", ""),
        (lambda at: at >= 4, "INCONCLUSIVE", "B: 4 of 15 rounds were dropped"),
        (lambda at: at < 2, "INCONCLUSIVE", "B: 2 kept rounds are too few"),
    ],
)
def test_too_many_dropped_or_too_few_kept_rounds_claim_nothing(keep: Keep, comparison: str, why: str) -> None:
    a, b = drawn(1), drawn(2, keep=keep, agentcompile=1.5)
    found = change(compared(a, b))
    assert (found.comparison, found.why) == (comparison, why)
    assert change(compared(b, a)).why == why.replace("B", "A")


def test_processes_that_disagree_in_sign_claim_nothing() -> None:
    slow, fast = (rounds(seed, {**TIMES, "agentcompile": time}, 0.001) for seed, time in ((2, 0.024), (3, 0.0199)))
    found = change(compared(drawn(1, noise=0.001), with_case(drawn(2), rounds=slow[:10] + fast[10:])))
    assert (found.comparison, found.why) == ("INCONCLUSIVE", "the processes disagree in sign")
    assert span(found)[1] < 0.99


def test_a_clock_that_stood_still_claims_nothing() -> None:
    a = drawn(1)
    still = tuple(replace(timed, token_s={**timed.token_s, "agentcompile": 0.0}) for timed in a.cases[0].rounds)
    found = change(compared(a, with_case(a, rounds=still)))
    assert (found.comparison, found.why) == ("INCONCLUSIVE", "B: a time is not above 0: the clock does not measure")


def test_a_baseline_that_was_not_measured_decides_nothing() -> None:
    found = change(compared(drawn(1), drawn(2, ArmResult(name="hf-eager", state="failed"))))
    assert (found.comparison, found.why) == ("INCONCLUSIVE", "B: the baseline hf-eager is failed")


def test_two_arms_of_one_run_are_paired_by_round() -> None:
    report = compare_arms(drawn(1), "hf-compile", "agentcompile", claim=0.01)
    low, high = span(change(report, "agentcompile against hf-compile"))
    assert verdicts(report) == ["FASTER", "FASTER", "FASTER"]
    assert low < 1.5 < high < 1.02 * low  # their common drift of 3 % cancels


@pytest.mark.parametrize("state", ["absent", "failed", "wrong"])
def test_an_arm_measured_on_one_side_alone_is_a_row_that_says_so(state: Any) -> None:
    result = drawn(2, ArmResult(name="hf-compile", state=state, reason="because"))
    report = compared(drawn(1), result)
    assert unmeasured(report) == [("hf-compile", "measured", state, f"B: {state}: because")]
    assert report.comparisons == 3
    report = compare_arms(result, "hf-eager", "hf-compile", claim=0.01)
    assert unmeasured(report)[0][1:] == ("measured", state, f"hf-compile: {state}: because")


def test_an_arm_that_one_file_does_not_list_is_a_row_and_one_absent_in_both_is_none() -> None:
    absent = ArmResult(name="llama.cpp", state="absent", reason="not installed")
    assert unmeasured(compared(drawn(1, absent), drawn(2, absent))) == []
    report = compared(drawn(1), drawn(2, ArmResult(name="new", state="wrong")))
    assert unmeasured(report) == [("new", "missing", "wrong", "A: not listed; B: wrong")]


def test_a_file_beside_itself_is_the_same(files: Files, command: Command) -> None:
    (path,) = files(drawn(1, noise=0.003))
    code, out, err = command(path, path, "--fail-on-slower")
    assert (code, err) == (ExitCode.OK, "")
    assert "6 SAME (claim 1.0%; 6 comparisons, whose intervals hold together with 95%, each with 99.17%)" in out


REFUSED: list[tuple[str, SuiteResult]] = [
    ("machine device: Test CPU in A, Other in B", replace(drawn(2), machine=replace(MACHINE, device="Other"))),
    ("machine arch: x86_64 in A, arm in B", replace(drawn(2), machine=replace(MACHINE, arch="arm"))),
    ("machine kind: cpu in A, cuda in B", replace(drawn(2), machine=replace(MACHINE, kind="cuda"))),
    ("machine threads: 4 in A, 8 in B", replace(drawn(2), machine=replace(MACHINE, threads=8))),
    ("policy: p1 in A, p2 in B", replace(drawn(2), policy="p2")),
    ("sample/chat/greedy prompt_tokens: 32 in A, 7 in B", with_case(drawn(2), prompt_tokens=7)),
    ("sample/chat/greedy new_tokens: 64 in A, 7 in B", with_case(drawn(2), new_tokens=7)),
    ("sample/chat/greedy baseline: hf-eager in A, x in B", with_case(drawn(2), baseline="x")),
]


@pytest.mark.parametrize(("said", "other"), REFUSED, ids=lambda one: one.split(":")[0] if isinstance(one, str) else "")
def test_what_makes_runs_incomparable_is_refused_or_warned_of(
    files: Files, command: Command, said: str, other: SuiteResult
) -> None:
    paths = files(drawn(1), other)
    refused = refusal(*paths)
    assert refused.exit_code == ExitCode.DRIFT
    assert refused.message.endswith(f"are not comparable: {said}")
    code, out, err = command(*paths, "--anyway", "--json")
    assert (code, err) == (ExitCode.OK, f"warning: {said}\n")
    assert [one["refuses"] for one in json.loads(out)["differences"]] == [True]


def test_runs_without_a_case_in_common_are_refused_whatever_is_asked(files: Files) -> None:
    refused = refusal(*files(drawn(1), with_case(drawn(2), workload="code")), "--anyway")
    assert (refused.exit_code, refused.hint) == (3, "A has sample/chat/greedy; B has sample/code/greedy")


def test_another_revision_lock_or_environment_is_told_and_not_refused(files: Files, command: Command) -> None:
    locks = [{"sample": Compiled(lock=lock, compile_s=None, regions=())} for lock in ("l1", "l2")]
    a, b = replace(drawn(1), compiled=locks[0]), replace(drawn(2), compiled=locks[1], environment={"torch": "2.13.0"})
    b = replace(b, revision="4567def", changed_since=True, cases=(*b.cases, replace(b.cases[0], workload="code")))
    told = [one.text for one in differences(a, b)]
    assert told == [
        "cases only: none in A, sample/code/greedy in B",
        "revision: 0123abc in A, 4567def with changes in B",
        "lock of sample: l1 in A, l2 in B",
        "environment torch: 2.12.0 in A, 2.13.0 in B",
    ]
    code, out, err = command(*files(a, b))
    assert (code, err) == (ExitCode.OK, "")
    assert all(line in out for line in told)


def test_slower_fails_only_when_asked_and_only_by_what_decides(files: Files) -> None:
    a, b = files(drawn(1), drawn(2, agentcompile=1.05))
    assert run([a, b]) == ExitCode.OK
    assert run([a, b, "--fail-on-slower"]) == ExitCode.PERFORMANCE == 5
    assert run([a, b, "--fail-on-slower", "--claim", "0.1"]) == ExitCode.OK
    assert run([b, a, "--fail-on-slower"]) == ExitCode.OK
    a, b = files(drawn(1), drawn(2, agentcompile=1.2, hf_compile=1.2, hf_eager=1.2))
    assert run([a, b, "--fail-on-slower"]) == ExitCode.OK
    assert run([a, b, "--fail-on-slower", "--absolute"]) == ExitCode.PERFORMANCE
    assert run([a, "--arms", "agentcompile,hf-eager", "--fail-on-slower"]) == ExitCode.PERFORMANCE


def test_an_arm_that_became_wrong_is_called_out_and_fails_before_what_is_slower(files: Files, command: Command) -> None:
    wrong = ArmResult(name="agentcompile", state="wrong", reason="token 3 \x1b[31mis 7")
    a, b = files(drawn(1), drawn(2, wrong, hf_compile=1.5))
    code, out, err = command(a, b)
    assert (code, err) == (0, "warning: sample/chat/greedy: agentcompile: B: wrong: token 3 is 7\n")
    assert out.count("WRONG") == 2  # in its row and in the summary
    assert "\x1b" not in out
    assert run([a, b, "--fail-on-slower"]) == ExitCode.CORRECTNESS == 4
    assert run([b, a, "--fail-on-slower"]) == ExitCode.OK  # wrong in A alone: it was mended


def test_json_is_one_value_with_both_views(files: Files, command: Command) -> None:
    value = json.loads(command(*files(drawn(1), drawn(2, agentcompile=1.2)), "--json")[1])
    assert (value["format"], value["decides"], value["claim"], value["comparisons"]) == (1, "ratio", 0.01, 6)
    (_, row, _) = (row for row in value["rows"] if row["arm"] == "agentcompile")
    assert (row["quantity"], row["verdict"], set(row["changes"])) == ("token", "SLOWER", {"ratio", "absolute"})
    assert row["changes"]["ratio"]["span"]["value"] == pytest.approx(1 / 1.2, rel=0.01)
    assert [row["verdict"] for row in value["rows"] if row["arm"] == "hf-eager"] == [None, None, None]


def test_markdown_is_a_table_whose_cells_hold_no_bars(files: Files, command: Command) -> None:
    failed = ArmResult(name="hf-compile", state="failed", reason="a | b")
    out = command(*files(drawn(1), drawn(2, failed)), "--markdown")[1]
    lines = [line for line in out.split("\n") if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert any("a \\| b" in line for line in lines)


def test_an_unknown_arm_names_the_nearest(files: Files) -> None:
    (path,) = files(drawn(1))
    assert refusal(path, "--arms", "hf-eager,agentcompil").hint == "did you mean agentcompile?"
    assert refusal(path, "--arms", "zzz,hf-eager").hint == "arms: hf-eager, hf-compile, agentcompile"


@pytest.mark.parametrize(
    ("text", "said"), [(None, "No such file"), ("{", "no JSON"), ('{"format": 99}', "newer"), ('{"format": 1}', "$")]
)
def test_a_file_that_cannot_be_read_is_named(files: Files, tmp_path: Path, text: str | None, said: str) -> None:
    (path,), bad = files(drawn(1)), tmp_path / "bad.json"
    if text is not None:
        bad.write_text(text, encoding="utf-8")
    refused = refusal(path, str(bad))
    assert (refused.message.startswith(str(bad)), refused.exit_code) == (True, ExitCode.USAGE)
    assert said in refused.message


def test_a_file_that_says_two_things_is_refused(files: Files) -> None:
    a = drawn(1)
    case = a.cases[0]
    assert "B: lists a case twice" in refusal(*files(a, replace(a, cases=(case, case)))).message
    assert "lists an arm twice" in refusal(*files(with_case(a, arms=case.arms[:1] * 2), a)).message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("a", "1 files"), ("a b c", "3 files"), ("a b --arms x,y", "compares two arms of one file"),
        ("a --arms x", "give two names"), ("a --arms x,y --absolute", "--absolute: two arms"),
        ("a b --claim 1", "must be a share"), ("a b --claim a", "must be a share"),
        ("a b --json --markdown", "not allowed with"), ("--help", "0.05 / (cases × arms × 2 times)"),
    ],
)  # fmt: skip
def test_wrong_usage_says_what_is_allowed(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments.split())
    assert ended.value.code == (ExitCode.OK if arguments == "--help" else ExitCode.USAGE)
    assert said in " ".join("".join(capsys.readouterr()).split())  # however it is wrapped
