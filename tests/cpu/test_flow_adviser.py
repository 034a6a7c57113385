"""A whole run that asks a model: killed while it asks, resumed, locked, replayed without it; its key is nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcompile.advice.exchange import Cassette
from agentcompile.events import AdviceTaken, AdviserCalled, ClaimSettled
from agentcompile.ir.cleaning import HIDDEN
from agentcompile.ir.trial import Measured
from agentcompile.lockfile.files import read_lock
from agentcompile.runs.session import RunDirectory
from tests.cpu import flows
from tests.cpu.conftest import BUDGET, CONTEXT, SECONDS
from tests.cpu.courses import Leg, leg
from tests.unit.loopback import Play, Server, completion, serving

KEY = "sk-loopback-0123456789-secret"
VARIABLE = "LOOPBACK_KEY"
CALLS = 12
"""More than one process of the run makes, fewer than two would."""
TRIED = 12
"""Trials that the first process finishes before it is killed."""


def advice(request: dict[str, Any]) -> Play:
    """Ranks the last candidate first, claims something right and something wrong, and repeats the key it was sent."""
    asked = json.loads(request["messages"][1]["content"])["regions"]
    regions = [
        {
            "region": one["region"],
            "label": {"text": f"a region; the key is {KEY}", "rationale": ""},
            "claims": [{"says": "computes", "template": None, "value": "softmax", "rationale": ""}],
            "ranking": [{"candidate": one["candidates"][-1][0], "rationale": "the last"}, {"candidate": "c0"}],
            "hints": [],
            "risks": [
                {"says": "does-not-build", "template": template["template"], "value": None, "rationale": "who knows"}
                for template in one["templates"]
            ],
        }
        for one in asked
    ]
    return completion({"regions": regions})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run that was killed while it asked and searched, and resumed to its end."""

    home: Path
    model: Path
    run: Path
    lock: Path
    first: Leg
    done: flows.Ended
    server: Server
    early: int
    """Requests of the first process that came as far as the server."""
    booked: int
    """Calls that it was about to make, as its events say."""


@pytest.fixture(scope="module")
def asked(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asked]:
    root = tmp_path_factory.mktemp("asked")
    run, lock, model = root / "run", root / "agentcompile.lock.toml", checkpoint("tiny-qwen3", "fp32")
    with pytest.MonkeyPatch.context() as patch, serving(Play(after_s=60)) as server:
        patch.setenv(VARIABLE, KEY)
        flags = ("--context", CONTEXT, "--threads", flows.THREADS, "--budget", BUDGET, "--seconds", SECONDS)
        start = ("compile", model, *flags, "--advisor", f"openai:loop@{server.url}", "--advisor-key", VARIABLE)
        more = ("--advisor-calls", CALLS, "--advisor-tokens", 10**6, "--out", lock, "--run-dir", run)
        first = leg(warm, [*start, *more], run, "trial-finished", TRIED, signal.SIGKILL)
        server.script, early = [advice], len(server.requests)
        booked = RunDirectory.open(run).state().spent.calls
        done = flows.cli(warm, "compile", "--resume", "--run-dir", run, limit_s=600)
        yield Asked(
            home=warm, model=model, run=run, lock=lock, first=first, done=done, server=server, early=early,
            booked=booked,
        )  # fmt: skip


def test_a_run_that_was_killed_while_it_asked_goes_on_and_takes_advice(asked: Asked) -> None:
    assert asked.first.code == -signal.SIGKILL
    assert asked.done.code == 0, asked.done.err
    state = RunDirectory.open(asked.run).state()
    assert state.status == "finished"
    assert state.exchanges
    taken = [event for event in RunDirectory.open(asked.run).events() if isinstance(event, AdviceTaken)]
    assert taken
    for event in taken:
        reasons = [one.reason for one in event.advice.proposals if not one.accepted]
        assert "ranking.rationale: missing" in reasons


def test_calls_of_both_processes_together_stay_below_the_ceiling(asked: Asked) -> None:
    state = RunDirectory.open(asked.run).state()
    assert len(asked.server.requests) <= state.spent.calls == CALLS
    assert 2 * asked.booked > CALLS, "without what the first process spent there would be more"
    assert any(f"{CALLS} of {CALLS} calls are made" in missed.reason for missed in state.unadvised)
    assert state.spent.prompt_tokens > 0


def trials_in(requests: Sequence[Any]) -> list[Any]:
    """What requests tell of trials."""
    asked = (json.loads(request["messages"][1]["content"])["regions"] for request in requests)
    return [trial for regions in asked for one in regions for trial in one["trials"]]


def test_what_the_run_had_tried_when_it_was_killed_is_told_when_it_goes_on(asked: Asked) -> None:
    told = trials_in(asked.server.requests[asked.early :])
    assert any(row[1] == "measured" and all(number > 0 for number in row[2:4]) for row in told)


UNTIMED = ("--context", CONTEXT, "--threads", flows.THREADS, "--choose", "first", "--advisor-tokens", 10**6)


@pytest.fixture(scope="module")
def untimed(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sequence[Any]]:
    """A new run in the same home that takes what it is advised without a clock: its folder, and what was requested."""
    root = tmp_path_factory.mktemp("untimed")
    with serving(advice) as server:
        done = flows.cli(
            asked.home, "compile", asked.model, *UNTIMED, "--advisor", f"openai:loop@{server.url}",
            "--out", root / "lock.toml", "--run-dir", root / "run", limit_s=600,
        )  # fmt: skip
    assert done.code == 0, done.err
    return root, server.requests


def test_what_earlier_runs_of_the_machine_tried_is_told_to_a_new_one(untimed: tuple[Path, Sequence[Any]]) -> None:
    assert any(row[1] == "measured" for row in trials_in(untimed[1]))


def test_where_nothing_is_timed_advice_is_waited_for(untimed: tuple[Path, Sequence[Any]]) -> None:
    root, requests = untimed
    state = RunDirectory.open(root / "run").state()
    assert len(requests) == state.spent.calls <= 8
    assert {row.region for row in state.rows if row.advice} == {row.region for row in state.rows if row.points > 1}
    assert read_lock(root / "lock.toml").evidence.advice == tuple(sorted(state.exchanges))


def test_a_whole_session_from_its_exchanges_with_sockets_closed_gives_the_same_lock(
    asked: Asked, untimed: tuple[Path, Sequence[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, again = untimed[0], tmp_path_factory.mktemp("again")
    done = flows.cli(
        asked.home, "compile", asked.model, *UNTIMED, "--advisor", f"replay:{root / 'run' / 'advice'}",
        "--out", again / "lock.toml", "--run-dir", again / "run", limit_s=600,
        env={"PYTHONPATH": str(flows.NO_NETWORK)},
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (again / "lock.toml").read_bytes() == (root / "lock.toml").read_bytes()
    state = RunDirectory.open(again / "run").state()
    assert state.spent.calls == 0
    assert sorted(state.exchanges) == sorted(RunDirectory.open(root / "run").state().exchanges)


def test_a_run_that_only_writes_its_lock_again_asks_nobody(
    asked: Asked, untimed: tuple[Path, Sequence[Any]], tmp_path: Path
) -> None:
    root, run, lock = untimed[0], tmp_path / "run", tmp_path / "lock.toml"
    shutil.copytree(root / "run", run, ignore=shutil.ignore_patterns("advice"))
    kept = json.loads((run / "options.json").read_text())
    kept["options"] |= {"advisor_calls": 99, "run_dir": str(run), "out": str(lock)}
    (run / "options.json").write_text(json.dumps(kept))
    before = [event for event in RunDirectory.open(run).events() if isinstance(event, AdviserCalled)]
    assert 0 < len(before) < 99
    done = flows.verb(asked.home, "compile", "--resume", "--run-dir", run)
    assert done.code == 0, done.err
    state = RunDirectory.open(run).state()
    assert [event for event in RunDirectory.open(run).events() if isinstance(event, AdviserCalled)] == before
    assert state.spent.calls == len(before)
    written, first = read_lock(lock), read_lock(root / "lock.toml")
    assert [plan.choices for plan in written.plan] == [plan.choices for plan in first.plan]


def test_what_a_measurement_says_of_a_claim_is_an_event(asked: Asked) -> None:
    settled = [event.claim for event in RunDirectory.open(asked.run).events() if isinstance(event, ClaimSettled)]
    assert {(claim.says, claim.standing) for claim in settled} == {("does-not-build", "refuted")}


def test_the_key_is_in_no_file_that_the_run_left(asked: Asked) -> None:
    texts: dict[Path, bytes] = {}
    for folder, _, names in (at for root in (asked.home, asked.run.parent) for at in os.walk(root)):
        for path in (Path(folder, name) for name in names):
            # Other runs share this home: what they have under way, folders too, comes and goes meanwhile.
            with contextlib.suppress(FileNotFoundError):
                texts[path] = path.read_bytes()
    assert len(texts) > 20
    assert [path for path, text in texts.items() if KEY.encode() in text] == []
    assert KEY not in asked.done.out + asked.done.err + asked.first.err
    assert f"Bearer {KEY}" in asked.server.keys, "it was used"
    exchanges = Cassette(asked.run / "advice").exchanges.values()
    assert all(HIDDEN in exchange.answer for exchange in exchanges), "the server did repeat it"


def test_the_lock_names_its_exchanges_and_holds_without_them(asked: Asked) -> None:
    lock = read_lock(asked.lock)
    assert lock.evidence.advice == tuple(sorted(Cassette(asked.run / "advice").exchanges))
    env = {"PYTHONPATH": str(flows.NO_NETWORK)}
    done = flows.cli(asked.home, "replay", asked.lock, "--check", "--threads", flows.THREADS, env=env)
    assert done.code == 0, done.err


def test_two_replays_of_one_cassette_say_the_same_with_sockets_closed(asked: Asked, tmp_path: Path) -> None:
    arguments = ("advise", asked.model, "--context", CONTEXT, "--threads", flows.THREADS, "--json")
    env = {"PYTHONPATH": str(flows.NO_NETWORK)}
    said = []

    def advised(home: Path) -> flows.Ended:
        return flows.cli(home, *arguments, "--advisor", f"replay:{asked.run / 'advice'}", env=env)

    other = flows.captured(flows.measured(tmp_path, flows.CEILING), asked.model, CONTEXT)
    with ThreadPoolExecutor(2) as both:  # neither has a clock
        ended = list(both.map(advised, (asked.home, other)))
    for done in ended:
        assert done.code == 0, done.err
        found = json.loads(done.out)
        # What comes after the ranked candidates is the heuristic's, which looks at the rates that this home knows.
        advice = {region["region"]: region["advice"] for region in found["regions"]}
        said.append((found["asked"], found["exchanges"], found["missed"], advice))
    assert said[0] == said[1]
    assert said[0][0]["calls"] == 0
    assert said[0][1]


def test_explain_shows_what_was_said_beside_what_was_measured(asked: Asked) -> None:
    state = RunDirectory.open(asked.run).state()
    row = next(row for row in state.rows if row.advice and row.best)
    done = flows.verb(asked.home, "explain", row.region, "--run-dir", asked.run)
    assert done.code == 0, done.err
    assert f"{row.name}: loop says: a region; the key is {HIDDEN} (refuted)" in done.out
    assert "does-not-build" in done.out
    assert any(isinstance(trial.verdict, Measured) for trial in state.trials)


def test_a_packed_run_carries_its_exchanges(asked: Asked, tmp_path: Path) -> None:
    packed = flows.verb(asked.home, "runs", "pack", asked.run, "--out", tmp_path / "x.run.tar.xz")
    assert packed.code == 0, packed.err
    back = flows.verb(tmp_path / "home", "runs", "unpack", tmp_path / "x.run.tar.xz", "--run-dir", tmp_path / "back")
    assert back.code == 0, back.err
    assert dict(Cassette(tmp_path / "back" / "advice").exchanges) == dict(Cassette(asked.run / "advice").exchanges)


def test_an_adviser_that_is_down_is_said_and_costs_nothing(asked: Asked) -> None:
    arguments = ("advise", asked.model, "--context", CONTEXT, "--threads", flows.THREADS)
    done = flows.verb(asked.home, *arguments, "--advisor", "openai:x@http://127.0.0.1:1/v1")
    assert done.code == 0, done.err
    assert "no advice about" in done.out
    assert "ConnectError" in done.out


def test_an_adviser_may_be_told_what_a_run_measured(asked: Asked) -> None:
    arguments = ("advise", asked.model, "--context", CONTEXT, "--threads", flows.THREADS, "--show-prompt", "--json")
    plain, told = (flows.verb(asked.home, *arguments, *more) for more in ((), ("--run", asked.run)))
    assert (plain.code, told.code) == (0, 0), told.err
    trials = [
        trial
        for prompt in json.loads(told.out)
        for region in json.loads(prompt["user"])["regions"]
        for trial in region["trials"]
    ]
    assert any(trial[1] == "measured" for trial in trials)
    assert plain.out != told.out
