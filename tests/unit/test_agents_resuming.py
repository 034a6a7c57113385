"""A session that is killed at any stage goes on to the same tree, with the same answers, which are asked for once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import ModelRequest, Reply
from agentcompile.agents.agents import LONGEST_ANSWER, Agent, Team
from agentcompile.agents.arms import ARMS
from agentcompile.agents.journal import Entry, Refused, SessionJournal, spent_of
from agentcompile.agents.refining import Outcome, Settings, refine
from agentcompile.ir.attempt import Evaluated, Role, Written
from agentcompile.ir.codec import encode
from tests.unit.refined import CONTRACT, Gate, Script, Wires, capable

ATTEMPTS = 9
CEILINGS = Ceilings(calls=200, tokens=2_000_000, answer=LONGEST_ANSWER)


class Killed(BaseException):
    """The process dies here."""


@dataclass
class Axe:
    """Kills at the given step; 0 for never."""

    at: int = 0
    steps: int = 0
    told: list[str] = field(default_factory=list)

    def step(self, what: str) -> None:
        self.steps += 1
        self.told.append(what)
        if self.steps == self.at:
            raise Killed(what)


class MortalWire(Wires):
    """May die before a request, and after the answer came."""

    def __init__(self, axe: Axe, answer: Callable[[dict[str, Any]], str]) -> None:
        super().__init__(answer)
        self._axe = axe

    def send(self, ask: ModelRequest) -> Reply:
        self._axe.step("asked")
        reply = super().send(ask)
        self._axe.step("answered")
        return reply


class MortalGate(Gate):
    """May die before a kernel is evaluated, and after."""

    def __init__(self, axe: Axe) -> None:
        super().__init__()
        self._axe = axe

    def evaluate(self, written: Written) -> Evaluated:
        self._axe.step("judging")
        found = super().evaluate(written)
        self._axe.step("judged")
        return found


class MortalJournal(SessionJournal):
    """May die before an entry is written, and after."""

    def __init__(self, axe: Axe, path: Path) -> None:
        super().__init__(path)
        self._axe = axe

    def append(self, entry: Entry) -> None:
        self._axe.step("writing")
        super().append(entry)
        self._axe.step("written")


def answer(data: dict[str, Any]) -> str:
    """A capable mind that now and then answers with prose, repeats itself, or touches what it must not."""
    number, role = data["attempt"], data["role"]
    if number == 4:
        return "I am afraid I cannot."
    if number == 8 and role == "code":
        return capable({**data, "attempt": 1}, role)
    return capable(data, role)


def run(folder: Path, axe: Axe, arm: str = "stark", *, replay: bool = False) -> tuple[Outcome, list[ModelRequest], int]:
    """One process of a session: its outcome, what was asked, and how much was evaluated."""
    wire, gate = MortalWire(axe, answer), MortalGate(axe)
    roles: tuple[Role, ...] = ("plan", "code", "debug")
    agents = {role: Agent(model=f"m-{role}", wire=None if replay else wire) for role in roles}
    with MortalJournal(axe, folder / "journal.jsonl") as journal:
        team = Team(agents, Ledger(CEILINGS, spent_of(journal.entries)), Cassette(folder / "answers"))
        found = refine(CONTRACT, gate, team, journal, Settings(arm=arm, attempts=ATTEMPTS, seed=0))
    return found, wire.asks, len(gate.evaluated)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a session that was never killed."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, Axe())
    return folder


def entries(folder: Path) -> tuple[Entry, ...]:
    with SessionJournal(folder / "journal.jsonl") as journal:
        return journal.entries


def told(entry: Entry) -> Any:
    """An entry without the seconds that its answers took."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(one) for key, one in value.items() if key != "seconds"}
        return [without(one) for one in value] if isinstance(value, list) else value

    return without(encode(entry))


def same(one: Path, other: Path) -> bool:
    return [told(entry) for entry in entries(one)] == [told(entry) for entry in entries(other)]


def test_the_session_has_something_of_everything(whole: Path) -> None:
    found = entries(whole)
    assert any(isinstance(entry, Refused) for entry in found)
    nodes = [entry for entry in found if not isinstance(entry, Refused)][1:]
    assert {step.role for node in nodes for step in node.log} == {"plan", "code", "debug"}  # type: ignore[union-attr]


@pytest.mark.parametrize("arm", ARMS)
def test_a_session_killed_at_any_step_goes_on_to_the_same_tree(arm: str, tmp_path: Path) -> None:
    reference = Axe()
    run(tmp_path / "whole", reference, arm)
    stages = dict.fromkeys(reference.told)
    assert set(stages) == {"asked", "answered", "judging", "judged", "writing", "written"}
    steps = range(1, reference.steps + 1) if arm == "stark" else range(1, reference.steps + 1, 5)
    for at in steps:
        folder = tmp_path / f"killed-{at}"
        with pytest.raises(Killed):
            run(folder, Axe(at=at), arm)
        found, _, _ = run(folder, Axe(), arm)
        assert found.attempts == ATTEMPTS
        assert same(folder, tmp_path / "whole"), (at, reference.told[at - 1])


def test_answers_that_were_kept_are_not_asked_for_again(tmp_path: Path) -> None:
    reference = Axe()
    _, asks, evaluated = run(tmp_path / "whole", reference)
    for at, what in enumerate(reference.told, 1):
        if what == "judging":
            folder = tmp_path / f"killed-{at}"
            with pytest.raises(Killed):
                run(folder, Axe(at=at))
            before = reference.told[:at].count("answered")
            _, rest, evaluated_then = run(folder, Axe())
            assert len(rest) == len(asks) - before
            assert evaluated_then == evaluated - reference.told[:at].count("judged")


def test_a_journal_cut_at_any_byte_of_a_line_gives_the_same_tree(tmp_path: Path) -> None:
    path, settings = tmp_path / "journal.jsonl", Settings(attempts=2, arm="sampling")

    def resumed() -> tuple[bytes, int]:
        script = Script(lambda prompt, data: capable(data, prompt.role))
        with SessionJournal(path) as journal:
            refine(CONTRACT, Gate(), script, journal, settings)
        return path.read_bytes(), len(script.asked)

    data, _ = resumed()
    for size in range(data[:-1].rfind(b"\n") + 1, len(data)):
        path.write_bytes(data[:size])
        assert resumed() == (data, 1), size


def test_a_journal_cut_between_lines_gives_the_same_tree(whole: Path, tmp_path: Path) -> None:
    data = (whole / "journal.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    ends = [sum(map(len, lines[:at])) for at in range(len(lines) + 1)]
    cuts = {cut for end in ends for cut in (end - 1, end, end + 1) if 0 <= cut <= len(data)}
    shutil.copytree(whole / "answers", tmp_path / "answers")
    for size in sorted(cuts):
        (tmp_path / "journal.jsonl").write_bytes(data[:size])
        _, asks, _ = run(tmp_path, Axe())
        assert not asks, "every answer is kept"
        assert (tmp_path / "journal.jsonl").read_bytes() == data, size


def test_a_session_is_replayed_without_any_transport(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "answers", tmp_path / "answers")
    found, asks, _ = run(tmp_path, Axe(), replay=True)
    assert found.attempts == ATTEMPTS
    assert not asks
    assert (tmp_path / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


def test_a_replay_without_the_answers_ends_with_what_it_has(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole / "journal.jsonl", tmp_path)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    found, _, _ = run(tmp_path, Axe(), replay=True)
    assert found.attempts == 2
    assert "is recorded" in found.stopped
    assert found.best is not None


def test_ceilings_hold_over_a_resume(tmp_path: Path) -> None:
    def part(calls: int) -> Outcome:
        wire = Wires(answer)
        roles: tuple[Role, ...] = ("plan", "code", "debug")
        with SessionJournal(tmp_path / "journal.jsonl") as journal:
            ledger = Ledger(Ceilings(calls=calls, tokens=2_000_000), spent_of(journal.entries))
            team = Team({role: Agent(model="m", wire=wire) for role in roles}, ledger, Cassette(tmp_path / "answers"))
            return refine(CONTRACT, Gate(), team, journal, Settings(attempts=ATTEMPTS))

    first = part(4)
    assert "4 of 4 calls" in first.stopped
    again = part(4)
    assert again.entries == first.entries
    assert part(200).attempts == ATTEMPTS


def test_an_answer_with_a_number_beyond_floats_is_refused_and_so_is_its_recorded_exchange(tmp_path: Path) -> None:
    text = '{"diagnosis":"d","idea":"i","instruction":"z","kernel_with_marks":"","n":1e999}'

    def part(wire: Wires) -> Outcome:
        roles: tuple[Role, ...] = ("plan", "code", "debug")
        with SessionJournal(tmp_path / "journal.jsonl") as journal:
            team = Team(
                {role: Agent(model="m", wire=wire) for role in roles}, Ledger(CEILINGS), Cassette(tmp_path / "answers")
            )
            return refine(CONTRACT, Gate(), team, journal, Settings(attempts=1))

    first, again = Wires(lambda data: text), Wires(lambda data: text)
    found = part(first)
    assert [entry.reason for entry in found.entries if isinstance(entry, Refused)] == [
        "plan: a number in it is out of the range of a float"
    ]
    # The process was killed when the exchange was kept, and its entry was not written yet.
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert part(again).refused == 1
    assert (len(first.asks), len(again.asks)) == (1, 0)
