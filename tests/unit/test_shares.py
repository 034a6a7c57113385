"""Shares of a campaign: each does other work on CPUs of its own, and one that dies is told of."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError
from bench.campaign import kills
from bench.campaign.recipe import run
from bench.campaign.report import Campaign, Report
from bench.campaign.shares import cpus_of, environment_of, gpus, side_by_side
from tests.unit import shared_kind


def shared(campaign: Campaign) -> tuple[Report, list[str]]:
    said: list[str] = []
    return side_by_side(shared_kind, "shared", campaign, said.append), said


def test_all_attempts_are_made_each_share_has_a_ledger_and_its_lines_tell_which_it_is(tmp_path: Path) -> None:
    asked = Campaign(count=9, seed=0, seconds=0.0, shares=2, threads=2, partial=tmp_path / "a.partial.jsonl")
    report, said = shared(asked)
    assert report.ok
    assert report.tried == 9
    assert report.figures["shares"] == 2
    assert [row["share"] for row in report.details] == [0, 1]
    assert [row["ledger"] for row in report.details] == ["a.1-of-2.partial.jsonl", "a.2-of-2.partial.jsonl"]
    assert sorted(said) == ["share 1 of 2: begins", "share 2 of 2: begins"]


@pytest.mark.parametrize(("count", "why"), [(shared_kind.DIES, "exit code 7"), (shared_kind.RAISES, "broken")])
def test_a_share_that_dies_is_a_failure_beside_what_the_others_found(count: int, why: str) -> None:
    report, _ = shared(Campaign(count=count, seed=0, seconds=0.0, shares=2, threads=2))
    assert not report.ok
    assert report.tried == (count + 1) // 2
    assert len(report.failures) == 1
    assert "share 2 of 2 ended" in report.failures[0]
    assert why in report.failures[0]


def test_shares_have_cpus_of_their_own_within_the_quota() -> None:
    assert [cpus_of(i, 3, range(8), 8) for i in range(3)] == [(0, 1), (2, 3), (4, 5)]
    assert [cpus_of(i, 2, range(64), 16)[::7] for i in range(2)] == [(0, 7), (8, 15)]
    assert [cpus_of(i, 3, [4, 6], 2) for i in range(3)] == [(4,), (6,), (4,)]


def test_shares_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    given = [environment_of(share, gpus(), {"HOME": "here", "CUDA_VISIBLE_DEVICES": "2,GPU-5"}) for share in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in given] == ["2", "GPU-5", "2"]
    assert {one["HOME"] for one in given} == {"here"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment_of(0, gpus(), {"CUDA_VISIBLE_DEVICES": ""}) == {"CUDA_VISIBLE_DEVICES": ""}


def test_kills_of_all_shares_are_one_report_of_courses_in_order() -> None:
    found = [
        kills.Findings(
            courses=(kills.Course(number=share, ways=("lock", "group"), wrong=("torn",) * share, lock=f"l{share}"),),
            run_s=3.0 + share,
            locks=("l0",),
            seed=4,
        )
        for share in (1, 0)
    ]
    report = kills.report(found)
    assert report.tried == 4
    assert report.failures == ("run 1 (seed 4): torn",)
    assert report.figures["undisturbed run with a warm store, s"] == 4.0
    assert report.figures["different locks"] == 2
    assert report.figures["kills of the lock"] == 2


def test_a_kind_that_has_no_shares_says_so() -> None:
    with pytest.raises(AgentCompileError, match="locks runs in one process"):
        run(["--kind", "locks", "--jobs", "2"])


@pytest.mark.parametrize(
    ("recipe", "flags", "why"),
    [
        ("campaign.recipe", ["--kind", "kills", "--jobs", "0"], "--jobs: 0 is less than 1"),
        ("busy.recipe", ["--runs", "4"], "--runs: 4 is less than 5"),
        ("busy.recipe", ["--seconds", "120.0"], "--seconds: '120.0' is no whole number"),
        ("app", ["--paints", "many"], "--paints: 'many' is no whole number"),
    ],
)
def test_numbers_that_measure_nothing_are_refused_before_anything_runs(
    recipe: str, flags: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        import_module(f"bench.{recipe}").run(flags)
    assert why in capsys.readouterr().err
