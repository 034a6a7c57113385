"""A ladder in a report: rungs, shares and gains as tables and as a picture, every number the result's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.harness.rates import VARIES
from agentcompile.bench.harness.result import (
    ArmResult,
    Case,
    Gain,
    Interval,
    KindShare,
    Owner,
    Rung,
    Spread,
    SuiteResult,
    read_result,
    write_result,
)
from agentcompile.bench.ladder.rungs import RUNGS
from agentcompile.bench.report.markdown import gains_table, markdown, rungs_table, shares_table
from agentcompile.bench.report.page import page
from agentcompile.bench.report.plots import draw

from agentcompile.ir.target import Target

TIMES = {"eager": 0.010, "static-cache": 0.004, "first-templates": 0.0005, "agentcompile": 0.0004}
EVIL = "<script>alert(1)</script>"


def arm(name: str, seconds: float) -> ArmResult:
    spread = Spread(median=seconds, p95=seconds, count=4)
    return ArmResult(name=name, state="measured", token_s=spread, tokens_per_s=1 / seconds, agrees="")


def gain(over: str, before: float, after: float) -> Gain:
    owners = (
        Owner(name="attention", before_s=before * 0.5, after_s=after * 0.25),
        Owner(name="rmsnorm-linear", before_s=before * 0.25, after_s=after * 0.5),
    )
    rest = Owner(name="between the regions", before_s=before * 0.25, after_s=after * 0.25)
    interval = Interval(value=before / after, low=before / after / 1.1, high=before / after * 1.1, rounds=6)
    return Gain(over=over, before_s=before, after_s=after, owners=owners, rest=rest, speedup=interval)


SHARES = (KindShare(kind="rmsnorm-linear", sites=6, share=0.5), KindShare(kind="attention", sites=6, share=0.25))


@pytest.fixture
def case() -> Case:
    names = list(TIMES)
    rungs = [Rung(name="eager", about="as it comes", looked="it cannot say where its time goes")]
    for below, name in itertools.pairwise(names):
        found = gain(below, TIMES[below], TIMES[name])
        rungs.append(
            Rung(
                name=name,
                about="more",
                lock="sha256:" + "a" * 64,
                shares=SHARES,
                rest=0.25,
                looked="a clock",
                gain=found,
            )
        )
    failed = ArmResult(name="no-python", state="failed", reason=f"killed by signal 9 {EVIL}")
    rungs.insert(2, Rung(name="no-python", about="less", looked="not profiled"))
    arms = [arm(name, seconds) for name, seconds in TIMES.items()]
    return Case(
        model="sample",
        workload="chat-small",
        mode="greedy",
        prompt_tokens=32,
        new_tokens=64,
        baseline="eager",
        floor=None,
        arms=(*arms[:2], failed, *arms[2:]),
        rounds=(),
        rungs=tuple(rungs),
    )


@pytest.fixture
def result(case: Case) -> SuiteResult:
    machine = Target(
        kind="cpu",
        device="A CPU",
        arch="x86_64",
        isa=("avx2",),
        threads=2,
        cache_bytes=(1 << 20,),
        toolchain="g++ 12.2.0",
    )
    return SuiteResult(
        made="2026-01-01T00:00:00+00:00",
        command="agentcompile bench ladder sample",
        revision="1" * 40,
        changed_since=False,
        suite="ladder",
        machine=machine,
        environment={},
        policy="p",
        seed=0,
        cases=(case,),
    )


def test_the_rungs_stand_in_their_order_and_one_that_failed_says_why(case: Case) -> None:
    rows = rungs_table(case).rows
    assert [row[0] for row in rows] == ["eager", "static-cache", "no-python", "first-templates", "agentcompile"]
    assert rows[1][1:4] == ("4.000", "250.0", "2.50× (2.27–2.75)")
    assert rows[2][-1].startswith("failed: killed by signal 9")
    assert rows[3][6] == "a" * 12


def test_a_rung_whose_tokens_varied_says_so_beside_what_runs(case: Case) -> None:
    varied = replace(case, arms=tuple(replace(one, same=one.name != "static-cache") for one in case.arms))
    before, after = ({row[0]: row for row in rungs_table(one).rows} for one in (case, varied))
    assert after.pop("static-cache") == (*before.pop("static-cache")[:-1], f"more; {VARIES}")
    assert after == before


def test_the_owners_of_a_gain_are_followed_by_the_rest_and_the_whole(case: Case) -> None:
    rows = [row for row in gains_table(case).rows if row[0] == "agentcompile over first-templates"]
    assert [row[1] for row in rows] == ["attention", "rmsnorm-linear", "between the regions", "the whole"]
    assert rows[-1][2:] == ("500.0", "400.0", "100.0", "100.0%")
    assert sum(float(row[4]) for row in rows[:-1]) == pytest.approx(100.0)
    assert rows[1][4:] == ("-75.0", "-75.0%")


def test_a_rung_above_one_that_failed_is_held_against_the_nearest_below(case: Case) -> None:
    assert "first-templates over static-cache" in {row[0] for row in gains_table(case).rows}


def test_shares_have_a_column_for_every_rung_that_was_looked_into(case: Case) -> None:
    table = shares_table(case)
    assert table.heads == ("kind (occurrences)", "static-cache", "first-templates", "agentcompile")
    assert table.rows[0] == ("rmsnorm-linear", *["50.0% (6)"] * 3)
    assert table.rows[2] == ("between the regions", *["25.0%"] * 3)


def test_nothing_is_shown_of_shares_where_nobody_looked(case: Case) -> None:
    assert shares_table(replace(case, rungs=case.rungs[:1])).rows == []


def test_markdown_and_page_have_the_ladder_and_obey_no_text(result: SuiteResult) -> None:
    plots = draw(result)
    names = [plot.name for plot in plots]
    assert "ladder-sample-chat-small" in names
    text = markdown(result, {"sample": [(plot.title, f"{plot.name}.png") for plot in plots]})
    shown = page(result, plots)
    for title in ("Rungs, chat-small", "Gain by owner, chat-small", "Shares of a token"):
        assert title in text
        assert title in shown
    assert EVIL not in text + shown


def test_the_picture_is_the_same_bytes_again(result: SuiteResult) -> None:
    first, second = draw(result), draw(result)
    assert first == second
    (ladder,) = (plot for plot in first if plot.name.startswith("ladder-"))
    assert ladder.png.startswith(b"\x89PNG")
    for name in TIMES:
        assert name in ladder.svg


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_a_ladder_of_one_rung_or_of_losses_is_drawn_too(result: SuiteResult, case: Case, scale: float) -> None:
    sole = replace(result, cases=(replace(case, arms=case.arms[:1], rungs=case.rungs[:1]),))
    assert any(plot.name.startswith("ladder-") for plot in draw(sole))
    slower = replace(case.rungs[1], rest=-0.1, gain=gain("eager", TIMES["eager"], 2 * TIMES["eager"] * scale))
    worse = replace(case, rungs=(case.rungs[0], slower), arms=case.arms[:2])
    assert any(plot.name.startswith("ladder-") for plot in draw(replace(result, cases=(worse,))))


def test_a_result_with_a_ladder_is_read_back_as_it_was(result: SuiteResult, tmp_path: Path) -> None:
    write_result(tmp_path / "a.json", result)
    assert read_result(tmp_path / "a.json") == result


def test_every_rung_says_what_runs_on_both_kinds_of_device() -> None:
    assert len({rung.name for rung in RUNGS}) == len(RUNGS) == 7
    for rung in RUNGS:
        assert set(rung.about) == {"cpu", "cuda"}
        assert rung.change
        assert set(rung.rule) <= {"cpu", "cuda"}
    assert [rung.rule.get("cuda") for rung in RUNGS] == [None, None, None, None, "first", "isolated", "admitted"]
