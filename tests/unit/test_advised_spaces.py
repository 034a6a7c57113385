"""Recorded spaces of ours with the questions about them, and arms that are advised there."""

from __future__ import annotations

import csv
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentcompile.advice.asked import PromptRegion
from agentcompile.advice.exchange import Cassette, Exchange
from agentcompile.advice.heuristic import Heuristic
from agentcompile.advice.prompt import prompt_of
from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Usage
from bench.ablation.questions import RecordedQuestion, beside, question_bytes, read_question
from bench.ablation.recorded import Request, study_of
from bench.ablation.simulate import simulate
from bench.ablation.spaces import RecordedSpace, read_space
from bench.ablation.tables import as_csv, report
from tests.unit.answers import answer, question
from tests.unit.recorded import result, t4, write

ASKED = question()
TIMES = {one.id: 1.0 + at for at, one in enumerate(reversed(ASKED.candidates))}
"""Times in ms: the last candidate of the space is the fastest."""


def recorded(folder: Path, *, leave_out: int = 0) -> Path:
    """Write the space and its question; return the space's path."""
    results = [
        result({"template": one.template, **dict(reversed(one.params))}, TIMES[one.id])
        for one in list(ASKED.candidates)[leave_out:]
    ]
    path = write(folder / "ours.json", t4(*results))
    about = RecordedQuestion(
        model="m", region=ASKED.region, target=ASKED.target, ceiling=ASKED.ceiling, residency="dram",
        templates=ASKED.templates,
    )  # fmt: skip
    beside(path).write_bytes(question_bytes(about))
    return path


def exchange(asked: PromptRegion, told: dict[str, Any]) -> Exchange:
    """The recorded answer `told` to one question."""
    return Exchange(
        keys={asked.id: asked.key}, model="mind", rung="json_schema", system="", user="", answer=json.dumps(told),
        usage=Usage(calls=1), at_ms=0,
    )  # fmt: skip


def cassette(folder: Path) -> Path:
    """Record an answer whose first choice is candidate c4."""
    asked = prompt_of([ASKED])
    Cassette(folder).keep(exchange(asked.asked[0], answer(asked)))
    return folder


def order(space: RecordedSpace, arm: str, seed: int = 0) -> list[float]:
    """The best times in ns, one after another, of a search in the advised order."""
    return [ns for _, ns in simulate(space, arm, 10, seed).steps]


def test_a_space_and_its_question_have_the_candidates_of_a_compile(tmp_path: Path) -> None:
    space = read_space(recorded(tmp_path))
    assert space.candidates == tuple(ASKED.candidates)
    assert space.outcomes == {id: ms * 1e6 for id, ms in TIMES.items()}
    assert space.question == ASKED
    assert read_question(beside(tmp_path / "ours.json")).question == ASKED


def test_the_files_have_the_same_bytes_each_time(tmp_path: Path) -> None:
    read = read_question(beside(recorded(tmp_path)))
    assert question_bytes(read) == beside(tmp_path / "ours.json").read_bytes()


def test_an_advised_arm_searches_in_the_order_of_its_advice(tmp_path: Path) -> None:
    space = read_space(recorded(tmp_path))
    heuristic = Heuristic().advise(ASKED).order[0]
    ranked = prompt_of([ASKED]).asked[0].candidates["c4"]  # the first choice of `answer`
    assert order(space, "exhaustive@heuristic")[0] == TIMES[heuristic] * 1e6
    assert order(space, "exhaustive@none") == order(space, "exhaustive")
    assert order(space, "exhaustive")[0] == TIMES[ASKED.candidates[0].id] * 1e6
    firsts = {order(space, "exhaustive@random", seed)[0] for seed in range(20)}
    assert len(firsts) > 3, "every seed has an order of its own"
    replayed = order(space, f"exhaustive@replay:{cassette(tmp_path / 'minds')}")[0]
    assert replayed == TIMES[ranked.id] * 1e6


@contextmanager
def mind(told: list[dict[str, Any]]) -> Iterator[str]:
    """A server that answers every request with a good answer and keeps what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.append(json.loads(body["messages"][1]["content"]))
            message = {"role": "assistant", "content": json.dumps(answer(prompt_of([ASKED])))}
            reply = {
                "id": "1", "object": "chat.completion", "created": 0, "model": "a mind",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
            }  # fmt: skip
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"openai:mind@http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def test_a_live_arm_is_recorded_and_its_replay_asks_nobody_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    path, told, minds = recorded(tmp_path), list[dict[str, Any]](), tmp_path / "minds"
    with mind(told) as server:
        live = study_of(_request(path, f"mcts+advice@{server}", minds))
    assert len(told) > 1, "it was asked at first, and in the middle of the search"
    assert told[1]["regions"][0]["focus"], "the second question is about a candidate"
    replay = study_of(_request(path, f"mcts+advice@replay:{minds}", None))
    assert [curve.steps for curve in replay.curves] == [curve.steps for curve in live.curves]
    heard = [curve.used for curve in replay.curves]
    assert all(one.calls > 1 and one.tokens == 12 * one.calls for one in heard), heard
    assert max(one.calls for one in heard) <= len(told)
    assert replay.standings[0].calls == sum(one.calls for one in heard) / 2
    (row,) = csv.DictReader(as_csv(replay).splitlines())
    assert (float(row["calls"]), float(row["tokens"])) == (replay.standings[0].calls, replay.standings[0].tokens)
    assert row["model"] == "a mind"
    assert any("answers of a model" in line for line in report(replay))


def _request(path: Path, arm: str, record: Path | None) -> Request:
    return Request(spaces=(path,), strategies=(arm,), seeds=2, budget=10, within=5.0, jobs=1, record=record)


def test_a_study_knows_when_recorded_answers_changed(tmp_path: Path) -> None:
    path, minds = recorded(tmp_path), cassette(tmp_path / "minds")
    arm, out = f"halving@replay:{minds}", tmp_path / "out.json"
    first = study_of(Request(spaces=(path,), strategies=(arm,), seeds=1, budget=10, within=5.0, jobs=1, out=out))
    asked = prompt_of([ASKED])
    other = answer(asked)
    other["regions"][0]["ranking"].reverse()
    Cassette(minds).keep(exchange(asked.asked[0], other))
    second = study_of(Request(spaces=(path,), strategies=(arm,), seeds=1, budget=10, within=5.0, jobs=1, out=out))
    assert first.sources[arm] != second.sources[arm]


@pytest.mark.parametrize(
    ("arm", "text"),
    [
        ("halving@heurist", "no such adviser"),
        ("halving@replay:{folder}/nothing", "holds no exchange"),
        ("halving@openai:mind@http://127.0.0.1:9", "must be recorded"),
        ("halvin@heuristic", "is no strategy"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_search(tmp_path: Path, arm: str, text: str) -> None:
    with pytest.raises(AgentCompileError, match=text) as raised:
        study_of(_request(recorded(tmp_path), arm.format(folder=tmp_path), None))
    assert raised.value.hint


def test_advice_about_a_space_of_others_or_another_region_is_refused(tmp_path: Path) -> None:
    foreign = read_space(write(tmp_path / "foreign.json", t4(result({"A": 1}, 1.0), result({"A": 2}, 2.0))))
    with pytest.raises(AgentCompileError, match="has no question"):
        simulate(foreign, "halving@heuristic", 5, 0)
    other = prompt_of([question(rows=512)])
    Cassette(tmp_path / "minds").keep(exchange(other.asked[0], answer(other)))
    with pytest.raises(AgentCompileError, match="nothing is recorded about ours"):
        simulate(read_space(recorded(tmp_path)), f"halving@replay:{tmp_path / 'minds'}", 5, 0)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match=r"ours\.json: not the space that ours\.question\.json\.gz asks about"):
        read_space(recorded(tmp_path, leave_out=1))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", gzip.compress(b"{}"), gzip.compress(b'{"kind": "x"}'), gzip.compress(b"[")[:-4]],
    ids=["empty", "not packed", "no fields", "unknown field", "cut short"],  # a packed text begins with the time
)
def test_a_damaged_question_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    path = recorded(tmp_path)
    beside(path).write_bytes(data)
    with pytest.raises(AgentCompileError, match=r"ours\.question\.json\.gz") as raised:
        read_space(path)
    assert raised.value.hint
