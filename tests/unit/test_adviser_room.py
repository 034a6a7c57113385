"""Servers with a small context: a question that one refuses as too long is cut, or divided, until it fits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcompile.advice import configure
from agentcompile.advice.client import Client, Unanswered
from agentcompile.advice.counsel import Counsel
from agentcompile.advice.detail import SHORTER
from agentcompile.advice.exchange import Answered, Cassette
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.ledger import LEAST_ANSWER, MOST_ANSWER, Ceilings, Ledger
from agentcompile.advice.prompt import prompt_of
from agentcompile.advice.room import Room, is_too_long
from agentcompile.advice.wire import OpenAIWire
from agentcompile.events import AdviceMissed, AdviceTaken, AdviserReplied, Event, silent
from agentcompile.ir.advice import Question, Usage
from agentcompile.options import resolve
from tests.unit.answers import answer
from tests.unit.loopback import Play, Server, completion, refusal, serving
from tests.unit.wide import WIDE, wide

WORDINGS: dict[str, tuple[int, str]] = {
    "llama.cpp": (
        400,
        "request ({prompt} tokens) exceeds the available context size ({limit} tokens), try increasing it",
    ),
    "llama.cpp, older": (500, "the request exceeds the available context size. try increasing the context size"),
    "llama-cpp-python": (
        400,
        "This model's maximum context length is {limit} tokens. However, you requested {all} tokens ({prompt} in the "
        "messages, {answer} in the completion). Please reduce the length of the messages or completion.",
    ),
    "llama-cpp-python, inside": (500, "Requested tokens ({prompt}) exceed context window of {limit}"),
    "vLLM": (
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: {answer}. "
        "This model's maximum context length is {limit} "
        "tokens and your request has {prompt} input tokens ({answer} > {limit} - {prompt}).",
    ),
    "vLLM, newer": (
        400,
        "This model's maximum context length is {limit} tokens. However, you requested {answer} output tokens and your "
        "prompt contains at least {least} input tokens, for a total of at least {more} tokens.",
    ),
    "OpenAI": (
        400,
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {prompt} tokens. "
        "Please reduce the length of the messages.",
    ),
    "Ollama": (400, "the input length exceeds the context length"),
    "TGI": (
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {prompt} `inputs` "
        "tokens and {answer} `max_new_tokens`",
    ),
    "TGI, inputs": (422, "Input validation error: `inputs` must have less than {limit} tokens. Given: {prompt}"),
    "SGLang": (400, "The input ({prompt} tokens) is longer than the model's context length ({limit} tokens)."),
    "a limit alone": (
        413,
        "Request too large for model `m`: Limit {limit}, Requested {all}, please reduce your message",
    ),
    "a proxy": (413, "413 Request Entity Too Large"),
    "another": (400, "prompt is too long: {prompt} tokens > {limit} maximum"),
}
"""Status and message of a refusal by server."""
BOTH = {"llama-cpp-python", "vLLM", "vLLM, newer", "TGI", "a limit alone"}
"""Servers that count the room for the answer too."""
OTHERS = (
    (400, "'response_format.type' must be 'json_object' or 'text'"),
    (400, "Input should be 'text' or 'json_object'"),
    (422, "Extra inputs are not permitted: max_completion_tokens"),
    (429, "Rate limit reached: Limit 30000, Used 29000, Requested 2000. Please try again in 2s."),
    (429, "You exceeded your current quota, please check your plan and billing details."),
    (401, "This model's maximum context length is 8192 tokens"),
    (503, "model is loading"),
    (500, "out of memory"),
)


OTHER, THIRD = wide(512), wide(1024)
GOOD = answer(prompt_of([WIDE, OTHER, THIRD]))["regions"]


def tokens_of(request: dict[str, Any]) -> int:
    """What a tokenizer with a small vocabulary makes of a question."""
    system, user = (message["content"] for message in request["messages"])
    return round(len(system) / 3.7 + len(user) / 1.9)


def holding(limit: int, wording: str) -> Callable[[dict[str, Any]], Play]:
    """A server that holds `limit` tokens."""
    status, message = WORDINGS[wording]

    def play(request: dict[str, Any]) -> Play:
        prompt, most = tokens_of(request), request["max_completion_tokens"]
        if prompt + (most if wording in BOTH else 1) > limit:
            least = limit - most + 1 if limit > most else prompt
            said = {"limit": limit, "prompt": prompt, "answer": most, "all": prompt + most}
            return refusal(status, message.format(**said, least=least, more=limit + 1))
        told = json.loads(request["messages"][1]["content"])
        asked = {one["region"] for one in told["regions"]}
        return completion({"regions": [one for one in GOOD if one["region"] in asked]})

    return play


@contextmanager
def client_of(server: Server, context: int = 0, **ceilings: float) -> Iterator[tuple[Client, Ledger, list[Event]]]:
    ledger, said = Ledger(Ceilings(**ceilings)), list[Event]()  # type: ignore[arg-type]
    wire = OpenAIWire("m", server.url, "")
    try:
        yield Client(wire, "m", ledger, emit=said.append, sleep=lambda _: None, context=context), ledger, said
    finally:
        wire.close()


@pytest.mark.parametrize(
    ("wording", "limit"),
    [
        *((one, 4096) for one in WORDINGS),
        *((one, size) for one in ("llama.cpp", "vLLM", "Ollama") for size in (2560, 6500)),
    ],
)
def test_a_server_that_refuses_a_long_question_gets_a_shorter_one_and_advises(wording: str, limit: int) -> None:
    prompt = prompt_of([WIDE])
    with serving(holding(limit, wording)) as server, client_of(server) as (client, ledger, said):
        got = client.ask(prompt)
    assert isinstance(got, Answered), got
    (advice,) = got.reading.advice.values()
    assert [id for id, _ in advice.rationales] == [prompt.asked[0].candidates[name].id for name in ("c4", "c1")]
    assert 2 <= len(server.requests) <= 9
    spare = LEAST_ANSWER if "{limit}" in WORDINGS[wording][1] else 1
    assert tokens_of(server.requests[-1]) + spare <= limit
    assert (ledger.spent.calls, ledger.spent.tokens) == (1, 1200), "what was refused is not counted"
    replies = [one for one in said if isinstance(one, AdviserReplied)]
    assert all(one.result.endswith("the question is too long") and not one.used.calls for one in replies[:-1])
    assert (got.exchange.system, got.exchange.user) == tuple(m["content"] for m in server.requests[-1]["messages"])


@pytest.mark.parametrize(("status", "text"), OTHERS)
def test_other_refusals_are_not_taken_for_it(status: int, text: str) -> None:
    assert not is_too_long(status, json.dumps({"error": {"message": text}}))


def test_what_a_server_holds_is_remembered_for_the_run() -> None:
    with serving(holding(4096, "llama.cpp")) as server, client_of(server) as (client, ledger, _):
        client.ask(prompt_of([WIDE]))
        first = len(server.requests)
        got = client.ask(prompt_of([OTHER]))
    assert isinstance(got, Answered)
    assert len(server.requests) == first + 1
    assert ledger.spent.calls == 2


def test_a_size_that_is_known_before_is_kept_to_from_the_first_request() -> None:
    with serving(holding(4096, "vLLM")) as server, client_of(server, context=4096) as (client, _, _):
        got = client.ask(prompt_of([WIDE]))
    assert isinstance(got, Answered)
    (request,) = server.requests
    assert tokens_of(request) + request["max_completion_tokens"] <= 4096
    assert request["max_completion_tokens"] >= LEAST_ANSWER


def test_the_setting_is_that_size() -> None:
    flags = {"advisor": "openai:m@http://127.0.0.1:9/v1", "advisor_context": "4096"}
    client = configure.client_of(resolve(flags, environ={}).options, silent, Usage())
    assert isinstance(client, Client)
    assert client._room.tokens == 4096


def test_for_a_server_without_a_limit_nothing_changes() -> None:
    prompt = prompt_of([WIDE])
    with serving(holding(1 << 20, "vLLM")) as server, client_of(server) as (client, _, _):
        assert isinstance(client.ask(prompt), Answered)
    (request,) = server.requests
    assert [message["content"] for message in request["messages"]] == [prompt.system, prompt.user]
    assert request["max_completion_tokens"] == MOST_ANSWER
    assert "maxItems" not in json.dumps(request)


def test_a_schema_sets_limits_and_names_only_where_the_context_is_small() -> None:
    with serving(refusal(422), completion("{}")) as server, client_of(server, context=4096) as (client, _, _):
        client.ask(prompt_of([WIDE]))
    first, second = (request["response_format"] for request in server.requests[:2])
    for schema in (first["json_schema"]["schema"], second["schema"]):
        regions = schema["properties"]["regions"]
        assert regions["maxItems"] == 1
        assert regions["minItems"] == 1
        region = regions["items"]["properties"]
        assert region["region"]["enum"] == [prompt_of([WIDE]).asked[0].id]
        assert region["ranking"]["maxItems"] == 6
        shown = json.loads(server.requests[0]["messages"][1]["content"])["regions"][0]["candidates"]
        assert region["ranking"]["items"]["properties"]["candidate"]["enum"] == [row[0] for row in shown]
        hints = [form["properties"] for form in region["hints"]["items"]["anyOf"]]
        named = [(hint["template"]["enum"][0], hint["param"]["enum"][0]) for hint in hints]
        assert named == [("t1", "FORM"), ("t2", "TILES"), ("t2", "AHEAD"), ("t2", "INTO")]
        assert hints[1]["values"]["items"]["enum"] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    "text",
    [
        "maximum context length is 0 tokens", "maximum context length is 1 tokens",
        "maximum context length is 100 tokens", f"maximum context length is {10**40} tokens",
        "maximum context length is 999999999 tokens", "maximum context length is -5 tokens",
        "request (100 tokens) exceeds the available context size (16000 tokens)",
        "request (999999999 tokens) exceeds the available context size (8192 tokens)", "context length " * 5000,
        "prompt is too long: \u0663\u0663\u0663\u0663 tokens > \u0662\u0662\u0662\u0662 maximum",
    ],
)  # fmt: skip
def test_a_server_that_refuses_everything_ends_with_its_reason_whatever_it_says(text: str) -> None:
    with serving(refusal(400, text)) as server, client_of(server) as (client, ledger, _):
        got = client.ask(prompt_of([WIDE]))
        after = len(server.requests)
        again = client.ask(prompt_of([OTHER]))
    assert isinstance(got, Unanswered)
    assert "even the shortest question is too long for the server" in got.reason
    assert "status 400" in got.reason
    assert len(got.reason) < 600
    assert after <= 12
    assert isinstance(again, Unanswered)
    assert len(server.requests) == after, "it is not asked again"
    assert (ledger.spent.calls, ledger.spent.tokens) == (0, 0)


def test_a_size_that_falls_by_a_little_each_time_ends_soon() -> None:
    left = iter(range(16000, 0, -1))

    def play(request: dict[str, Any]) -> Play:
        return refusal(400, f"maximum context length is {next(left)} tokens")

    with serving(play) as server, client_of(server) as (client, _, _):
        assert isinstance(client.ask(prompt_of([WIDE])), Unanswered)
    assert len(server.requests) <= 16


def test_of_questions_that_were_sent_together_the_later_refusals_change_nothing() -> None:
    room, prompt = Room(), prompt_of([WIDE])
    said = "request (12000 tokens) exceeds the available context size (8192 tokens)"
    room.refused(prompt, MOST_ANSWER, said)
    for _ in range(5):
        room.refused(prompt, MOST_ANSWER, said)
    assert room.tokens == 8192
    cut = room.cut(prompt)
    assert cut is not None
    assert room.fits(cut)


def counsel_of(client: Client, questions: list[Question], folder: Path | None = None) -> tuple[Counsel, list[Event]]:
    told: list[Event] = []
    first = {one.region.id: (one, Heuristic().advise(one)) for one in questions}
    kept = Cassette(folder) if folder else None
    return Counsel(first, asks=client, recalls=kept, keeps=kept, tell=told.append), told


def test_a_question_about_several_regions_is_divided_and_every_region_is_advised(tmp_path: Path) -> None:
    questions = [WIDE, OTHER, THIRD]
    with serving(holding(8192, "vLLM")) as server, client_of(server) as (client, ledger, _):
        found, told = counsel_of(client, questions, tmp_path)
        found.begin([prompt_of(questions)])
        found.wait(20)
    assert {one.region for one in told if isinstance(one, AdviceTaken)} == {one.region.id for one in questions}
    assert not [one for one in told if isinstance(one, AdviceMissed)]
    assert ledger.spent.calls == 3
    assert found.waiting == 0


def test_a_question_that_is_divided_when_the_search_ends_is_not_asked_on() -> None:
    questions = [WIDE, OTHER]
    with serving(holding(8192, "vLLM")) as server, client_of(server, context=8192) as (client, _, _):
        found, told = counsel_of(client, questions)
        found._came.put((prompt_of(questions), client.ask(prompt_of(questions))))
        found.waiting = 1
        found.close()
    assert [one.regions for one in told if isinstance(one, AdviceMissed)] == [tuple(q.region.id for q in questions)]
    assert server.requests == []


def test_an_answer_to_a_shortened_question_is_replayed_and_may_name_what_was_not_listed(tmp_path: Path) -> None:
    prompt = prompt_of([WIDE])
    made = answer(prompt)
    shown = {row[0] for row in json.loads(prompt_of([WIDE], SHORTER[-1]).user)["regions"][0]["candidates"]}
    assert shown.isdisjoint({"c7", "c90"})
    made["regions"][0]["ranking"] = [{"candidate": name, "rationale": ""} for name in ("c90", "t2(8,98304,3)", "c7")]
    with serving(completion(made)) as server, client_of(server, context=2560) as (client, _, _):
        found, _ = counsel_of(client, [WIDE], tmp_path)
        found.begin([prompt])
        found.wait(20)
    told: list[Event] = []
    first = {WIDE.region.id: (WIDE, Heuristic().advise(WIDE))}
    again = Counsel(first, recalls=Cassette(tmp_path), tell=told.append)
    again.begin([prompt])
    assert again.advice(WIDE.region.id) == found.advice(WIDE.region.id)
    ids = {candidate.label: candidate.id for candidate in WIDE.candidates}
    order = again.advice(WIDE.region.id).order
    assert order[0] == prompt.asked[0].candidates["c90"].id
    assert order[1] == next(
        id for label, id in ids.items() if "AHEAD=98304" in label and "TILES=8" in label and "=3" in label
    )
    assert [asked.key for asked in prompt.asked] == list(
        json.loads(next(tmp_path.iterdir()).read_text())["keys"].values()
    )


def test_a_server_that_ends_an_answer_where_its_context_is_full_is_asked_a_shorter_question() -> None:
    def play(request: dict[str, Any]) -> Play:
        prompt, limit = tokens_of(request), 8192
        whole = holding(1 << 20, "vLLM")(request)
        if prompt + 1200 <= limit:
            return whole
        used = {"prompt_tokens": prompt, "completion_tokens": limit - prompt}
        return completion('{"regions": [', finish="length", usage=used)

    with serving(play) as server, client_of(server) as (client, ledger, _):
        got = client.ask(prompt_of([WIDE]))
    assert isinstance(got, Answered), got
    assert len(server.requests) == 2
    assert tokens_of(server.requests[1]) + 2048 <= 8192
    assert ledger.spent.calls == 2, "an answer that was cut off was paid for"


def test_an_answer_that_was_cut_off_where_it_had_to_end_is_not_asked_for_again() -> None:
    used = {"prompt_tokens": 7000, "completion_tokens": MOST_ANSWER}
    with serving(completion("{", finish="length", usage=used)) as server, client_of(server) as (client, _, _):
        got = client.ask(prompt_of([WIDE]))
    assert isinstance(got, Unanswered)
    assert got.reason.startswith("the answer was cut off")
    assert len(server.requests) == 1


def test_answers_that_are_always_cut_off_end_soon() -> None:
    draw = random.Random(2)

    def play(request: dict[str, Any]) -> Play:
        used = {"prompt_tokens": draw.randrange(1, 9000), "completion_tokens": draw.randrange(0, 500)}
        return completion("{", finish="length", usage=used)

    for _ in range(10):
        with serving(play) as server, client_of(server, calls=100) as (client, _, _):
            assert isinstance(client.ask(prompt_of([WIDE])), Unanswered)
        assert len(server.requests) <= 12
