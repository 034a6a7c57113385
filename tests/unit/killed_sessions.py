"""`python -m tests.unit.killed_sessions FOLDER`: sessions and promotions that are killed by SIGKILL, each at one step.

A step is what Python tells of files in the folder before it changes one, and both sides of a question, of an
evaluation and of an entry. Each work is killed in a process of its own, at every step in turn, and then goes on in
another; what it leaves must be what it leaves when nobody kills it, byte for byte. The output counts the steps of each
work by name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ledger
from agentcompile.advice.wire import ModelRequest, Reply
from agentcompile.agents.agents import Agent, Team
from agentcompile.agents.journal import Entry, SessionJournal, attempts_of, spent_of
from agentcompile.agents.refining import SessionSteering, Settings, refine
from agentcompile.ir.attempt import Evaluated, Role, Written
from tests.unit.refined import CONTRACT, Gate, Wires
from tests.unit.test_agents_resuming import CEILINGS, answer
from tests.unit.test_refine_promote import put

ATTEMPTS = 4
"""A kernel, a slower one, one that fails, and an answer that is refused."""
FILES = {"open", "os.mkdir", "os.rename", "os.remove", "os.truncate", "os.chmod", "tempfile.mkdtemp", "shutil.rmtree"}


@dataclass
class Death:
    """Kills this process at a step, counted from 1; 0 for never."""

    at: int
    told: list[str] = field(default_factory=list)

    def step(self, what: str) -> None:
        """Go on, or die."""
        self.told.append(what)
        if len(self.told) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class _Wires(Wires):
    def __init__(self, death: Death) -> None:
        super().__init__(answer)
        self._death = death

    def send(self, ask: ModelRequest) -> Reply:
        self._death.step("asked")
        reply = super().send(ask)
        self._death.step("answered")
        return reply


class _Gate(Gate):
    def __init__(self, death: Death) -> None:
        super().__init__()
        self._death = death

    def evaluate(self, written: Written) -> Evaluated:
        self._death.step("judging")
        found = super().evaluate(written)
        self._death.step("judged")
        return found


class _Journal(SessionJournal):
    def __init__(self, death: Death, path: Path) -> None:
        super().__init__(path)
        self._death = death

    def append(self, entry: Entry) -> None:
        self._death.step(f"writing {entry.kind}")
        super().append(entry)
        self._death.step(f"written {entry.kind}")


def session(folder: Path, death: Death) -> None:
    """A session in which a person closes a branch on the way."""
    roles: tuple[Role, ...] = ("plan", "code", "debug")
    with _Journal(death, folder / "journal.jsonl") as journal:
        ledger = Ledger(CEILINGS, spent_of(journal.entries))
        wire = _Wires(death)
        team = Team({role: Agent(model=f"m-{role}", wire=wire) for role in roles}, ledger, Cassette(folder / "answers"))

        def steer() -> SessionSteering:
            return SessionSteering(prune=(1,) if attempts_of(journal.entries) >= 2 else ())

        found = refine(CONTRACT, _Gate(death), team, journal, Settings(attempts=ATTEMPTS), steer=steer)
    assert found.attempts == ATTEMPTS, found.stopped


def promotion(folder: Path, death: Death) -> None:
    """A kernel's way to the folder of written templates."""
    del death  # its steps are those of files alone
    put(folder)


def left(folder: Path) -> dict[str, bytes]:
    """What a work leaves, by path; without the seconds that answers took, and without parts of an earlier process."""
    found = (path for path in folder.rglob("*") if path.is_file() and ".part-" not in str(path))
    own = (path for path in found if path.name == "journal.jsonl" or "answers" not in path.parts)
    return {str(path.relative_to(folder)): re.sub(rb'"seconds":[^,}]+', b"", path.read_bytes()) for path in sorted(own)}


def forked(work: Callable[[Path, Death], None], folder: Path, at: int) -> tuple[int, list[str]]:
    """Work in a process of its own, killed at step `at`; return its signal, and its steps where it lived."""
    folder.mkdir(parents=True, exist_ok=True)
    told = folder.with_suffix(".told")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            death = Death(at)

            def hook(event: str, given: tuple[Any, ...]) -> None:
                reads = event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR)
                if event in FILES and not reads and any(str(one).startswith(f"{folder}/") for one in given):
                    death.step(event)

            sys.addaudithook(hook)
            work(folder, death)
            told.write_text(json.dumps(death.told), encoding="utf-8")
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)  # the rest is the parent's
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the work failed"
    return (os.WTERMSIG(status), []) if os.WIFSIGNALED(status) else (0, json.loads(told.read_bytes()))


def killed(work: Callable[[Path, Death], None], root: Path) -> dict[str, int]:
    """Kill a work at each of its steps, and return how many steps of each name it has."""
    whole = root / f"{work.__name__}-whole"
    number, steps = forked(work, whole, 0)
    assert number == 0
    for at, what in enumerate(steps, 1):
        folder = root / f"{work.__name__}-{at}"
        assert forked(work, folder, at)[0] == signal.SIGKILL, what
        before = left(folder)
        assert work is session or not before or before == left(whole), f"{at}, {what}: a part is in its place"
        assert forked(work, folder, 0)[0] == 0
        assert left(folder) == left(whole), f"{at}: killed at {what}"
        shutil.rmtree(folder)
    return dict(Counter(steps))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(json.dumps({work.__name__: killed(work, place) for work in (session, promotion)}))
