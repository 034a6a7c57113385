from __future__ import annotations

import json
from dataclasses import replace

import pytest
from runs import FOUND, KERNEL, PLAN, REGION, STARTED, WHOLE, trial

from agentcompile.events import ChoiceMade, PlanAdmitted, SpaceBounded, TrialFinished
from agentcompile.ir.trial import NO_INTERVAL, Fallback, Part
from agentcompile.runs import tables
from agentcompile.runs.progress import fold
from agentcompile.runs.tables import Table, amount, duration, plan_line, rough, state_json


def only(table: Table) -> dict[str, str]:
    (row,) = table.rows
    return dict(zip(table.heads, row, strict=True))


def test_the_region_table_says_what_was_chosen_and_by_how_much() -> None:
    assert only(tables.regions(fold(WHOLE))) == {
        "region": "linear@aaaaaa",
        "count": "7",
        "share": "60.0%",
        "roofline": "500 ns",
        "pytorch": "1.65 µs",
        "best": "1 µs",
        "ratio": "1.65×",
        "choice": "linear/rows(ROWS=4)",
    }


def test_a_fallback_shows_its_reason_and_what_is_unknown_is_a_dash() -> None:
    state = fold([STARTED, FOUND, ChoiceMade(region=REGION, choice=Fallback(reason="nothing was faster"))])
    row = only(tables.regions(state))
    assert (row["pytorch"], row["best"], row["ratio"]) == ("-", "-", "-")
    assert row["choice"] == "PyTorch: nothing was faster"


def test_a_region_that_no_template_serves_says_so() -> None:
    state = fold([STARTED, FOUND, SpaceBounded(region=REGION, templates=0, points=0, rejected=0)])
    assert only(tables.regions(state))["choice"] == "no template"


def test_the_summary_says_what_a_region_must_cost() -> None:
    row = only(tables.summary(fold(WHOLE)))
    assert (row["FLOP"], row["bytes"], row["FLOP/B"], row["candidates"]) == ("10", "20 B", "0.50", "40")


def test_a_plan_shows_the_sites_it_covers_and_the_confirmed_number() -> None:
    some = replace(PLAN, parts=(Part(region=REGION, choice=KERNEL, sites=(0, 1)),))
    state = fold([*WHOLE, PlanAdmitted(plan=some)])
    row = only(tables.plan(state, state.plans[0]))
    assert (row["count"], row["share"], row["chosen"], row["ratio"]) == ("2", "17.1%", "1 µs", "1.65×")


def test_a_plan_is_one_line_with_its_interval() -> None:
    assert plan_line(PLAN) == "decode b1 c1-64: 100 µs a step, baseline 250 µs: 2.46× (2.41–2.51)"
    bare = plan_line(replace(PLAN, half_width=NO_INTERVAL))
    assert "about 2× by the quickest rounds, contended: no interval, and when quiet it may be far less" in bare
    assert plan_line(replace(PLAN, half_width=500.0)) == bare
    disturbed = plan_line(replace(PLAN, comparison="INCONCLUSIVE", disturbed=0.61))
    assert disturbed.endswith(
        "2.46× (2.41–2.51), contended: 61% of the rounds disturbed, and when quiet it may be far less"
    )


@pytest.mark.parametrize(
    ("ratio", "digits", "shown"),
    [(8022.3, 1, "8,000"), (761.1, 2, "760"), (93.78, 2, "94"), (2.46, 1, "2"), (0.0312, 1, "0.03"), (12, 3, "12")],
)
def test_an_estimate_has_no_digits_that_say_nothing(ratio: float, digits: int, shown: str) -> None:
    assert rough(ratio, digits) == shown


def test_a_run_is_one_json_value_without_its_single_trials() -> None:
    state = fold([*WHOLE, TrialFinished(trial=trial(9))])
    data = json.loads(json.dumps(state_json(state)))
    assert data["status"] == "done"
    assert data["regions"][0]["choice"]["kind"] == KERNEL.kind
    assert data["trials"]["measured"] == 3


def test_units_are_the_ones_that_read_best() -> None:
    times = [duration(ns) for ns in (812, 14_230, 341_000, 3_410_000, 1.2e9)]
    assert times == ["812 ns", "14.2 µs", "341 µs", "3.41 ms", "1.2 s"]
    assert [amount(n) for n in (12, 1_500, 2_000_000, 1_190_000_000)] == ["12 B", "1.5 kB", "2 MB", "1.19 GB"]
