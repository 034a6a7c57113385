"""What a model's answers were is counted from the runs that it advised."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from agentcompile.advice.exchange import Cassette, Exchange
from agentcompile.errors import AgentCompileError
from agentcompile.events import AdviceMissed, AdviceTaken, AdviserCalled, AdviserReplied, ClaimSettled, Event
from agentcompile.ir.advice import Advice, AnswerItem, Claim, SequenceCounts, Usage
from agentcompile.runs.session import Journal, RunDirectory
from bench.advised import counted, follows, run
from tests.unit.answers import answer, prompt
from tests.unit.runs import FOUND, REGION, STARTED

BOOKED = Usage(calls=1, prompt_tokens=3000, completion_tokens=2048)
CLAIM = Claim(says="does-not-build", topic="resource", template="linear/rows")
ADVICE = Advice(
    label="m",
    claims=(CLAIM,),
    sequence_counts=SequenceCounts(full=1, dropped=2),
    proposals=(
        AnswerItem(what="rank", text="linear/rows(ROWS=4)", accepted=True),
        AnswerItem(what="rank", text="c99", accepted=False, reason="no candidate of the region"),
        AnswerItem(what="hint", text="t1 X", accepted=False, reason="no value is left"),
    ),
)
EVENTS: tuple[Event, ...] = (
    STARTED,
    FOUND,
    AdviserCalled(call=1, booked=BOOKED, way="json_schema"),
    AdviserReplied(call=1, booked=BOOKED, used=Usage(seconds=0.5), result="status 400: the question is too long"),
    AdviserCalled(call=2, booked=BOOKED, way="json_schema"),
    AdviserReplied(call=2, booked=BOOKED, used=Usage(calls=1, prompt_tokens=2900, seconds=1.5), result="status 200"),
    AdviceTaken(region=REGION, exchange="e" * 64, advice=ADVICE),
    AdviceTaken(region=REGION, exchange="e" * 64, advice=ADVICE),
    AdviceMissed(regions=("b" * 64, "c" * 64), reason="the answer was cut off"),
    ClaimSettled(region=REGION, claim=Claim(**{**asdict(CLAIM), "standing": "refuted"})),
)


def made(path: Path) -> RunDirectory:
    """A run with one refused request, one answer that follows the schema, and one that does not."""
    found = RunDirectory.create(path, {"model": "/home/somebody/sample", "advisor": "openai:m@http://127.0.0.1:1/v1"})
    with Journal(found) as journal:
        for event in EVENTS:
            journal.append(event)
    for at, text in enumerate((json.dumps(answer(prompt())), '{"regions": []}x')):
        exchange = Exchange(
            keys={"r1": f"k{at}"}, model="m", rung="text", system="", user="", answer=text, usage=Usage(), at_ms=at
        )
        Cassette(path / "advice").keep(exchange)
    return found


def test_requests_answers_items_and_claims_are_counted(tmp_path: Path) -> None:
    found = counted(made(tmp_path / "a-run"))
    assert found["options"] == {"model": "sample", "advisor": "openai:m@http://127.0.0.1:1/v1"}
    assert found["requests"]["sent"] == 2
    assert found["requests"]["replies"] == {"status 400: the question is too long": 1, "status 200": 1}
    assert (found["requests"]["used"]["calls"], found["requests"]["used"]["seconds"]) == (1, 2.0)
    assert found["answers"]["read"] == 2
    assert found["answers"]["by_the_schema"] == 1
    assert found["answers"]["regions_missed"] == {"the answer was cut off": 2}
    assert found["items"]["accepted"] == {"rank": 1}
    assert found["items"]["reasons"] == {"rank: no candidate of the region": 1, "hint: no value is left": 1}
    assert found["sequences"] == {"full": 1, "partial": 0, "dropped": 2}
    assert found["claims"] == {"refuted": 1}
    assert found["compile"]["trials"] == 0


def test_a_file_has_the_machine_and_the_command_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    made(tmp_path / "a-run")
    out = tmp_path / "found.json"
    assert run([str(tmp_path / "a-run"), "--note", "a server", "--out", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["command"] == "agentcompile bench advised a-run --note a server --out found.json"
    assert record["machine"]["device"] == "a processor"
    assert record["notes"] == ["a server"]
    assert str(tmp_path) not in out.read_text(encoding="utf-8")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="holds no run"):
        run([str(tmp_path), "--out", str(tmp_path / "x.json")])


@pytest.mark.parametrize(
    ("spoil", "held"),
    [
        (lambda good: good, True),
        (lambda good: f"Here:\n```json\n{good}\n```\n", True),
        (lambda good: good.replace('"c4"', "4", 1), False),
        (lambda good: good.replace('"attainable_us": 220', '"attainable_us": true', 1), False),
        (lambda good: good.replace('"computes"', '"knows"', 1), False),
        (lambda good: good.replace('"rationale"', '"reason"', 1), False),
        (lambda good: good[:-1], False),
        (lambda good: "{}", False),
    ],
)
def test_an_answer_follows_the_schema_or_not(spoil: object, held: bool) -> None:
    assert callable(spoil)
    assert follows(spoil(json.dumps(answer(prompt())))) is held
