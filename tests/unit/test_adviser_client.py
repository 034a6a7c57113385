"""The client of a language model against a real server on the loopback interface, in every way it can go wrong."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate

import pytest

from agentcompile.advice.client import Client, Unanswered
from agentcompile.advice.exchange import Answered
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import MOST_BYTES, OpenAIWire
from agentcompile.events import AdviserCalled, AdviserReplied, Event
from agentcompile.ir.advice import Usage
from agentcompile.ir.cleaning import HIDDEN, redacted
from tests.unit.answers import answer, prompt
from tests.unit.loopback import Play, Server, completion, refusal, serving

KEY = "sk-test-0123456789abcdef"
PROMPT = prompt()
GOOD = completion(answer(PROMPT))
FENCED = completion(f"Here it is.\n```json\n{json.dumps(answer(PROMPT))}\n```\n")


@contextmanager
def client_of(url: str, **ceilings: float) -> Iterator[tuple[Client, list[Event], Ledger, list[float]]]:
    said: list[Event] = []
    slept: list[float] = []
    ledger = Ledger(Ceilings(**ceilings))  # type: ignore[arg-type]
    wire = OpenAIWire("a-model", url, KEY)
    try:
        yield Client(wire, "a-model", ledger, emit=said.append, sleep=slept.append), said, ledger, slept
    finally:
        wire.close()


def ask(server: Server, **ceilings: float) -> Answered | Unanswered:
    with client_of(server.url, **ceilings) as (client, *_):
        return client.ask(PROMPT)


def reason(server: Server, **ceilings: float) -> str:
    got = ask(server, **ceilings)
    assert isinstance(got, Unanswered)
    return got.reason


def test_a_good_answer_is_an_exchange_with_its_usage_and_what_was_taken() -> None:
    with serving(GOOD) as server, client_of(server.url) as (client, said, ledger, _):
        got = client.ask(PROMPT)
    assert isinstance(got, Answered)
    assert (got.exchange.model, got.exchange.answered_by, got.exchange.rung) == ("a-model", "served", "json_schema")
    assert got.exchange.usage == Usage(prompt_tokens=1000, completion_tokens=200)
    assert len(got.reading.advice) == 2
    assert [type(one) for one in said] == [AdviserCalled, AdviserReplied]
    assert (ledger.spent.calls, ledger.spent.tokens) == (1, 1200)
    request = server.requests[0]
    assert request["response_format"]["json_schema"]["strict"] is True
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert server.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("status", [400, 422, 501])
def test_a_server_without_schemas_is_asked_for_json_and_then_for_a_fenced_block(status: int) -> None:
    with serving(refusal(status), refusal(status), FENCED) as server:
        got = ask(server)
    assert isinstance(got, Answered)
    assert got.exchange.rung == "text"
    formats = [request.get("response_format", {}).get("type") for request in server.requests]
    assert formats == ["json_schema", "json_object", None]


def test_a_rung_that_was_found_holds_for_the_next_question() -> None:
    with serving(refusal(400), GOOD) as server, client_of(server.url) as (client, *_):
        client.ask(PROMPT)
        client.ask(PROMPT)
    formats = [request["response_format"]["type"] for request in server.requests]
    assert formats == ["json_schema", "json_object", "json_object"]


@pytest.mark.parametrize(
    ("play", "why"),
    [
        (completion("I cannot do that."), "0 fenced blocks"),
        (completion({"answer": 42}), "0 fenced blocks"),
        (completion(""), "0 fenced blocks"),
    ],
)
def test_answers_of_no_use_go_down_the_ladder_and_end_in_no_advice(play: Play, why: str) -> None:
    with serving(play) as server:
        assert why in reason(server)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("play", "why"),
    [
        (completion("x", message={"content": None, "tool_calls": [{"id": "1"}]}), "answered with a tool call"),
        (completion("x", message={"content": None}), "answered with no text"),
        (completion("x", message={"content": ["parts"]}), "answered with no text"),
        (completion("x", choices=[]), "no chat completion"),
        (Play(body=b"<html>"), "no chat completion"),
        (Play(body=b"[" * 100_000), "no chat completion"),
        (Play(body=b'{"choices": "\xff\xfe"}'), "is not UTF-8"),
        (Play(body=GOOD.body[:100], announced=len(GOOD.body)), "RemoteProtocolError"),
        (Play(body=b"{" + b" " * 10_000_000 + b"}"), f"more than {MOST_BYTES} bytes"),
        (Play(body=GOOD.body, headers={"content-encoding": "gzip"}), "compressed"),
        (completion('{"regions": [', finish="length"), "cut off"),
        (refusal(401, f"wrong key {KEY}"), "status 401"),
        (refusal(404, "no such model"), "no such model"),
        (refusal(302, location="http://127.0.0.1:9/"), "status 302"),
    ],
)
def test_a_response_that_is_none_costs_one_call_and_says_why(play: Play, why: str) -> None:
    with serving(play) as server:
        said = reason(server)
    assert why in said
    assert KEY not in said
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again_when_it_says() -> None:
    script = (refusal(429, retry_after="3"), refusal(503), GOOD)
    with serving(*script) as server, client_of(server.url) as (client, _, ledger, slept):
        assert isinstance(client.ask(PROMPT), Answered)
    assert slept == [3.0, 1.0]
    assert ledger.spent.calls == 3


def test_retry_after_may_be_a_date() -> None:
    late = refusal(429, retry_after=formatdate(time.time() + 20, usegmt=True))
    with serving(late, GOOD) as server, client_of(server.url) as (client, _, _, slept):
        assert isinstance(client.ask(PROMPT), Answered)
    assert 15 < slept[0] <= 20


@pytest.mark.parametrize(
    "said", ["nan", "soon", "", "Thu, 99 Foo 2026", "9" * 400, "Thu, 01 Jan 99999999999999999999 00:00:00 GMT"]
)
def test_retry_after_that_says_nothing_is_as_if_it_were_not_there(said: str) -> None:
    with serving(refusal(429, retry_after=said), GOOD) as server, client_of(server.url) as (client, _, _, slept):
        got = client.ask(PROMPT)
    if said.isdecimal():
        assert isinstance(got, Unanswered)
        assert "of patience" in got.reason
    else:
        assert isinstance(got, Answered)
        assert slept == [0.5]


def test_a_server_that_asks_for_too_much_patience_is_left_alone() -> None:
    with serving(refusal(429, retry_after="3600")) as server:
        assert "3600 s of patience" in reason(server)
    assert len(server.requests) == 1


def test_a_server_that_fails_is_asked_three_times() -> None:
    with serving(refusal(500, "out of memory")) as server, client_of(server.url) as (client, _, _, slept):
        got = client.ask(PROMPT)
    assert got == Unanswered(reason='status 500: {"error": {"message": "out of memory"}}')
    assert (len(server.requests), slept) == (3, [0.5, 1.0])


@pytest.mark.parametrize("play", [Play(body=b"x" * 50, drip_s=0.05), Play(body=b"", after_s=1.5)])
def test_a_server_that_is_slow_is_left_when_the_time_is_up(play: Play) -> None:
    begin = time.monotonic()
    with serving(play) as server:
        said = reason(server, seconds=0.5)
        took = time.monotonic() - begin
    assert "no answer within" in said or "too slowly" in said
    assert took < 1.5


def test_a_server_that_is_down_costs_less_than_two_seconds_and_no_tokens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    OpenAIWire("m", "http://127.0.0.1:1", "").close()
    begin = time.monotonic()
    with client_of(url) as (client, _, ledger, slept):
        got = client.ask(PROMPT)
    assert time.monotonic() - begin < 2
    assert isinstance(got, Unanswered)
    assert "Connect" in got.reason
    assert (ledger.spent.calls, ledger.spent.tokens, slept) == (1, 0, [])


def test_a_key_that_is_refused_is_not_sent_again() -> None:
    with serving(refusal(401)) as server, client_of(server.url) as (client, *_):
        client.ask(PROMPT)
        assert isinstance(client.ask(PROMPT), Unanswered)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("ceilings", "why"),
    [
        ({"calls": 0}, "0 of 0 calls"),
        ({"tokens": 1000}, "0 of 1000 tokens"),
        ({"microdollars": 10, "price": (1.0, 1.0)}, "cents are spent"),
        ({"seconds": 0}, "0 s are spent"),
    ],
)
def test_no_ceiling_is_crossed(ceilings: dict[str, float], why: str) -> None:
    with serving(GOOD) as server:
        assert why in reason(server, **ceilings)
    assert server.requests == []


def test_a_ceiling_holds_over_several_questions_and_the_ladder() -> None:
    with serving(completion("no")) as server, client_of(server.url, calls=4) as (client, *_):
        first, second = client.ask(PROMPT), client.ask(PROMPT)
    assert len(server.requests) == 3, "three rungs, and none of them is tried again"
    assert isinstance(first, Unanswered)
    assert isinstance(second, Unanswered)


def test_what_was_booked_for_a_call_that_never_ended_counts() -> None:
    ceilings = Ceilings(calls=2, tokens=20_000)
    booking = Ledger(ceilings).book(3000)
    assert not isinstance(booking, str)
    again = Ledger(ceilings, booking.usage)
    assert not isinstance(again.book(3000), str)
    assert isinstance(again.book(3000), str)
    assert again.spent.calls == 2


def test_seconds_of_calls_beside_one_another_count_once_and_survive_a_resume() -> None:
    now = [100.0]
    ceilings = Ceilings(seconds=60)
    ledger = Ledger(ceilings, clock=lambda: now[0])
    first, second = ledger.book(300), ledger.book(300)
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    taken = []
    for booking, at in ((second, 110.0), (first, 125.0)):
        now[0] = at
        taken.append(ledger.settle(booking, None).seconds)
    now[0] = 140.0
    third = ledger.book(300)
    assert not isinstance(third, str)
    now[0] = 144.0
    taken.append(ledger.settle(third, None).seconds)
    assert taken == [10.0, 15.0, 4.0], "of the time between calls nothing is counted"
    again = Ledger(ceilings, ledger.spent, clock=lambda: now[0])
    assert again.left_s() == 60 - 29
    now[0] += 31
    assert again.book(300) == "60 s are spent"


def test_money_is_counted_at_the_price_that_was_named() -> None:
    ledger = Ledger(Ceilings(price=(2.0, 10.0)))
    booking = ledger.book(300)
    assert not isinstance(booking, str)
    used = ledger.settle(booking, Usage(prompt_tokens=1000, completion_tokens=100))
    assert used.microdollars == ledger.spent.microdollars == 3000


def test_a_server_that_echoes_the_key_finds_it_nowhere() -> None:
    made = answer(PROMPT)
    made["regions"][0]["label"]["text"] = f"the key is {KEY}"
    with serving(completion(made)) as server:
        got = ask(server)
    assert isinstance(got, Answered)
    assert KEY not in got.exchange.answer
    assert HIDDEN in got.exchange.answer


@pytest.mark.parametrize("key", ["sk-plain-0123", 'sk-"quoted"\\0123', "sk-ümlaut-0123"])
def test_a_key_is_hidden_in_every_spelling(key: str) -> None:
    import json

    text = f"{key} {json.dumps(key)} {key!r}"
    for form in (key, json.dumps(key)[1:-1], repr(key)[1:-1]):
        assert form not in redacted(text, (key,))
    assert redacted("nothing to hide", ("",)) == "nothing to hide"


def test_a_key_that_no_header_can_hold_is_not_told_either() -> None:
    key = "sk-broken\nkey-0123456789"
    wire = OpenAIWire("m", "http://127.0.0.1:9/v1", key)
    got = Client(wire, "m", Ledger(Ceilings())).ask(PROMPT)
    wire.close()
    assert isinstance(got, Unanswered)
    assert "key-0123456789" not in got.reason
