"""Studies of real compiles: what follows from their numbers, their figure, their files, and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import AdviserReplied, SearchProgress, Warned
from agentcompile.ir.advice import Usage
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.digest import canonical
from bench.ablation.compile_curves import curve, draw
from bench.ablation.compiles import (
    Arm,
    Compile,
    Compiles,
    Progress,
    TimedStep,
    overhead_of,
    progress_of,
    standings,
    timed_beside,
)
from bench.ablation.compiling import Request, arms_of, read_compiles, report
from bench.ablation.run import run
from tests.unit.fakes import target


def made(arm: str, seed: int = 0, *, steps: Sequence[tuple[int, int]] = (), log_ratio: float | None = 0.0) -> Compile:
    progress = tuple(Progress(trials=n, elapsed_s=float(n), step_ns=ns, measured=False) for n, ns in steps)
    return Compile(
        model="m",
        arm=arm,
        seed=seed,
        seconds=60.0 + seed,
        searched_s=30.0,
        trials=progress[-1].trials if progress else 0,
        progress=progress,
        used=Usage(calls=1, prompt_tokens=100, completion_tokens=10),
        step_ns=None if log_ratio is None else 1e6 / math.exp(log_ratio),
        log_ratio=log_ratio,
        half_width=None if log_ratio is None else 0.01,
        failure="exit 5: no" if log_ratio is None else "",
    )


def study(*compiles: Compile, arms: Sequence[str] = ("a@none", "b@none")) -> Compiles:
    return Compiles(
        command="agentcompile ablate m",
        version="0",
        revision="abc",
        changed_since=False,
        machine=target(),
        seconds=60,
        trials=0,
        arms=tuple(arms),
        compiles=compiles,
    )


def test_an_arm_is_a_strategy_and_an_adviser() -> None:
    assert arms_of(["halving; mcts:branching=4@none", "halving"]) == (
        Arm(strategy="halving", adviser="heuristic"),
        Arm(strategy="mcts:branching=4", adviser="none"),
    )
    assert arms_of(["evolutionary@openai:m@http://127.0.0.1:1/v1"])[0].adviser == "openai:m@http://127.0.0.1:1/v1"
    for wrong in ("halvin", "", ";", "@none"):
        with pytest.raises(AgentCompileError):
            arms_of([wrong])


def test_progress_leaves_out_what_says_nothing_new_and_adds_up_what_advice_used() -> None:
    one = Usage(calls=1, prompt_tokens=5, completion_tokens=2)
    told = [
        SearchProgress(elapsed_s=1.0, candidates=3),
        AdviserReplied(call=1, booked=one, used=one, result="answered"),
        SearchProgress(elapsed_s=2.0, candidates=3),
        Warned(text="busy"),
        SearchProgress(elapsed_s=3.0, candidates=9, step_ns=500),
        AdviserReplied(call=2, booked=one, used=one, result="answered"),
        SearchProgress(elapsed_s=4.0, candidates=9, step_ns=400, measured=True),
    ]
    progress, used = progress_of(told)
    assert [(step.trials, step.step_ns, step.measured) for step in progress] == [
        (3, 0, False),
        (9, 500, False),
        (9, 400, True),
    ]
    assert (used.calls, used.tokens) == (2, 14)
    assert progress_of([]) == ((), Usage())


def test_the_overhead_is_that_of_the_last_report_as_a_share_of_the_whole_compile() -> None:
    told = [
        SearchProgress(elapsed_s=1.0, overhead_s=0.5),
        SearchProgress(elapsed_s=40.0, overhead_s=2.0),
        Warned(text="-"),
    ]
    assert overhead_of(told, 80.0) == (2.0, 0.025)
    assert overhead_of([SearchProgress(elapsed_s=1.0)], 80.0) == (None, None), "a run from before it was measured"
    assert overhead_of([], 80.0) == (None, None)
    shares = [replace(made("a@none", seed), overhead_share=share) for seed, share in enumerate((0.02, None, 0.04))]
    first, second = standings(study(*shares, made("b@none")))
    assert first.overhead_share == pytest.approx(0.03)
    assert second.overhead_share is None
    assert " 3.0% " in report(study(*shares))[1]


def test_the_best_step_after_so_many_trials_is_that_known_by_then() -> None:
    one = made("a@none", steps=[(10, 0), (20, 900), (60, 950), (90, 700)])
    assert [one.step_after(n) for n in (5, 19, 20, 60, 89, 90, 1000)] == [math.inf, math.inf, 900, 900, 900, 700, 700]


def test_a_standing_is_over_seeds_and_in_the_same_rounds() -> None:
    result = study(
        *(made("a@none", seed, steps=[(25, 2000)]) for seed in range(3)),
        *(
            made("b@none", seed, steps=[(20, 1000), (100, 800)], log_ratio=log)
            for seed, log in enumerate((0.1, 0.2, 0.3))
        ),
        made("b@none", 3, log_ratio=None),
    )
    first, second = standings(result)
    assert (first.compiles, first.failed, first.speedup, first.low, first.high) == (3, 0, 1.0, 1.0, 1.0)
    assert (second.compiles, second.failed) == (4, 1)
    assert second.speedup == pytest.approx(math.exp(0.2))
    # t(0.975, 2) = 4.303 (any table), times 0.1 / sqrt(3).
    assert second.low == pytest.approx(math.exp(0.2 - 4.3027 * 0.1 / math.sqrt(3)), rel=1e-4)
    assert (second.calls, second.tokens) == (4, 440)
    assert first.after == (2000, 2000, 2000, 2000)
    assert second.after[0] == 1000
    text = "\n".join(report(result))
    assert "4, 1 failed" in text
    assert f"{math.exp(0.2):.3f}×" in text


def test_a_longer_compile_is_paid_back_after_so_many_tokens() -> None:
    """The first arm: 60 s, a step of 1 ms. A step of 0.8 ms gains 0.2 ms a token; 30 s more are 150,000 tokens."""
    faster = replace(made("b@none", log_ratio=math.log(1.25)), seconds=90.0)
    cases = (
        (faster, "150,000", 150_000.0),
        (replace(faster, seconds=50.0), "0", 0.0),
        (replace(faster, log_ratio=math.log(0.9)), "never", math.inf),
        (replace(faster, log_ratio=0.0), "never", math.inf),
        (replace(faster, log_ratio=-1e9), "never", math.inf),
        (made("b@none", log_ratio=None), "-", math.nan),
    )
    for other, told, tokens in cases:
        result = study(made("a@none"), other)
        first, second = standings(result)
        assert math.isnan(first.break_even)
        assert second.break_even == pytest.approx(tokens, nan_ok=True)
        row = next(line for line in report(result) if "b@none" in line)
        assert row.split()[-5] == told


def test_one_seed_has_the_interval_of_its_rounds_and_none_has_none() -> None:
    (one,) = standings(study(made("a@none", log_ratio=0.5)))
    assert (one.low, one.high) == pytest.approx((math.exp(0.49), math.exp(0.51)))
    unsure = replace(made("a@none"), half_width=1e9)
    assert standings(study(unsure))[0].high == math.inf
    assert "inf" not in "\n".join(report(study(unsure)))
    (none,) = standings(study(made("a@none", log_ratio=None)))
    assert math.isnan(none.speedup)
    assert "1, 1 failed" in "\n".join(report(study(made("a@none", log_ratio=None))))


def test_without_a_lock_of_the_first_arm_there_is_a_step_and_no_speed_up() -> None:
    group = [made("a@none", log_ratio=None), replace(made("b@none"), step_ns=None, log_ratio=None, half_width=None)]
    timed = timed_beside(group, {"b@none": TimedStep(2e6, None, None)})
    first, second = standings(study(*timed))
    assert (first.failed, second.failed, second.step_ns) == (1, 0, 2e6)
    assert math.isnan(second.speedup)
    row = next(line for line in report(study(*timed)) if "b@none" in line)
    assert "2 ms" in row
    assert "nan" not in row
    assert "×" not in row


def test_what_was_timed_goes_to_its_arm_and_what_was_not_says_so() -> None:
    group = [made("a@none", log_ratio=None), replace(made("b@none"), step_ns=None, log_ratio=None, half_width=None)]
    one, other = timed_beside(group, {"a@none": TimedStep(10.0, 0.0, 0.0)})
    assert (one.step_ns, one.log_ratio) == (10.0, 0.0)
    assert "could not be timed" in other.failure
    assert timed_beside(group, {})[0].failure == "exit 5: no"


def test_a_curve_is_the_median_of_the_best_known() -> None:
    compiles = [made("a@none", n, steps=[(10, 100 * (n + 1)), (20, 50)]) for n in range(3)]
    assert curve(compiles) == ([10, 20], [200, 50])
    assert curve([made("a@none")]) == ([], [])


def test_the_figure_is_the_same_for_the_same_result_and_shows_every_arm() -> None:
    result = study(made("a@none", steps=[(5, 3000), (9, 2000)]), made("b@none", steps=[(5, 3100)], log_ratio=None))
    png, svg = draw(result)
    assert png.startswith(b"\x89PNG")
    assert "a@none" in svg
    assert "b@none" in svg
    assert draw(result)[1] == svg
    draw(study())


def test_a_result_is_read_back_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, path = study(made("a@none", steps=[(5, 3000)]), made("b@none", log_ratio=0.2)), tmp_path / "r.json"
    path.write_bytes(canonical(encode(result)))
    assert read_compiles(path) == result == decode(Compiles, json.loads(path.read_bytes()))
    assert run(["--show", str(path), "--out", str(tmp_path / "again.json")]) == ExitCode.OK
    assert "1.221×" in capsys.readouterr().out
    assert {one.name for one in tmp_path.iterdir()} == {"r.json", "again.json", "again.png", "again.svg"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "no result of compiles"),
        (b'{"format": 9}', "newer than"),
        (b'{"kind": "agentcompile compiles"}', "no result of compiles"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(AgentCompileError, match=words) as refused:
        read_compiles(path)
    assert str(path) in str(refused.value)
    with pytest.raises(AgentCompileError, match="cannot be read"):
        read_compiles(tmp_path / "none.json")


SAMPLE = str(Path(__file__).resolve().parents[2] / "bench/models/sample")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m", "--strategies", "halving", "--jobs", "2"], "--jobs"),
        (["m", "--strategies", "halving", "--arms", "none"], "--arms"),
        ([SAMPLE, "--strategies", "halvin"], "no strategy"),
        ([SAMPLE, "--strategies", "halving", "--seeds", "0"], "--seeds"),
        (["m", "--seconds", "5"], "--seconds"),
        (["/nowhere/at/all", "--strategies", "halving"], "no such directory"),
        (["--space", "x.json", "--seconds", "5"], "--seconds"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(AgentCompileError, match=said):
        run(words)


def test_a_preset_is_a_model_and_an_unknown_one_is_named_with_its_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path))
    with pytest.raises(AgentCompileError, match="preset:tiny-qwen4: no such preset") as caught:
        run(["preset:tiny-qwen4", "--strategies", "halving"])
    assert "did you mean tiny-qwen3?" in caught.value.hint
    asked = list[Request]()
    monkeypatch.setattr("bench.ablation.compiling.run", lambda request, as_json: asked.append(request) or 0)
    assert run(["preset:tiny-qwen3", "--strategies", "halving"]) == 0
    assert (asked[0].models[0] / "config.json").is_file()
