"""The sample checkpoint from the first key to a lock that replays: everything a person does is a key, in a terminal.

A person compiles, looks around, approves, takes it back, rejects and overrides with a reason, writes the lock, and
replays it; then the headless runner replays the same lock, and what it rebuilds is the plan of the run. Another person,
with another terminal, opens the run that waits for review, and does the same.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from agentcompile.tui.app import HZ
from terminals import Terminal, app

from agentcompile.control.review import Item, items
from agentcompile.ir.trial import Kernel, Measured
from agentcompile.lockfile.files import read_lock
from agentcompile.lockfile.schema import LockChoice
from agentcompile.measure.clock import Others
from agentcompile.replay.open import open_lock
from agentcompile.runs.progress import State
from agentcompile.runs.session import RunDirectory
from tests.cpu import flows

pytestmark = pytest.mark.alone

ASKED = [f"--context={flows.WALKED_CONTEXT}", f"--threads={flows.WALKED_THREADS}", "--budget=20"]
SECONDS = 60
"""Enough on a slow but quiet machine for second candidates of what a plan needs; an override takes one of them."""
PATIENCE_S = 400


def seconds() -> str:
    """How long to search beside the processes that run now: with as many threads, they take half of the processors."""
    others = Others()
    time.sleep(1.0)
    return f"--seconds={round(SECONDS * (1 + others.share()))}"


class Walk:
    """A person at a terminal, who looks at the run to see that what was asked for is done."""

    def __init__(self, terminal: Terminal, run: RunDirectory) -> None:
        self.terminal, self.run = terminal, run

    @property
    def state(self) -> State:
        return self.run.state()

    def until(self, what: str, holds: Callable[[State], bool]) -> None:
        """Wait for the run while the screen is drawn."""
        end = time.monotonic() + PATIENCE_S
        while not holds(self.state):
            assert time.monotonic() < end, f"{what}: {self.terminal.text[-2000:]}"
            assert self.terminal.process.poll() is None, f"{what}: the app ended: {self.terminal.text[-2000:]}"
            self.terminal.read(0.3)

    def goes_to(self, item: Item) -> None:
        """Select a region of the review by its name, in place of the filter before."""
        self.terminal.press(f"/\x15{item.name}\r", pause_s=0.1)

    def decides(self, item: Item, keys: str, standing: str) -> None:
        """Press keys on a region, and see how it stands then."""
        self.goes_to(item)
        self.terminal.press(keys, pause_s=0.1)
        self.until(f"{item.name} {standing}", lambda state: standing_of(state, item) == standing)


def standing_of(state: State, item: Item) -> str:
    return next(one.standing for one in items(state) if one.region == item.region)


def others(state: State, item: Item) -> bool:
    """Whether a region has another candidate that passed every check."""
    own = item.kernels[0].candidate
    found = (one for one in state.trials if one.candidate.region == own.region and one.candidate.id != own.id)
    return any(isinstance(one.verdict, Measured) for one in found)


def choices(lock: Path) -> dict[str, LockChoice]:
    """What the lock runs in a decode step, by region."""
    plan = next(plan for plan in read_lock(lock).plan if plan.phase == "decode")
    return {choice.region: choice for choice in plan.choices}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run is kept as it waited for its review."""
    return tmp_path_factory.mktemp("waiting") / "run"


def test_a_checkpoint_is_compiled_decided_on_and_locked_by_keys_alone(
    sampled: Path, repository: Path, waiting: Path, tmp_path: Path
) -> None:
    model, lock = repository / "bench" / "models" / "sample", tmp_path / "walked.lock.toml"
    run = RunDirectory(tmp_path / "run")
    command = app(str(model), *ASKED, seconds(), "--run-dir", str(run.path), "--out", str(lock))
    with Terminal(command, columns=80, rows=24, env={"AGENTCOMPILE_HOME": str(sampled)}) as terminal:
        walk = Walk(terminal, run)
        terminal.until("running")
        walk.until("a trial", lambda state: state.counts.total > 0)
        terminal.press("2b1jjk", pause_s=0.2)
        walk.until("the review", lambda state: state.status in ("review", "failed"))
        assert walk.state.status == "review", walk.state.failure
        assert walk.state.ui_hz == HZ
        assert any(one.verdict.measurement.times_ns for one in walk.state.trials if isinstance(one.verdict, Measured))
        walk.until("the compiler leaves", lambda _: not run.alive())
        shutil.copytree(run.path, waiting, ignore=shutil.ignore_patterns("control.sock"))
        decided = review(walk)
    decided.hold(sampled, model, lock)


def test_a_run_that_waits_is_opened_decided_on_and_locked_in_a_large_terminal(
    sampled: Path, repository: Path, waiting: Path, tmp_path: Path
) -> None:
    model, lock = repository / "bench" / "models" / "sample", tmp_path / "walked.lock.toml"
    assert waiting.is_dir(), "this test opens the run of the one before"
    run = RunDirectory(Path(shutil.copytree(waiting, tmp_path / "run")))
    file = run.path / "options.json"
    kept = json.loads(file.read_text(encoding="utf-8"))
    kept["options"] |= {"run_dir": str(run.path), "out": str(lock)}
    file.write_text(json.dumps(kept), encoding="utf-8")
    command = app(str(run.path))
    with Terminal(command, columns=160, rows=48, env={"AGENTCOMPILE_HOME": str(sampled)}) as terminal:
        terminal.until("wait for you")  # keys before the app is there go to the terminal's own line editing
        decided = review(Walk(terminal, run))
    decided.hold(sampled, model, lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a person decided on in a run: a region of each kind of decision."""

    run: RunDirectory
    approved: Item
    rejected: Item
    instead: Item

    def hold(self, home: Path, model: Path, lock: Path) -> None:
        """Check that the lock says so, and that it replays to the plan of the run."""
        state, locked = self.run.state(), choices(lock)
        decision = state.decisions[self.instead.region]
        assert decision.candidate is not None
        own = locked[self.instead.region]
        assert (own.decided_by, own.reason, own.params) == ("human", "to see it run", dict(decision.candidate.params))
        assert (locked[self.rejected.region].use, locked[self.rejected.region].decided_by) == ("fallback", "human")
        assert locked[self.approved.region].approval == state.decisions[self.approved.region].approval != ""

        replayed = flows.cli(home, "replay", lock, "--model", model, "--locked", "--threads", flows.WALKED_THREADS)
        assert replayed.code == 0, replayed.err
        settings = replace(flows.options(home, model, flows.WALKED_CONTEXT), threads=flows.WALKED_THREADS)
        kernels = {part.choice for plan in state.final for part in plan.parts if isinstance(part.choice, Kernel)}
        rebuilt = open_lock(lock, settings, locked=True)
        assert {job.source.digest for job in rebuilt.jobs} == {kernel.source for kernel in kernels}


def review(walk: Walk) -> Decided:
    """Decide on a run that waits for it, write the lock, replay it, and leave; by keys alone."""
    terminal = walk.terminal
    terminal.press("3", pause_s=0.5)
    found, known = items(walk.state), walk.state
    several = [item for item in found if others(known, item)]
    assert several, f"no region has a second candidate, of {known.counts}"
    instead = several[0]
    rejected, approved = [item for item in found if item is not instead and item.safe][:2]
    walk.decides(approved, "y", "approved")
    terminal.press("u")
    walk.until("it is taken back", lambda state: standing_of(state, approved) == "undecided")
    walk.decides(rejected, "nnot this one\r", "rejected")
    walk.goes_to(instead)
    terminal.press("o", pause_s=0.5)
    terminal.press("\r", pause_s=0.3)
    terminal.press("\r", pause_s=0.3)
    terminal.until("A reason is needed")
    terminal.press("to see it run\r", pause_s=0.1)
    walk.until("overridden", lambda state: standing_of(state, instead) == "overridden")
    terminal.press("/\x15\r", pause_s=0.2)
    terminal.press("a\r", pause_s=1.0)
    walk.until("safe ones", lambda state: standing_of(state, approved) == "approved")
    if any(item.standing == "undecided" for item in items(walk.state)):
        terminal.press("d\r", pause_s=1.0)
    terminal.press("W", pause_s=0.5)
    walk.until("the lock", lambda state: state.lock is not None and state.finished is not None)
    before = len(terminal.bytes)
    terminal.press("R", pause_s=0.5)
    walk.until("the replay's word", lambda _: b"holds" in terminal.bytes[before:])
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.restored
    return Decided(run=walk.run, approved=approved, rejected=rejected, instead=instead)
