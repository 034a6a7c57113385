"""A review from end to end: a finished run is decided on, resumed, and its lock says who decided what, and why."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.ir.trial import Kernel, Measured
from agentcompile.lockfile import LockChoice, read_lock
from agentcompile.progress import State
from agentcompile.review import items
from agentcompile.session import RunDirectory
from tests.cpu import flows
from tests.cpu.courses import Course

pytestmark = pytest.mark.xdist_group("reviewed")


class Reviewed:
    """A copy of a run with a lock of its own."""

    def __init__(self, home: Path, run: Path, lock: Path) -> None:
        self.home, self.run, self.lock = home, run, lock

    @property
    def state(self) -> State:
        return RunDirectory.open(self.run).state()

    def decide(self, *arguments: object) -> str:
        done = flows.verb(self.home, "decide", self.run, *arguments)
        assert done.code == 0, done.err
        return done.out

    def resume(self, *arguments: object) -> flows.Ended:
        return flows.verb(self.home, "compile", "--resume", "--run-dir", self.run, *arguments)

    def choice(self, region: str) -> LockChoice:
        plan = next(plan for plan in read_lock(self.lock).plan if plan.phase == "decode")
        return next(choice for choice in plan.choices if choice.region == region)


@pytest.fixture(scope="module")
def reviewed(compiled: Course, tmp_path_factory: pytest.TempPathFactory) -> Reviewed:
    root = tmp_path_factory.mktemp("reviewed")
    made = Reviewed(compiled.home, root / "run", root / "reviewed.lock.toml")
    shutil.copytree(compiled.run, made.run)
    options: dict[str, Any] = json.loads((made.run / "options.json").read_bytes())
    options["options"]["out"] = str(made.lock)
    (made.run / "options.json").write_text(json.dumps(options))
    return made


def another(state: State, kernel: Kernel) -> tuple[str, object] | None:
    """A parameter of a kernel and another value that its domain has."""
    row = state.row(kernel.candidate.region)
    assert row is not None
    offer = next(offer for offer in row.offers if offer.template == kernel.candidate.template)
    tried = {trial.candidate for trial in state.trials}
    for param in offer.params:
        for value in param.domain:
            params = tuple((n, value if n == param.name else v) for n, v in kernel.candidate.params)
            if replace(kernel.candidate, params=params) not in tried:
                return param.name, value
    return None


def test_a_run_is_edited_overridden_rejected_approved_and_locked(reviewed: Reviewed) -> None:
    state = reviewed.state
    assert state.settled
    kernels = [item.kernels[0] for item in items(state)]
    editable = [(kernel, found) for kernel in kernels if (found := another(state, kernel)) is not None]
    assert editable, "a plan of kernels without parameters"
    kernel, (name, value) = editable[0]
    reviewed.decide("--edit", kernel.candidate.id, "--param", f"{name}={value}")

    waits = reviewed.resume("--review")
    waits.refuses(7, "wait for review", str(reviewed.run))
    assert not reviewed.lock.exists()
    state = reviewed.state
    assert state.status == "review"
    assert state.asked == ()
    edited = replace(kernel.candidate, params=tuple((n, value if n == name else v) for n, v in kernel.candidate.params))
    trials = [trial for trial in state.trials if trial.candidate == edited]
    assert trials, "the point was judged"
    usable = all(isinstance(trial.verdict, Measured) for trial in trials)

    region = kernel.candidate.region
    planned = {item.region: item for item in items(state)}
    if usable and region in planned and planned[region].kernels[0].candidate != edited:
        reviewed.decide("--region", region, "--use", edited.id, "--reason", "to see it run")
    rejected = next(item for item in items(state) if item.region != region)
    reviewed.decide("--region", rejected.region, "--reject", "--reason", "not this one")
    reviewed.decide("--approve-safe")
    if reviewed.resume().code == 7:
        reviewed.decide("--reject-rest")

    done = reviewed.resume()
    assert done.code == 0, done.err
    choice = reviewed.choice(rejected.region)
    assert (choice.use, choice.decided_by, choice.reason) == ("fallback", "human", "rejected by a person: not this one")
    for id, ruling in reviewed.state.rulings.items():
        assert reviewed.choice(id).approval == ruling.approval != ""
        if ruling.word == "override":
            own = reviewed.choice(id)
            assert (own.decided_by, own.reason, own.params) == ("human", "to see it run", dict(edited.params))
    assert any("a step" in line for line in done.out.splitlines())


def test_the_same_decisions_give_the_same_lock_and_a_replay_takes_it(reviewed: Reviewed) -> None:
    before = reviewed.lock.read_bytes()
    again = reviewed.resume()
    assert again.code == 0, again.err
    content = read_lock(reviewed.lock).content_hash
    assert f'content-hash = "{content}"'.encode() in before
    replayed = flows.verb(reviewed.home, "replay", reviewed.lock, "--threads", flows.THREADS)
    assert replayed.code == 0, replayed.err


def test_a_decision_that_is_taken_back_leaves_the_lock_unwritten(reviewed: Reviewed) -> None:
    before = reviewed.lock.read_bytes()
    reviewed.decide("--undo")
    reviewed.resume().refuses(7, "wait for review")
    assert reviewed.lock.read_bytes() == before
