"""Counsel: recorded, replayed, late, hostile or absent advice orders what is left and changes nothing else."""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.advice.client import Client, Unanswered
from agentcompile.advice.counsel import ALONE, Counsel, prompts_of
from agentcompile.advice.exchange import ENDING, Answered, Cassette, Exchange
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.prompt import Prompt, prompt_of
from agentcompile.advice.wire import ModelRequest, Reply, WireError
from agentcompile.errors import AgentCompileError
from agentcompile.events import AdviceMissed, AdviceTaken, ClaimSettled, Event
from agentcompile.ir.advice import Advice, Question, Usage
from agentcompile.ir.trial import Measured, Trial
from agentcompile.pipeline import GRACE_S
from agentcompile.search import STRATEGIES, Budget, RegionStrategy, SearchMethod, SearchTask
from tests.unit.answers import answer, hostile, question
from tests.unit.fakes import RecordedEvaluator

QUESTIONS = (question(), question(rows=512))
FIRST = {one.region.id: (one, Heuristic().advise(one)) for one in QUESTIONS}
Say = Callable[[Prompt], str]


class Scripted:
    """A wire that answers with what a function says of the last prompt."""

    def __init__(self, say: Callable[[ModelRequest], str]) -> None:
        self.say, self.asked = say, 0

    def send(self, ask: ModelRequest) -> Reply:
        self.asked += 1
        return Reply(status=200, text=self.say(ask), usage=Usage(prompt_tokens=10, completion_tokens=10))

    def close(self) -> None:
        """Nothing."""


def good(ask: ModelRequest) -> str:
    regions = {one["region"] for one in json.loads(ask.user)["regions"]}
    asked = [one for one in prompt_of(QUESTIONS).asked if one.id in regions]
    return json.dumps(answer(Prompt(asked=tuple(asked), system="", user="")))


def counsel(
    say: Callable[[ModelRequest], str] = good, folder: Path | None = None
) -> tuple[Counsel, list[Event], Scripted]:
    told: list[Event] = []
    wire = Scripted(say)
    kept = Cassette(folder) if folder else None
    client = Client(wire, "m", Ledger(Ceilings()))
    return Counsel(FIRST, asks=client, recalls=kept, keeps=kept, tell=told.append), told, wire


def test_advice_is_recorded_and_asked_for_once(tmp_path: Path) -> None:
    first, told, wire = counsel(folder=tmp_path)
    first.begin(prompts_of(QUESTIONS, ()))
    first.wait(10)
    again, told_again, wire_again = counsel(folder=tmp_path)
    again.begin(prompts_of(QUESTIONS, ()))
    assert (wire.asked, wire_again.asked) == (2, 0)
    assert sorted(map(repr, told)) == sorted(map(repr, told_again))
    assert again.digests == first.digests
    assert len(again.digests) == 2
    for region in FIRST:
        assert again.advice(region) == first.advice(region)


def test_a_replay_needs_nobody_and_groups_as_it_likes(tmp_path: Path) -> None:
    recording, _, _ = counsel(folder=tmp_path)
    recording.begin([prompt_of(QUESTIONS)])
    recording.wait(10)
    told: list[Event] = []
    replayed = Counsel(FIRST, recalls=Cassette(tmp_path), tell=told.append)
    replayed.begin([prompt_of([one]) for one in reversed(QUESTIONS)])
    assert [type(one) for one in told] == [AdviceTaken, AdviceTaken]
    for region in FIRST:
        assert replayed.advice(region) == recording.advice(region)


def test_what_is_not_recorded_is_said_and_the_heuristic_holds(tmp_path: Path) -> None:
    told: list[Event] = []
    replayed = Counsel(FIRST, recalls=Cassette(tmp_path), tell=told.append)
    replayed.begin([prompt_of(QUESTIONS)])
    assert told == [AdviceMissed(regions=tuple(FIRST), reason="nothing is recorded about it")]
    assert all(replayed.advice(region) is advice for region, (_, advice) in FIRST.items())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda found: "{", "no exchange"),
        (lambda found: json.dumps({**found, "extra": 1}), "extra: unknown key"),
        (lambda found: json.dumps({**found, "format": 99}), "99 is newer than the 1"),
        (lambda found: json.dumps({**found, "usage": None}), "usage"),
    ],
)
def test_a_file_that_is_no_exchange_is_refused_with_its_name(
    tmp_path: Path, spoil: Callable[[dict[str, object]], str], message: str
) -> None:
    recording, _, _ = counsel(folder=tmp_path)
    recording.begin([prompt_of(QUESTIONS)])
    recording.wait(10)
    (path,) = tmp_path.glob(f"*{ENDING}")
    path.write_text(spoil(json.loads(path.read_text())))
    with pytest.raises(AgentCompileError, match=message) as caught:
        Cassette(tmp_path)
    assert path.name in caught.value.message


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    for at, make in enumerate((os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"))):
        path = tmp_path / str(at) / f"x{ENDING}"
        path.parent.mkdir()
        make(path)
        with pytest.raises(AgentCompileError, match="not a file") as caught:
            Cassette(path.parent)
        assert str(path) in caught.value.message


def test_a_file_holds_no_exchanges_and_takes_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AgentCompileError, match="not a folder"):
        Cassette(tmp_path / "file")
    assert len(Cassette(tmp_path / "not" / "there")) == 0


def test_a_file_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / f"x{ENDING}").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(AgentCompileError, match="more than 8388608 bytes"):
        Cassette(tmp_path)


def test_a_recorded_answer_of_a_hostile_hand_is_read_as_strictly_as_any(tmp_path: Path) -> None:
    (one, _) = prompt_of(QUESTIONS).asked
    for at, text in enumerate(hostile(prompt_of(QUESTIONS), 60)):
        exchange = Exchange(
            keys={one.id: one.key}, model="m", rung="text" if at % 3 == 0 else "json_schema", system="", user="",
            answer=text.encode(errors="replace").decode(), usage=Usage(), at_ms=at,
        )  # fmt: skip
        Cassette(tmp_path / str(at)).keep(exchange)
        told: list[Event] = []
        replayed = Counsel(FIRST, recalls=Cassette(tmp_path / str(at)), tell=told.append)
        replayed.begin([prompt_of(QUESTIONS)])
        order = replayed.advice(one.question.region.id).order
        assert sorted(order) == sorted(candidate.id for candidate in one.question.candidates)
        assert told


def test_a_model_of_28_layers_takes_at_most_eight_requests() -> None:
    many = [question(rows=512 * at) for at in range(1, 30)]
    prompts = prompts_of(many, ())
    assert len(prompts) <= 8
    assert sorted(region for prompt in prompts for region in prompt.regions) == sorted(q.region.id for q in many)
    assert [len(prompt.asked) for prompt in prompts[:ALONE]] == [1] * ALONE
    assert prompts[0].regions == (many[-1].region.id,), "the most bytes first"
    hot = many[0].region.id
    assert prompts_of(many, {hot})[0].regions == (hot,)


def test_a_region_without_a_choice_is_not_asked_about() -> None:
    lone = replace(QUESTIONS[0], candidates=QUESTIONS[0].candidates[:1])
    assert prompts_of([lone], ()) == ()


def test_a_slow_adviser_costs_less_than_two_seconds_and_comes_too_late() -> None:
    release = threading.Event()

    def slow(ask: ModelRequest) -> str:
        release.wait(20)
        return good(ask)

    begin = time.monotonic()
    asked, told, _ = counsel(slow)
    with asked:
        asked.begin(prompts_of(QUESTIONS, ()))
        for region, (_, advice) in FIRST.items():
            assert asked.advice(region) is advice
        asked.wait(GRACE_S)
    assert time.monotonic() - begin < 2
    assert [one.reason for one in told if isinstance(one, AdviceMissed)] == [
        "2 requests were still open when the search ended"
    ]
    release.set()


def test_an_adviser_that_breaks_is_one_that_said_nothing() -> None:
    def broken(ask: ModelRequest) -> str:
        raise ZeroDivisionError("sk-secret")

    asked, told, _ = counsel(broken)
    asked.begin(prompts_of(QUESTIONS, ()))
    asked.wait(10)
    assert {one.reason for one in told if isinstance(one, AdviceMissed)} == {"ZeroDivisionError while asking"}


def test_a_claim_is_settled_by_the_trials_of_its_region() -> None:
    asked, told, _ = counsel()
    asked.begin(prompts_of(QUESTIONS, ()))
    asked.wait(10)
    region, (one, _) = next(iter(FIRST.items()))
    evaluator = RecordedEvaluator({candidate.label: 0.1 for candidate in one.candidates})
    asked.settle({region: evaluator.evaluate(one.candidates, 5)})
    asked.settle({region: evaluator.evaluate(one.candidates, 5)})
    settled = [(n.region, n.claim.text, n.claim.standing) for n in told if isinstance(n, ClaimSettled)]
    assert settled == [(region, "linear/form fails-validation", "refuted")]


def truth_of(asked: Question) -> dict[str, float]:
    """A distinct time for each candidate; two of them do not build."""
    draw = random.Random(3)
    times = {candidate.label: draw.uniform(-0.5, 1.0) for candidate in asked.candidates}
    for label in sorted(times)[:2]:
        del times[label]
    return times


def searched(strategy: RegionStrategy, advised: Callable[[], Advice], budget: Budget, asked: Question) -> list[Trial]:
    """A search in which the advice may change before each proposal, ordered as `Tuner` orders it."""
    evaluator, found, first = RecordedEvaluator(truth_of(asked)), list[Trial](), FIRST[asked.region.id][1]
    while True:
        advice = advised()
        if advice is not first:
            tried = dict.fromkeys(trial.candidate.id for trial in found)
            advice = replace(advice, order=(*tried, *(id for id in advice.order if id not in tried)))
        proposal = strategy.propose(SearchTask(candidates=tuple(asked.candidates), advice=advice), found, budget)
        if not proposal.candidates:
            return found
        found += evaluator.evaluate(proposal.candidates, proposal.rounds)


@pytest.mark.parametrize(("name", "method"), STRATEGIES.items())
@pytest.mark.parametrize("late", [0, 1, 2, 4])
@pytest.mark.parametrize("trials", [4, 7, 10])
def test_late_advice_orders_what_is_left_within_the_same_budget(
    name: str, method: SearchMethod, late: int, trials: int
) -> None:
    asked = QUESTIONS[0]
    came, _, _ = counsel()
    came.begin(prompts_of(QUESTIONS, ()))
    came.wait(10)
    turns = iter(range(1000))
    first, then = FIRST[asked.region.id][1], came.advice(asked.region.id)

    def advised() -> Advice:
        return first if next(turns) < late else then

    found = searched(method.regions, advised, Budget(trials=trials, rounds=5), asked)
    assert len({trial.candidate.id for trial in found}) == min(trials, len(asked.candidates))


ADVERSARIES: dict[str, Callable[[ModelRequest], str]] = {
    "empty": lambda ask: "",
    "malformed": lambda ask: '{"regions": [',
    "truncated": lambda ask: good(ask)[:300],
    "huge": lambda ask: json.dumps({"regions": [{"region": "r" * 1000}] * 5000}),
    "contradictory": lambda ask: json.dumps({"regions": json.loads(good(ask))["regions"] * 2}),
    "backwards": lambda ask: good(ask).replace('"c4"', '"c9"').replace('"c1"', '"c10"'),
    "code": lambda ask: "```json\n" + good(ask) + "\n```\nimport os; os.system('true')",
    "absent": lambda ask: (_ for _ in ()).throw(WireError("refused")),
}


@pytest.mark.parametrize("who", ADVERSARIES)
def test_whoever_advises_the_admissible_set_and_the_winner_are_those_of_no_adviser(who: str) -> None:
    asked_counsel, told, _ = counsel(ADVERSARIES[who])
    with asked_counsel:
        asked_counsel.begin(prompts_of(QUESTIONS, ()))
        asked_counsel.wait(10)
        for one in QUESTIONS:
            budget = Budget(trials=len(one.candidates), rounds=5)
            halving = STRATEGIES["halving"].regions
            none = searched(halving, lambda: Advice(label="none"), budget, one)
            region = one.region.id
            some = searched(halving, lambda region=region: asked_counsel.advice(region), budget, one)
            assert _verdicts(some) == _verdicts(none)
            assert _winner(some) == _winner(none)
    assert told


def _verdicts(trials: list[Trial]) -> set[tuple[str, str]]:
    return {(trial.candidate.id, trial.verdict.kind) for trial in trials}


def _winner(trials: list[Trial]) -> str:
    def ratio(trial: Trial) -> float:
        return trial.verdict.measurement.log_ratio if isinstance(trial.verdict, Measured) else -math.inf

    return max(trials, key=ratio).candidate.id


def test_answers_are_told_apart_from_silence() -> None:
    assert isinstance(Client(Scripted(good), "m", Ledger(Ceilings())).ask(prompt_of(QUESTIONS)), Answered)
    assert isinstance(Client(Scripted(lambda _: ""), "m", Ledger(Ceilings())).ask(prompt_of(QUESTIONS)), Unanswered)
