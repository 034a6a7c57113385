"""What an adviser is told of earlier trials: which of them enter, how they stand, and that a replay uses none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.advice.asked import LISTED
from agentcompile.advice.client import Client
from agentcompile.advice.counsel import Counsel, prompts_of
from agentcompile.advice.detail import FULL
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.prompt import Prompt, prompt_of
from agentcompile.advice.wire import ModelRequest, Reply
from agentcompile.events import AdviceMissed, AdviceTaken, Event, clean
from agentcompile.ir.advice import Question
from agentcompile.ir.template import Candidate, Param
from agentcompile.ir.trial import BuildFailed, Cancelled, Crashed, Disturbed, Trial
from agentcompile.materialize import specialise
from agentcompile.space import Space
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.prepared import informed
from agentcompile.tuning.trial_database import TrialDatabase
from tests.unit import fakes
from tests.unit.answers import INJECTED, answer, question


def specialised() -> Question:
    """The question of the other tests, of templates whose programs can be written down."""
    asked = question()
    templates = tuple(replace(one, workspaces=()) for one in asked.templates)
    space = Space(asked.region, templates, asked.target)
    return replace(asked, templates=space.templates, candidates=tuple(space))


ASKED = specialised()
ONE, OTHER, THIRD, *_ = ASKED.candidates
POLICY = "p"


def of(candidate: Candidate, log_ratio: float = 0.5, **more: Any) -> Trial:
    """A measurement of the very text that a search would build."""
    template = next(one for one in ASKED.templates if one.id == candidate.template)
    source = specialise(template, ASKED.region, candidate.params, ASKED.target).digest
    return replace(fakes.measured(candidate, log_ratio, **more), source=source)


def told(asked: Question) -> list[Any]:
    (region,) = json.loads(prompt_of([asked]).user)["regions"]
    found: list[Any] = region["trials"]
    return found


def test_trials_of_this_run_and_of_earlier_ones_are_told_the_fastest_first(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(of(OTHER, 1.0), POLICY)
        known = informed(ASKED, TrialDatabase([of(ONE, 0.5)], history, POLICY))
    assert told(known) == [
        ["c2", "measured", 36.8, 2.72, 0.2, 10.0, 0.33],
        ["c1", "measured", 60.7, 1.65, 0.2, 10.0, 0.33],
    ]


def test_the_first_compile_asks_as_if_nothing_were_ever_tried(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        asked = informed(ASKED, TrialDatabase([], history, POLICY))
    assert asked == ASKED
    assert prompt_of([asked]).digest == prompt_of([ASKED]).digest


FOREIGN = question(rows=512).candidates[0]
UNTOLD = {
    "given up by a person": replace(of(ONE), verdict=Cancelled(stage="build")),
    "killed from outside": replace(of(ONE), verdict=Disturbed(stage="measure", detail="killed by SIGKILL")),
    "of another text": replace(of(ONE), source="of another version"),
    "of another region": replace(of(ONE), candidate=FOREIGN),
    "of a template that was edited": replace(of(ONE), candidate=replace(ONE, template_digest="before")),
    "of another machine": replace(of(ONE), candidate=replace(ONE, target="another")),
    "disturbed": of(ONE, 0.5, comparison="INCONCLUSIVE"),
}


@pytest.mark.parametrize("what", UNTOLD)
def test_what_a_search_would_not_take_as_known_is_not_told(what: str) -> None:
    assert told(informed(ASKED, TrialDatabase([UNTOLD[what]], None, POLICY))) == []


def test_a_trial_under_another_policy_is_not_told(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(of(ONE), "another")
        assert told(informed(ASKED, TrialDatabase([], history, POLICY))) == []


def test_what_was_to_be_evaluated_afresh_is_told_as_it_was_evaluated_then(tmp_path: Path) -> None:
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(of(ONE, 1.0), POLICY)
        past = TrialDatabase([of(ONE, 1.0)], history, POLICY)
        past.forget(ONE.id)
        assert told(informed(ASKED, past)) == []
        past.keep(of(ONE, 0.0))
        assert [row[3] for row in told(informed(ASKED, past))] == [1.0]


def test_the_last_word_on_a_candidate_is_told(tmp_path: Path) -> None:
    died = replace(of(ONE), verdict=Crashed(stage="validate", signal=11), fidelity="confirm")
    with MachineTrials(tmp_path / "h.sqlite") as history:
        history.put(of(OTHER, 0.9, fidelity="confirm"), POLICY)
        own = [died, of(ONE, 2.0), of(OTHER, 0.1), of(THIRD, 0.1), of(THIRD, 0.3, rounds=20)]
        rows = told(informed(ASKED, TrialDatabase(own, history, POLICY)))
    assert [(row[0], row[1]) for row in rows] == [("c2", "measured"), ("c3", "measured"), ("c1", "crashed")]
    assert [row[3] for row in rows[:2]] == [2.46, 1.35], "what was confirmed, and what was timed longer"
    assert rows[2][2] == "in validate: signal 11"


def test_what_a_compiler_said_is_a_short_quoted_text() -> None:
    failed = replace(of(ONE), verdict=BuildFailed(log=f"error: {INJECTED} " + "x" * 100_000))
    hostile = informed(ASKED, TrialDatabase([failed], None, POLICY))
    (row,) = told(hostile)
    assert row[:2] == ["c1", "build-failed"]
    assert row[2].startswith("error: ignore the above")
    assert clean(row[2], 300) == row[2]
    assert prompt_of([hostile]).system == prompt_of([ASKED]).system


def wide() -> Question:
    """A question with more candidates than are listed."""
    param = (Param(name="P", domain=tuple(range(3000)), default=0, about="which"),)
    template = fakes.rows_template(params=param, requires=(), workspaces=())
    space = Space(fakes.linear_region(), (template,), fakes.target())
    return replace(question(), templates=space.templates, candidates=tuple(space))


def test_a_candidate_that_is_not_listed_is_told_by_its_parameters() -> None:
    asked = wide()
    history = (fakes.measured(asked.candidates[24], 0.5), fakes.measured(asked.candidates[7], 1.0))
    rows = told(replace(asked, history=history))
    assert [row[0] for row in rows] == ["t1(7)", "c2"]
    assert prompt_of([asked]).asked[0].key == prompt_of([replace(asked, history=history)]).asked[0].key


def test_of_many_trials_the_best_are_told() -> None:
    asked = wide()
    history = tuple(fakes.measured(one, at / 1000) for at, one in enumerate(asked.candidates[:LISTED]))
    rows = told(replace(asked, history=history))
    assert len(rows) == FULL.trials
    assert rows[0][0] == f"t1({LISTED - 1})"


def test_of_many_trials_some_that_failed_are_told_with_every_reason_once_before_any_twice() -> None:
    asked = wide()
    ran = [fakes.measured(one, at / 1000) for at, one in enumerate(asked.candidates[:LISTED])]
    logs = ["error: a", "error: b", *["error: c"] * 50]
    failed = [
        Trial(candidate=one, source="", verdict=BuildFailed(log=log))
        for one, log in zip(asked.candidates[LISTED:], logs, strict=False)
    ]
    known = replace(asked, history=(*ran, *failed))
    rows = told(known)
    assert len(rows) == FULL.trials
    reasons = [row[2] for row in rows if row[1] == "build-failed"]
    assert set(reasons[:3]) == {"error: a", "error: b", "error: c"}
    (region,) = json.loads(prompt_of([known]).user)["regions"]
    assert region["trials_in_all"] == {"measured": LISTED, "build-failed": 52}
    assert region["pytorch_us"] == 100.0


class Telling:
    """A wire that keeps what it was sent and gives a good answer."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, ask: ModelRequest) -> Reply:
        self.sent.append(ask.user)
        ids = {one["region"] for one in json.loads(ask.user)["regions"]}
        asked = tuple(one for one in prompt_of([ASKED]).asked if one.id in ids)
        return Reply(status=200, text=json.dumps(answer(Prompt(asked=asked, system="", user=""))))

    def close(self) -> None:
        """Nothing."""


def session(asked: Question, folder: Path, wire: Telling | None) -> tuple[Counsel, list[Event]]:
    """A session that asks one question, recorded in or replayed from `folder`."""
    news: list[Event] = []
    asks = Client(wire, "m", Ledger(Ceilings())) if wire is not None else None
    first = {asked.region.id: (ASKED, Heuristic().advise(ASKED))}
    counsel = Counsel(first, asks=asks, recalls=Cassette(folder), keeps=Cassette(folder), tell=news.append)
    with counsel:
        counsel.begin(prompts_of([asked], ()))
        counsel.wait(10)
    return counsel, news


@pytest.mark.parametrize("recorded", ["plain", "told"])
@pytest.mark.parametrize("replayed", ["plain", "told"])
def test_a_replay_finds_its_exchange_whatever_was_tried_before(tmp_path: Path, recorded: str, replayed: str) -> None:
    questions = {"plain": ASKED, "told": informed(ASKED, TrialDatabase([of(ONE), of(OTHER, 1.0)], None, POLICY))}
    wire = Telling()
    first, said = session(questions[recorded], tmp_path, wire)
    (exchange,) = Cassette(tmp_path).exchanges.values()
    assert json.loads(exchange.user)["regions"][0]["trials"] == told(questions[recorded])
    assert wire.sent == [exchange.user]
    again, repeated = session(questions[replayed], tmp_path, None)
    assert [type(one) for one in repeated] == [AdviceTaken]
    assert repeated == said
    assert again.digests == first.digests == (exchange.digest,)
    assert again.advice(ASKED.region.id) == first.advice(ASKED.region.id)


def test_a_resume_asks_only_about_what_was_not_answered(tmp_path: Path) -> None:
    session(ASKED, tmp_path, Telling())
    wire = Telling()
    session(informed(ASKED, TrialDatabase([of(ONE)], None, POLICY)), tmp_path, wire)
    assert wire.sent == []


def test_what_was_recorded_last_holds(tmp_path: Path) -> None:
    wire = Telling()
    for at, asked in enumerate((ASKED, informed(ASKED, TrialDatabase([of(ONE)], None, POLICY)))):
        session(asked, tmp_path / str(at), wire)
    earlier, later = (next(iter(Cassette(tmp_path / str(at)).exchanges.values())) for at in (0, 1))
    assert earlier.digest != later.digest, "they were not asked the same"
    assert earlier.keys == later.keys
    for one, at in ((later, 2), (earlier, 1)):
        Cassette(tmp_path / "both").keep(replace(one, at_ms=at))
    replayed, news = session(ASKED, tmp_path / "both", None)
    assert replayed.digests == (later.digest,)
    assert not any(isinstance(one, AdviceMissed) for one in news)
