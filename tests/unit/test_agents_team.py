"""A team: own models and temperatures, one ledger, every answer kept, and replay without any transport."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agentcompile.advice.client import Unanswered, Unrecorded
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import MOST_BYTES, ModelRequest, OpenAIWire, Reply, WireError
from agentcompile.agents.agents import LONGEST_ANSWER, Agent, Said, Team
from agentcompile.agents.answers import UNREADABLE, read_plan
from agentcompile.agents.arms import ARMS
from agentcompile.agents.prompts import RolePrompt, prompt_of
from agentcompile.agents.windows import alone, window
from agentcompile.events import AdviserCalled, AdviserReplied, Event
from agentcompile.ir.attempt import Role, Written
from tests.unit.loopback import Play, completion, refusal, serving
from tests.unit.refined import CONTRACT, Wires, draft, plan, tree

NODES = tree((0, 800.0))
CEILINGS = Ceilings(calls=100, tokens=1_000_000, answer=LONGEST_ANSWER)
ROLES: tuple[Role, ...] = get_args(Role)


def question(role: Role, attempt: int = 1) -> RolePrompt:
    return prompt_of(CONTRACT, NODES, window(role, NODES, 1), attempt=attempt)


def agents(wires: Mapping[Role, Any]) -> dict[Role, Agent]:
    temperatures = ARMS["stark"].temperatures
    return {
        role: Agent(model=f"m-{role}", wire=wires.get(role), temperature=temperatures[role]) for role in ROLES
    }  # fmt: skip


def answer(data: dict[str, Any]) -> str:
    return plan("k") if data["role"] == "plan" else draft(f"// {data['attempt']}")


def test_each_role_has_its_own_model_temperature_and_schema(tmp_path: Path) -> None:
    wires = {role: Wires(answer) for role in ROLES}
    team = Team(agents(wires), Ledger(CEILINGS), Cassette(tmp_path))
    for role in ROLES:
        said = team.ask(question(role))
        assert isinstance(said, Said)
        assert said.model == f"m-{role}"
    asked = {role: wire.asks[0] for role, wire in wires.items()}
    assert {role: ask.temperature for role, ask in asked.items()} == {"plan": 0.8, "code": 0.1, "debug": 0.1}
    assert asked["plan"].schema is not None
    assert "kernel_with_marks" in asked["plan"].schema["properties"]  # type: ignore[operator]
    assert asked["code"].schema == asked["debug"].schema != asked["plan"].schema
    assert team.spent.calls == 3
    assert team.spent.tokens == 330


def test_an_answer_is_recorded_and_replayed_without_a_transport(tmp_path: Path) -> None:
    live = Team(agents({role: Wires(answer) for role in ROLES}), Ledger(CEILINGS), Cassette(tmp_path))
    said = [live.ask(question(role, attempt)) for role in ROLES for attempt in (1, 2)]
    replayed = Team(agents({}), Ledger(CEILINGS), Cassette(tmp_path))
    assert [replayed.ask(question(role, attempt)) for role in ROLES for attempt in (1, 2)] == said
    assert replayed.spent.calls == 0
    missing = replayed.ask(question("plan", 3))
    assert missing == Unrecorded(reason="no answer of the role plan is recorded for this", final=True)


def test_a_recorded_answer_is_not_asked_for_again_unless_the_model_is_another(tmp_path: Path) -> None:
    for model, calls in (("one", 1), ("one", 0), ("other", 1)):
        wire = Wires(answer)
        team = Team({"plan": Agent(model=model, wire=wire)}, Ledger(CEILINGS), Cassette(tmp_path))
        assert isinstance(team.ask(question("plan")), Said)
        assert len(wire.asks) == calls
        assert isinstance(team.ask(question("plan")), Said)
        assert team.spent.calls == 1, "what was asked before counts too, but once"
        assert all(ask.temperature is None for ask in wire.asks)


def test_without_a_transport_the_place_is_enough_where_times_differ(tmp_path: Path) -> None:
    live = Team(agents({"plan": Wires(answer)}), Ledger(CEILINGS), Cassette(tmp_path))
    said = live.ask(question("plan"))
    slower = tuple(replace(node, ns=node.ns * 2) for node in NODES)
    again = prompt_of(CONTRACT, slower, window("plan", slower, 1), attempt=1)
    assert again.digest != question("plan").digest
    assert Team(agents({}), Ledger(CEILINGS), Cassette(tmp_path)).ask(again) == said
    wire = Wires(answer)
    Team(agents({"plan": wire}), Ledger(CEILINGS), Cassette(tmp_path)).ask(again)
    assert len(wire.asks) == 1, "who can be asked, is"


def test_a_role_that_nobody_has_is_unanswered(tmp_path: Path) -> None:
    got = Team({}, Ledger(CEILINGS), Cassette(tmp_path)).ask(question("debug"))
    assert isinstance(got, Unanswered)
    assert got.final


@pytest.mark.parametrize("ceilings", [{"calls": 1}, {"tokens": 20_000, "answer": 1000}, {"microdollars": 30_000}])
def test_a_ceiling_ends_the_asking_and_counts_over_a_resume(tmp_path: Path, ceilings: dict[str, int]) -> None:
    most = replace(CEILINGS, price=(1.0, 1.0), **ceilings)  # type: ignore[arg-type]
    ledger = Ledger(most)
    team = Team(agents({"plan": Wires(answer)}), ledger, Cassette(tmp_path))
    attempt = 1
    while isinstance(got := team.ask(question("plan", attempt)), Said):
        attempt += 1
        assert attempt < 200
    assert got.final
    assert "ceiling" in got.reason
    resumed = Team(agents({"plan": Wires(answer)}), Ledger(most, ledger.spent), Cassette(tmp_path / "other"))
    assert isinstance(resumed.ask(question("plan", attempt)), Unanswered)


def test_each_model_has_its_own_price(tmp_path: Path) -> None:
    wire = Wires(answer)
    minds: dict[Role, Agent] = {
        "plan": Agent(model="dear", wire=wire, price=(10.0, 100.0)),
        "code": Agent(model="usual", wire=wire),
    }
    ledger = Ledger(replace(CEILINGS, price=(1.0, 2.0)))
    team = Team(minds, ledger, Cassette(tmp_path))
    costs = [said.usage.microdollars for role in minds if isinstance(said := team.ask(question(role)), Said)]
    assert costs == [100 * 10 + 10 * 100, 100 * 1 + 10 * 2]
    assert team.spent.microdollars == sum(costs)


class Broken:
    """A transport that fails."""

    def __init__(self, error: WireError) -> None:
        self.error = error

    def send(self, ask: ModelRequest) -> Reply:
        raise self.error

    def close(self) -> None:
        return


def test_an_answer_that_is_too_long_is_recorded_as_refused_and_a_dead_server_is_not(tmp_path: Path) -> None:
    long = WireError("a response of more than 2 bytes", answered=True)
    team = Team(agents({"plan": Broken(long), "code": Broken(WireError("down"))}), Ledger(CEILINGS), Cassette(tmp_path))
    said = team.ask(question("plan"))
    assert isinstance(said, Said)
    assert read_plan(said.text) == "a response of more than 2 bytes"
    assert len(Cassette(tmp_path).exchanges) == 1
    got = team.ask(question("code"))
    assert isinstance(got, Unanswered)
    assert not got.final


def test_half_a_surrogate_pair_is_recorded_as_another_character(tmp_path: Path) -> None:
    team = Team(agents({"plan": Wires(lambda data: "a\ud800")}), Ledger(CEILINGS), Cassette(tmp_path))
    said = team.ask(question("plan"))
    assert isinstance(said, Said)
    assert said.text == "a?"
    assert len(Cassette(tmp_path).exchanges) == 1


def test_over_a_real_connection(tmp_path: Path) -> None:
    """A server that knows no schema, answers with ten megabytes, is cut off, and then behaves."""
    good = completion(plan("k"))
    flood = Play(body=b"x" * (MOST_BYTES + 1))
    script = (refusal(400), good, flood, completion(plan("k"), finish="length"), good)
    said: list[Event] = []
    with serving(*script) as server:
        wire = OpenAIWire("m", server.url, "sk-test-0123456789")
        mind = Agent(model="m", wire=wire, temperature=0.8)
        team = Team({"plan": mind}, Ledger(CEILINGS), Cassette(tmp_path), emit=said.append)
        got = [team.ask(question("plan", attempt)) for attempt in range(4)]
        wire.close()
    texts = [one.text for one in got if isinstance(one, Said)]
    assert texts[0] == texts[3] == plan("k")
    assert texts[1].startswith(f"{UNREADABLE}a response of more than")
    assert "cut off" in texts[2]
    requests = server.requests
    assert [one["temperature"] for one in requests] == [0.8] * 5
    formats = [one.get("response_format", {}) for one in requests]
    keys = ["diagnosis", "idea", "instruction", "kernel_with_marks"]
    assert formats[0]["json_schema"]["schema"]["required"] == keys
    assert {one["type"] for one in formats[1:]} == {"json_object"}
    assert requests[0]["max_completion_tokens"] == LONGEST_ANSWER
    assert [type(one) for one in said] == [AdviserCalled, AdviserReplied] * 5


def long(tokens: int) -> Play:
    return refusal(400, f"This model's maximum context length is {tokens} tokens. Please reduce the length.")


def large(role: Role = "plan", attempt: int = 1) -> RolePrompt:
    """A question about a node among others with long kernels."""
    big = Written(manifest="", kernel="k();\n" * 2_000)
    nodes = tree((0, 800.0), (0, 700.0), (0, 600.0), (0, 500.0))
    nodes = (*nodes[:2], *(replace(one, written=big) for one in nodes[2:]))
    return prompt_of(CONTRACT, nodes, window(role, nodes, 1), attempt=attempt)


def test_a_question_that_is_too_long_for_a_server_is_asked_with_less_of_the_tree(tmp_path: Path) -> None:
    whole = large()
    with serving(long(8192), completion(plan("k"))) as server:
        wire = OpenAIWire("m", server.url, "sk-test-0123456789")
        minds: dict[Role, Agent] = {"plan": Agent(model="m", wire=wire), "code": Agent(model="m", wire=wire)}
        team = Team(minds, Ledger(CEILINGS), Cassette(tmp_path))
        said = [team.ask(prompt) for prompt in (whole, large("code"), whole)]
        wire.close()
    assert all(isinstance(one, Said) for one in said)
    sent = [one["messages"][1]["content"] for one in server.requests]
    assert sent[0] == whole.user
    assert sent[1] in whole.shorter
    assert sent[2] in large("code").shorter, "the same model's server holds no more for another role"
    assert len(sent) == 3, "an answer to a shorter question is one to the whole"
    assert team.spent.calls == 2, "the refusal costs none"
    assert server.requests[1]["max_completion_tokens"] < 8192
    assert {one["response_format"]["json_schema"]["name"] for one in server.requests} == {"plan", "kernel"}
    (kept,) = (one for one in Cassette(tmp_path).exchanges.values() if "plan" in one.keys)
    assert kept.user in whole.shorter, "the record has what was sent"


def test_a_known_context_is_kept_to_from_the_first_question(tmp_path: Path) -> None:
    wire = Wires(answer)
    team = Team({"plan": Agent(model="m", wire=wire, context=8192)}, Ledger(CEILINGS), Cassette(tmp_path))
    assert isinstance(team.ask(large()), Said)
    assert [ask.user for ask in wire.asks] == [next(text for text in large().shorter if text == wire.asks[0].user)]


def test_a_server_that_holds_not_even_the_shortest_question_is_no_answer(tmp_path: Path) -> None:
    with serving(long(1024), completion(plan("k"))) as server:
        wire = OpenAIWire("m", server.url, "sk-test-0123456789")
        team = Team({"plan": Agent(model="m", wire=wire)}, Ledger(CEILINGS), Cassette(tmp_path))
        got = team.ask(large())
        wire.close()
    assert isinstance(got, Unanswered)
    assert "1024 tokens" in got.reason
    assert not got.final, "a question about another place in the tree may be shorter"
    assert (len(server.requests), team.spent.calls) == (1, 0)


def test_the_exchanges_are_the_ones_of_advice(tmp_path: Path) -> None:
    team = Team(agents({"plan": Wires(answer)}), Ledger(CEILINGS), Cassette(tmp_path))
    prompt = prompt_of(CONTRACT, NODES[:1], alone("plan"), attempt=1)
    said = team.ask(prompt)
    (path,) = tmp_path.glob("*.exchange.json")
    found = json.loads(path.read_text())
    assert found["keys"] == {"plan": prompt.digest, "place": prompt.place}
    assert found["answered_by"] == "served"
    assert found["usage"]["calls"] == 1
    assert isinstance(said, Said)
    assert said.exchange in Cassette(tmp_path).exchanges
