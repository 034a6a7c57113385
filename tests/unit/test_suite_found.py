"""From rounds to a case of the result, by values worked out by hand, and the result as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentcompile.bench.harness.found import Samples, case_of, spread, widened
from agentcompile.bench.harness.means import with_totals
from agentcompile.bench.harness.rates import Round, Visit, estimate, speedup
from agentcompile.bench.harness.result import (
    FORMAT,
    ArmResult,
    Case,
    Compiled,
    Floor,
    RegionShare,
    SuiteResult,
    read_result,
    samples_digest,
    write_result,
)
from agentcompile.bench.harness.trial import Outcome
from agentcompile.bench.harness.workload import Workload

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import encode
from agentcompile.ir.target import Ceiling, Target

WORK = Workload(
    name="sample.chat.greedy", model=Path("sample"), ids=(1, 2, 3), new=5, context=8, token_bytes=1000,
    weight_bytes=900, cache_bytes=0, parameters=1,
)  # fmt: skip
CEILING = Ceiling(dram_bytes_per_s=1e6, cache_bytes_per_s=8e6, flops_per_s=3e9)
ARMS = ("base", "ours")


def visit(*generations: tuple[float, float], others: float = 0.0, peak: int = 0) -> Visit:
    """Of generations that took so long until the first token and from there to the last: four tokens more."""
    firsts, rests = zip(*generations, strict=True)
    middle = sorted(rests)[len(rests) // 2]
    return Visit(
        first_s=sorted(firsts)[len(firsts) // 2], token_s=middle / 4, generations=len(rests), waited=0.0,
        others=others, tries=1, firsts_s=firsts, rests_s=rests, peak_memory_bytes=peak,
    )  # fmt: skip


def timed(
    visits: Mapping[str, tuple[float, float]], *, process: int = 0, others: float = 0.0, read: float = 1e6
) -> Round:
    """A round of two visits to every arm, one generation each: seconds a token, and ten times that to the first."""
    pairs = {
        name: (visit((10 * one, 4 * one), others=others), visit((10 * two, 4 * two), others=others))
        for name, (one, two) in visits.items()
    }
    return Round(process=process, visits=pairs, read_bytes_per_s=read)


ROUNDS = (
    timed({"base": (0.4, 0.4), "ours": (0.1, 0.3)}, read=1e6),
    timed({"base": (0.6, 0.2), "ours": (0.05, 0.15)}, read=2e6),
    timed({"base": (0.8, 0.8), "ours": (0.2, 0.2)}, process=1, read=4e6),
)
"""Base over ours: 2, 4 and 4."""


def found(outcome: Outcome, names: Sequence[str] = ARMS, **more: Any) -> tuple[Case, Samples]:
    settings: dict[str, Any] = {
        "model": "sample", "workload": "chat", "mode": "greedy", "asked": WORK, "outcome": outcome, "absent": {},
        "baseline": "base", "cache_bytes": 100, "ceiling": CEILING, "cached": False, "compile_s": {},
    }  # fmt: skip
    return case_of(names, **(settings | more))


def arm(outcome: Outcome, name: str = "ours", **more: Any) -> ArmResult:
    made = found(outcome, **more)[0].arm(name)
    assert made is not None
    return made


def result(*cases: Case) -> SuiteResult:
    machine = Target(kind="cpu", device="Test CPU", arch="x86_64", isa=("avx2",), threads=4, cache_bytes=(1 << 15,))
    shares = (RegionShare(name="mlp@0", kind="mlp", sites=2, ns=5.0, floor_ns=4.0, choice="pytorch"),)
    return SuiteResult(
        made="2025-01-01T00:00:00+00:00", command="agentcompile bench", revision="0123abc", changed_since=False,
        suite="ci", machine=machine, environment={"torch": "2.12.0"}, policy="p1", seed=0, cases=cases,
        compiled={"sample": Compiled(lock="abc", compile_s=12.5, regions=shares)},
    )  # fmt: skip


def test_a_spread_is_the_median_and_the_nearest_rank_of_95_percent() -> None:
    twenty = spread([float(value) for value in range(20, 0, -1)])
    assert (twenty.median, twenty.p95, twenty.count) == (10.5, 19.0, 20)
    assert spread([3.0, 1.0, 2.0]).p95 == 3.0
    assert (spread([7.0]).median, spread([7.0]).p95) == (7.0, 7.0)
    assert spread([float(value) for value in range(1, 101)]).p95 == 95.0


def test_medians_are_over_the_single_generations_of_all_rounds() -> None:
    few, many = visit((1.0, 4.0), peak=5), visit((2.0, 8.0), (3.0, 12.0), (9.0, 40.0), peak=7)
    outcome = Outcome(rounds=(Round(process=0, visits={"ours": (few, many)}, read_bytes_per_s=1e6),))
    made = arm(outcome)
    assert made.state == "measured"
    assert made.token_s is not None
    assert (made.token_s.median, made.token_s.p95, made.token_s.count) == (2.5, 10.0, 4)  # of 1, 2, 3 and 10
    assert made.first_s is not None
    assert (made.first_s.median, made.first_s.p95) == (2.5, 9.0)
    assert made.total_s is not None
    assert (made.total_s.median, made.total_s.p95) == (12.5, 49.0)  # of 5, 10, 15 and 49
    assert (made.tokens_per_s, made.peak_memory_bytes) == (0.4, 7)


def test_disturbed_rounds_are_in_no_median_and_no_interval_but_in_the_samples() -> None:
    disturbed = timed({"base": (50.0, 50.0), "ours": (90.0, 90.0)}, process=1, others=0.5, read=9e9)
    case, samples = found(Outcome(rounds=(*ROUNDS, disturbed)))
    clean, _ = found(Outcome(rounds=ROUNDS))
    assert (case.arms, case.floor) == (clean.arms, clean.floor)
    assert [one.kept for one in case.rounds] == [True, True, True, False]
    assert case.rounds[3].token_s == {"base": 50.0, "ours": 90.0}
    assert samples["ours"][-1] == [1.0, 1.0, 900.0, 360.0]  # the second round of the second process
    assert len(samples["ours"]) == 8


def test_a_speed_up_is_paired_by_round() -> None:
    made = arm(Outcome(rounds=ROUNDS))
    by_hand, by_rates = estimate([math.log(ratio) for ratio in (2, 4, 4)]), speedup(ROUNDS, "ours", "base")
    assert made.speedup is not None
    assert by_hand is not None
    assert by_rates is not None
    assert made.speedup.value == pytest.approx(32 ** (1 / 3))
    # ln 2 is how far the logarithms are apart: their deviation is ln 2 / √3, and t(0.975, 2) = 4.30265.
    half = 4.30265 * math.log(2) / 3
    assert made.speedup.low == pytest.approx(32 ** (1 / 3) * math.exp(-half), rel=1e-4)
    assert made.speedup.high == pytest.approx(32 ** (1 / 3) * math.exp(half), rel=1e-4)
    for other in (by_hand, by_rates):
        assert encode(made.speedup) == pytest.approx(encode(other))
    assert made.first_speedup is not None
    assert made.first_speedup.value == pytest.approx(made.speedup.value)
    assert (made.speedup.rounds, arm(Outcome(rounds=ROUNDS), "base").speedup) == (3, None)


def test_the_speed_up_of_a_request_is_of_its_prompt_and_all_its_tokens() -> None:
    case, _ = found(Outcome(rounds=ROUNDS))
    (widened_case,), _ = widened([case])
    ours = widened_case.arm("ours")
    assert ours is not None
    rest = case.new_tokens - 1
    logs = [
        math.log(
            (one.first_s["base"] + rest * one.token_s["base"]) / (one.first_s["ours"] + rest * one.token_s["ours"])
        )
        for one in case.rounds
    ]
    by_hand = estimate(logs)
    assert by_hand is not None
    assert encode(ours.total_speedup) == pytest.approx(encode(by_hand))
    base = widened_case.arm("base")
    assert base is not None
    assert base.total_speedup is None
    assert with_totals(result(case)) == result(widened_case), "a file older than the field gets the same"


def test_rounds_without_the_baseline_pair_nothing() -> None:
    lone = timed({"ours": (0.1, 0.1)})
    made = arm(Outcome(rounds=(*ROUNDS, lone)))
    assert made.speedup is not None
    assert made.token_s is not None
    assert (made.speedup.rounds, made.token_s.count) == (3, 8)
    made = arm(Outcome(rounds=(*ROUNDS[:2], lone)))
    assert (made.state, made.speedup, made.first_speedup) == ("measured", None, None)


def test_the_floor_is_what_a_token_reads_over_the_rate_of_the_kept_rounds() -> None:
    case, _ = found(Outcome(rounds=ROUNDS))
    assert case.floor == Floor(weight_bytes=900, cache_bytes=100, read_bytes_per_s=2e6, flops_per_s=3e9)
    assert case.floor.token_s == 0.0005
    ours = case.arm("ours")
    assert ours is not None
    assert ours.times_floor == pytest.approx(350.0)  # the median of 0.05, 0.1, 0.15, 0.2, 0.2 and 0.3 is 0.175 s


def test_the_floor_of_what_stays_in_the_caches_is_at_their_rate() -> None:
    case, _ = found(Outcome(rounds=ROUNDS), cached=True)
    assert case.floor is not None
    assert (case.floor.read_bytes_per_s, case.floor.token_s) == (8e6, 0.000125)
    ours = case.arm("ours")
    assert ours is not None
    assert ours.times_floor == pytest.approx(1400.0)


def test_without_rounds_there_is_no_floor() -> None:
    case, samples = found(Outcome(), cached=True)
    assert (case.floor, case.rounds, samples) == (None, (), {})


@pytest.mark.parametrize(
    ("outcome", "absent", "state", "reason"),
    [
        (Outcome(rounds=ROUNDS), "", "measured", ""),
        (Outcome(), "not installed", "absent", "not installed"),
        (Outcome(reasons={"ours": "exit code 3"}), "not installed", "absent", "not installed"),
        (Outcome(reasons={"ours": "exit code 3"}), "", "failed", "exit code 3"),
        (Outcome(rounds=ROUNDS, reasons={"ours": "killed"}), "", "failed", "killed"),
        (Outcome(rounds=ROUNDS, agreement={"ours": "token 3 is 7"}), "", "wrong", "token 3 is 7"),
        (Outcome(agreement={"ours": "token 3 is 7"}, reasons={"ours": "died"}), "", "failed", "died"),
        (Outcome(rounds=(timed({"ours": (1.0, 1.0)}, others=0.2),)), "", "failed", "no round was undisturbed"),
        (Outcome(), "", "failed", "no round was undisturbed"),
    ],
)
def test_an_arm_that_is_not_measured_says_why(outcome: Outcome, absent: str, state: str, reason: str) -> None:
    made = arm(outcome, absent={"ours": absent} if absent else {})
    assert (made.state, made.reason, made.agrees) == (state, reason, outcome.agreement.get("ours"))
    assert (made.token_s is None) == (not any(not one.contended for one in outcome.rounds))


@pytest.mark.parametrize("others", [0.0, 0.5])
def test_one_visit_with_other_tokens_is_told_of_its_arm_alone_though_the_round_does_not_count(others: float) -> None:
    last = timed({"base": (0.4, 0.4), "ours": (0.1, 0.1)}, others=others)
    first, then = last.visits["ours"]
    moody = replace(last, visits={**last.visits, "ours": (first, replace(then, same=False))})
    ours, base = (arm(Outcome(rounds=(*ROUNDS, moody)), name) for name in ("ours", "base"))
    assert (ours.state, ours.reason, ours.same, base.same) == ("measured", "", False, True)
    assert ours == replace(arm(Outcome(rounds=(*ROUNDS, last))), same=False)
    lone = arm(Outcome(rounds=(moody,)))
    assert (lone.state, lone.same) == ("failed" if others else "measured", False)


def test_what_is_told_beside_the_times_is_the_arms_own() -> None:
    outcome = Outcome(
        rounds=ROUNDS, facts={"ours": {"threads": 2, "torch": "2.12.0", "freezing": True}},
        load_s={"ours": (1.0, 2.0)}, agreement={"ours": ""},
    )  # fmt: skip
    case, _ = found(outcome, compile_s={"ours": 61.5})
    ours, base = case.arm("ours"), case.arm("base")
    assert ours is not None
    assert base is not None
    assert ours.facts == {"threads": "2", "torch": "2.12.0", "freezing": "True"}
    assert (ours.load_s, ours.compile_s, ours.agrees) == ((1.0, 2.0), 61.5, "")
    assert (base.facts, base.load_s, base.compile_s, base.agrees) == ({}, (), None, None)
    assert (case.key, case.prompt_tokens, case.new_tokens, case.baseline) == ("sample/chat/greedy", 3, 5, "base")
    assert case.arm("other") is None


def test_the_digest_of_the_samples_is_that_of_every_single_generation() -> None:
    case, samples = found(Outcome(rounds=ROUNDS))
    assert samples["base"][:2] == [[0.0, 0.0, 4.0, 1.6], [0.0, 0.0, 4.0, 1.6]]
    assert samples["base"][-1] == [1.0, 0.0, 8.0, 3.2]
    assert case.samples == samples_digest(samples) == samples_digest(json.loads(json.dumps(samples)))
    first, second = ROUNDS[0].visits["ours"]
    longer = replace(first, rests_s=(math.nextafter(first.rests_s[0], 1),))
    changed = replace(ROUNDS[0], visits={**ROUNDS[0].visits, "ours": (longer, second)})
    assert found(Outcome(rounds=(changed, *ROUNDS[1:])))[0].samples != case.samples


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcome = Outcome(rounds=ROUNDS, agreement={"ours": "token 3 is »7«"}, reasons={"gone": "exit code 3"})
    made = result(found(outcome, (*ARMS, "gone"))[0], found(Outcome(), mode="sampled")[0])
    path = tmp_path / "new" / "result.json"
    write_result(path, made)
    assert read_result(path) == made
    assert "»7«" in path.read_text(encoding="utf-8")


def test_a_result_of_an_older_format_says_of_no_arm_that_its_tokens_varied(tmp_path: Path) -> None:
    made = result(found(Outcome(rounds=ROUNDS))[0])
    path = tmp_path / "result.json"
    write_result(path, made)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["format"] = 2
    assert [one.pop("same") for one in data["cases"][0]["arms"]] == [True, True]
    path.write_text(json.dumps(data), encoding="utf-8")
    assert read_result(path) == replace(made, format=2)


def test_a_result_that_cannot_be_written_is_an_error_that_can_be_mended(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(AgentCompileError, match=r"file/result\.json: ") as refused:
        write_result(tmp_path / "file" / "result.json", result())
    assert refused.value.exit_code == ExitCode.ENVIRONMENT
    assert "--resume" in refused.value.hint


def test_a_result_of_a_newer_format_is_refused_before_it_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"format": FORMAT + 1, "cases": "another shape"}), encoding="utf-8")
    with pytest.raises(AgentCompileError, match=f"format: {FORMAT + 1} is newer than {FORMAT}") as refused:
        read_result(path)
    assert "the version of agentcompile that wrote it" in refused.value.hint


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": True}, "format: is no result of the suite"),
        ({"format": "1"}, "format: is no result of the suite"),
        ({"seed": "0"}, "$.seed: expected int"),
        ({"cases": [{}]}, "$.cases[0]"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_damaged_result_says_what_is_wrong_with_it(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    path = tmp_path / "result.json"
    write_result(path, result())
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")
    with pytest.raises(AgentCompileError) as refused:
        read_result(path)
    assert refused.value.message.startswith(f"{path}: ")
    assert said in refused.value.message
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("cut", [0, 1, 40, -3])
def test_a_result_that_was_cut_is_no_result(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "result.json"
    write_result(path, result())
    path.write_text(path.read_text(encoding="utf-8")[:cut], encoding="utf-8")
    with pytest.raises(AgentCompileError, match="is no JSON"):
        read_result(path)


def test_a_result_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AgentCompileError, match="is no JSON"):
        read_result(path)
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(AgentCompileError, match="is no result of the suite"):
        read_result(path)
    with pytest.raises(AgentCompileError, match="No such file"):
        read_result(tmp_path / "nowhere.json")
