"""How an adviser is named, what it may cost, where its key comes from, and what a run remembers of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.advice.configure import counsel_of, folder_of
from agentcompile.advice.exchange import Cassette, Exchange
from agentcompile.advice.prompt import Prompt
from agentcompile.arguments import prices
from agentcompile.cli import advising, looking
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError
from agentcompile.events import (
    AdviceMissed,
    AdviceTaken,
    AdviserCalled,
    AdviserReplied,
    ClaimSettled,
    Emit,
    RunStarted,
    decode,
    encode,
    silent,
)
from agentcompile.ir.advice import Advice, AdvisedSequence, AnswerItem, Claim, Diagnosis, SequenceCounts, Usage
from agentcompile.ir.search_events import Transformation
from agentcompile.options import Options, advisor_secret, resolve
from agentcompile.runs.progress import State, apply, fold
from agentcompile.runs.session import Journal, RunDirectory
from tests.unit.answers import INJECTED
from tests.unit.runs import FOUND, REGION, STARTED, TARGET

PROMPT = Prompt(asked=(), system="the rules", user="the data")
BOOKED = Usage(calls=1, prompt_tokens=1000, completion_tokens=8000)
CLAIM = Claim(says="does-not-build", topic="resource", template="linear/rows")
ADVICE = Advice(
    label="a-model",
    order=("c" * 64,),
    rationales=(("c" * 64, f"because {INJECTED}"),),
    meaning="a product",
    claims=(CLAIM,),
    diagnosis=Diagnosis(limit="reads from memory", evidence="22 of 30 GB/s"),
    sequences=(
        AdvisedSequence(
            start="a" * 64,
            steps=(
                Transformation(change="template", name="linear/library", value="linear/rows"),
                Transformation(change="step", name="ROWS", value="4"),
            ),
            points=("b" * 64, "c" * 64),
            rationale="rows share the activation",
            stopped="not in the domain",
        ),
    ),
    sequence_counts=SequenceCounts(partial=1, dropped=2),
    proposals=(
        AnswerItem(what="rank", text="linear/rows(ROWS=4)", accepted=True),
        AnswerItem(what="rank", text="c99", accepted=False, reason="no candidate of the region"),
    ),
)
TAKEN = AdviceTaken(region=REGION, exchange="e" * 64, advice=ADVICE, head=("linear/rows(ROWS=4)",))


@pytest.mark.parametrize(
    "spec",
    ["none", "heuristic", "random:3", "openai:gpt-x", "openai:org/model:7b@http://127.0.0.1:8080/v1"],
)
def test_an_adviser_is_named_as_its_usage_says(spec: str) -> None:
    assert resolve({"advisor": spec}, environ={}).options.advisor == spec


def test_a_folder_to_replay_is_told_from_where_it_was_named(tmp_path: Path) -> None:
    assert resolve({"advisor": "replay:x"}, environ={}, cwd=tmp_path).options.advisor == f"replay:{tmp_path / 'x'}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("openai:", "is not allowed"),
        ("openai:m@ftp://x", "is not allowed"),
        ("replay:", "is not allowed"),
        ("openai:m@http://user:secret@host/v1", "is not allowed"),
        ("openai:m@https://host/v1?key=secret", "holds no key, user or query"),
        ("openai:m@https://host/v1#secret", "holds no key, user or query"),
        ("openai:\x1b[31mm", "is not allowed"),
        ("openai:m@http://host:99999/v1", "Port out of range"),
        ("openai:m@http://host:eighty/v1", "Port could not be cast"),
        ("openai:m@http://host:0/v1", "no host, or port 0"),
        ("openai:m@http://:8080/v1", "no host, or port 0"),
        ("openai:m@http://[::1/v1", "Invalid IPv6 URL"),
        ("random:x", "is not allowed"),
    ],
)
def test_a_wrong_adviser_is_refused(spec: str, message: str) -> None:
    with pytest.raises(AgentCompileError, match=message):
        resolve({"advisor": spec}, environ={})


@pytest.mark.parametrize(("text", "expected"), [("0.15,0.60", (0.15, 0.6)), ("1", None), ("a,b", None), ("-1,2", None)])
def test_a_price_is_two_amounts(text: str, expected: tuple[float, float] | None) -> None:
    assert prices(text) == expected
    if expected is None:
        with pytest.raises(AgentCompileError, match="advisor-price"):
            resolve({"advisor_price": text}, environ={})


def test_a_key_goes_only_where_it_was_meant_to_go() -> None:
    keys = {"OPENAI_API_KEY": "sk-own", "OTHER": " sk-other\n"}
    assert advisor_secret(Options(advisor="openai:m"), keys) == "sk-own"
    assert advisor_secret(Options(advisor="openai:m@http://host/v1"), keys) == ""
    assert advisor_secret(Options(advisor="openai:m@http://host/v1", advisor_key="OTHER"), keys) == "sk-other"
    with pytest.raises(AgentCompileError, match="OPENAI_API_KEY is not set") as caught:
        advisor_secret(Options(advisor="openai:m"), {})
    assert "--advisor-key" in caught.value.hint


@pytest.mark.parametrize("key", ["sk-own-0123456789", "gsk_0123456789abcdef", "deadbeef" * 8, "A" * 65, "A B", "9A"])
def test_a_key_where_its_variable_should_be_named_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(AgentCompileError, match="no name of a variable") as caught:
        resolve({"advisor_key": key}, environ={})
    assert key not in caught.value.message + caught.value.hint


def test_a_ceiling_on_money_needs_a_price(tmp_path: Path) -> None:
    asked = Options(advisor="openai:m@http://127.0.0.1:1/v1", advisor_cents=5, home=str(tmp_path))
    with pytest.raises(AgentCompileError, match="nobody said what a token costs"):
        counsel_of(asked, {}, silent, Usage())


def test_a_folder_without_exchanges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="holds no exchange"):
        counsel_of(Options(advisor=f"replay:{tmp_path}", home=str(tmp_path)), {}, silent, Usage())


def test_a_replay_that_goes_on_elsewhere_finds_its_exchanges_in_the_run(tmp_path: Path) -> None:
    exchange = Exchange(keys={"r1": "k"}, model="m", rung="text", system="", user="", answer="", usage=Usage(), at_ms=1)
    asked = Options(advisor="replay:/not/here", run_dir=str(tmp_path))
    Cassette(tmp_path / "advice").keep(exchange)
    with counsel_of(asked, {}, silent, Usage()) as counsel:
        assert counsel.waiting == 0


def test_exchanges_lie_in_the_run_or_by_who_was_asked(tmp_path: Path) -> None:
    assert folder_of(Options(run_dir=str(tmp_path))) == tmp_path / "advice"
    one, other = (folder_of(Options(home=str(tmp_path), advisor=f"openai:{name}")) for name in ("a", "b"))
    assert one != other


def test_what_was_booked_stands_until_a_call_ends_and_outlives_the_process() -> None:
    used = Usage(calls=1, prompt_tokens=900, completion_tokens=100, seconds=2.0)
    called = [AdviserCalled(call=at, booked=BOOKED, way="json_schema") for at in (1, 2)]
    replied = AdviserReplied(call=1, booked=BOOKED, used=used, result="status 200")
    state = fold([STARTED, *called, replied])
    assert state.spent == used + BOOKED
    again = apply(state, STARTED)
    assert again.spent == state.spent
    assert again.resumed == 1


def test_advice_and_its_claims_are_in_the_state_and_survive_a_resume() -> None:
    settled = Claim(says=CLAIM.says, topic=CLAIM.topic, template=CLAIM.template, standing="refuted", because="it built")
    missed = AdviceMissed(regions=(REGION,), reason="a ceiling is reached")
    state = fold([STARTED, FOUND, TAKEN, ClaimSettled(region=REGION, claim=settled), missed])
    row = state.row(REGION)
    assert row is not None
    assert row.advice is not None
    assert row.advice.claims == (settled,)
    assert (row.head, state.exchanges, state.unadvised) == (TAKEN.head, ("e" * 64,), (missed,))
    again = fold([STARTED, FOUND], state).row(REGION)
    assert again is not None
    assert again.advice == row.advice


def test_events_of_advice_travel_and_are_clean() -> None:
    for event in (TAKEN, AdviceMissed(regions=(), reason=INJECTED), ClaimSettled(region=REGION, claim=CLAIM)):
        assert decode(encode(event)) == event
    assert "\x1b" not in TAKEN.advice.rationales[0][1]
    assert "\u202e" not in TAKEN.advice.rationales[0][1]


def test_calls_are_on_disk_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), real(handle))[1])
    with Journal(RunDirectory.create(tmp_path / "run", {})) as journal:
        synced.clear()
        journal.append(AdviserCalled(call=1, booked=BOOKED, way="text"))
        assert len(synced) == 1


def paper() -> tuple[Screen, list[str]]:
    import io

    lines: list[str] = []

    class Paper(io.StringIO):
        def write(self, text: str) -> int:
            lines.append(text)
            return len(text)

    return Screen(out=Paper(), err=io.StringIO(), format="text"), lines


def test_advise_shows_what_was_said_taken_and_refused() -> None:
    def asks(options: Options, emit: Emit, asked: object) -> tuple[Prompt, ...]:
        for event in (STARTED, FOUND, TAKEN, AdviceMissed(regions=(REGION,), reason="too late")):
            emit(event)
        return (PROMPT,)

    screen, lines = paper()
    flow = Flow()
    flow.advise = asks  # type: ignore[method-assign]
    more = {"record": None, "region": "", "answered_by": "", "screen": screen, "flow": flow}
    flags = {"model": "m", "advisor": "openai:a-model@http://127.0.0.1:1/v1"}
    assert advising.advise(flags, show_prompt=False, **more) == 0  # type: ignore[arg-type]
    text = "".join(lines)
    assert "linear@aaaaaa: a-model says: a product (unverified)" in text
    assert "does-not-build" in text
    assert "  limited by reads from memory: 22 of 30 GB/s" in text
    assert "  sequences: 0 of 3 legal, 1 in part, 2 not" in text
    assert "sequences of all regions: 0 of 3 legal, 1 in part, 2 not" in text
    assert "  sequence template linear/rows, ROWS=4; then not in the domain: rows share the activation" in text
    assert "refused rank c99: no candidate of the region" in text
    assert "no advice about linear@aaaaaa: too late" in text
    assert "the rules" not in text
    assert advising.advise(flags, show_prompt=True, **more) == 0  # type: ignore[arg-type]
    shown = f"── prompt {PROMPT.digest} ──\n── system ──\nthe rules\n── user ──\nthe data"
    assert shown in "".join(lines)


def test_advise_without_a_model_says_how() -> None:
    with pytest.raises(AgentCompileError, match="no model was named"):
        advising.advise({}, show_prompt=False, record=None, region="", answered_by="", screen=paper()[0])


def test_explain_shows_advice_beside_trials(tmp_path: Path) -> None:
    from tests.unit.runs import trial

    run = RunDirectory.create(tmp_path / "run", {})
    with Journal(run) as journal:
        from agentcompile.events import TrialFinished

        for event in (STARTED, FOUND, TAKEN, TrialFinished(trial=trial())):
            journal.append(event)
    screen, lines = paper()
    assert looking.explain({"run_dir": str(run.path)}, REGION[:8], screen=screen) == 0
    text = "".join(lines)
    assert "a-model says: a product" in text
    assert "measured (search)" in text


def test_explain_says_why_there_was_no_advice(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    with Journal(run) as journal:
        for event in (STARTED, FOUND, AdviceMissed(regions=(REGION,), reason="a ceiling is reached: 8 of 8 calls")):
            journal.append(event)
    screen, lines = paper()
    assert looking.explain({"run_dir": str(run.path)}, REGION[:8], screen=screen) == 0
    assert "no advice: a ceiling is reached: 8 of 8 calls" in "".join(lines)


def test_the_state_of_a_run_without_a_model_knows_nothing_of_one() -> None:
    started: RunStarted = STARTED
    assert fold([started]).spent == Usage() == State().spent
    assert started.target == TARGET
