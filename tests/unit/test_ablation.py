"""Where an order has the winner and its neighbourhood, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcompile.advice.answer import answer_of
from agentcompile.advice.exchange import Cassette
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import encode
from bench.ablation.advisers import SEEDS, arms_of, read, report
from bench.ablation.plot import draw
from bench.ablation.result import WITHIN, Ablation, Evaluated, Model, near_of, quick_ns, standing_of
from bench.ablation.run import run
from tests.unit.answers import question

NS = {"a": 100.0, "b": 104.9, "c": 106.0, "d": 300.0}


def ablation() -> Ablation:
    """Two regions: one adviser finds the neighbourhood at once, one at the end."""
    standings = (
        standing_of("good", ["badc"], "a", near_of(NS)),
        standing_of("bad", ["dcba", "cdba"], "a", near_of(NS), said=2, note="why"),
    )
    region = Evaluated(
        region="r" * 64, name="linear@rrrrrr", dims={"hidden": 4, "rows": 8}, sites=2, bytes=10, points=4, failed=0,
        near=2, winner="linear/rows(A=1)", pytorch_ns=200.0, ns={"linear/rows(A=1)": 100.0}, standings=standings,
    )  # fmt: skip
    return Ablation(
        device="a processor", threads=2, toolchain="g++", version="0", arms=("good", "bad"),
        answered_by={"bad": "nobody"},
        models=(Model(model="one", context=8, residency="cache", regions=(region, region)),),
    )  # fmt: skip


def test_the_neighbourhood_is_what_is_at_most_a_twentieth_slower() -> None:
    assert near_of(NS) == {"a", "b"}


def test_an_interval_that_was_disturbed_does_not_count() -> None:
    assert quick_ns([100.0] * 5 + [150.0] * 20) == 100.0
    assert quick_ns([7.0]) == 7.0


def test_a_standing_is_the_place_of_the_winner_and_of_the_first_that_is_as_good() -> None:
    found = standing_of("x", ["dbca", "abcd", "cdab"], "a", {"a", "b"})
    assert (found.winner_at, found.near_at, found.near_low, found.near_high) == (3, 2, 1, 3)


def test_the_median_over_regions_is_a_share_of_the_space() -> None:
    assert (ablation().median_share("good"), ablation().median_share("bad")) == (0.25, 0.75)


def test_the_report_says_who_is_within_a_tenth_and_who_answered(tmp_path: Path) -> None:
    text = "\n".join(report(ablation()))
    assert "1 / 2" in text
    assert "3 / 4*" in text
    assert "bad: median 75.0% of the space to the neighbourhood, not within 10%, answered by nobody" in text


def test_a_result_is_shown_again_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(encode(ablation())))
    assert run(["--show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == encode(ablation())
    assert read(file) == ablation()
    png, svg = draw(ablation())
    assert png.startswith(b"\x89PNG")
    assert "share of the space tried" in svg
    assert draw(ablation()) == (png, svg)


@pytest.mark.parametrize(("text", "message"), [("{}", "no result"), ('{"format": 9}', "newer")])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(AgentCompileError, match=message):
        read(file)


def test_every_arm_orders_the_whole_space() -> None:
    asked = question()
    every = sorted(candidate.id for candidate in asked.candidates)
    for arm, count in zip(arms_of("none,heuristic,random,random:3"), (1, 1, SEEDS, 1), strict=True):
        orders, _, _ = arm.orders(asked)
        assert len(orders) == count >= 1
        assert all(sorted(order) == every for order in orders)


@pytest.mark.parametrize(
    ("spec", "message"),
    [("openai:x", "no arm"), ("replay:/nowhere", "holds no exchange"), ("best", "no such adviser")],
)
def test_an_arm_that_cannot_be_compared_is_refused(spec: str, message: str) -> None:
    with pytest.raises(AgentCompileError, match=message):
        arms_of(spec)


def test_without_a_model_the_verb_says_how() -> None:
    with pytest.raises(AgentCompileError, match="no model was named"):
        run([])


BENCH = Path(__file__).parents[2] / "bench"
CASSETTES = BENCH / "ablation" / "cassettes"
RESULT = BENCH / "results" / "cpu-ablation.json"


def test_the_exchanges_that_ship_are_read_today_and_say_who_answered() -> None:
    exchanges = Cassette(CASSETTES).exchanges.values()
    assert len(exchanges) == 18
    assert {exchange.answered_by for exchange in exchanges} == {"Claude, answering by hand through a loopback server"}
    for exchange in exchanges:
        document = json.loads(exchange.user)
        assert document["version"] == "advise/1", "answers belong to ids, not to a wording: they stay usable"
        told = document["regions"]
        found = answer_of(exchange.answer, fenced=False)
        assert isinstance(found, dict)
        said = found["regions"]
        assert isinstance(said, list)
        assert [one["region"] for one in said] == [one["region"] for one in told]  # type: ignore[index,call-overload]
        listed = {row[0] for one in told for row in one["candidates"]}
        assert {row["candidate"] for one in said for row in one["ranking"]} <= listed  # type: ignore[index,call-overload,union-attr]


def test_the_measurement_that_ships_has_every_arm_in_every_hot_region_of_two_models() -> None:
    result = read(RESULT)
    assert len(result.models) == 2
    assert result.arms == ("none", "heuristic", "random", "replay")
    assert len(result.regions) >= 10
    for region in result.regions:
        said = {arm: region.standing(arm) for arm in result.arms}
        assert all(said.values())
        assert said["random"] is not None
        assert said["random"].orders >= 20
        assert said["replay"] is not None
        assert said["replay"].said > 0, "an exchange was recorded for it"
        assert said["replay"].note == ""
    assert result.answered_by == {"replay": "Claude, answering by hand through a loopback server"}
    assert RESULT.with_suffix(".png").exists()
    assert RESULT.with_suffix(".svg").exists()


def test_the_heuristic_alone_has_the_neighbourhood_within_a_tenth_of_the_space() -> None:
    assert read(RESULT).median_share("heuristic") <= WITHIN
