"""Runs that are ended from outside: when a signal is sent, how a process ends, and what is left of it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.runs.session import RunDirectory
from tests.cpu import flows

LIMIT_S = 600.0
"""Longer than a run of a few candidates takes on a machine that has much else to do."""
STAGES = 8
"""Until the plan is covered: every kind of fact was noted, and the step is not measured yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One process of a run: how it ended, what it said, and which of its processes outlived it."""

    code: int
    err: str
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A run in several processes: each but the last was ended from outside."""

    root: Path
    """Where all the rest lies."""
    home: Path
    model: Path
    run: Path
    lock: Path
    legs: dict[str, Leg]
    packed: Path
    """Its archive, of when its plan was covered."""
    covered: Path
    """The run as it was then."""
    noted: Path
    """What its store had then, but for binaries."""


def processes(home: Path) -> tuple[int, ...]:
    """Every process whose environment names `home`: the compiler, its workers, their compilers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"AGENTCOMPILE_HOME={home}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return tuple(found)


def lines(run: Path) -> list[dict[str, Any]]:
    """The events on disk, but for a half-written last line."""
    path = run / "events.jsonl"
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line)["event"] for line in whole.splitlines()]


def leg(home: Path, arguments: list[object], run: Path, until: str, count: int, number: int) -> Leg:
    """Run until the events have `count` more of kind `until`, send the signal, and see what is left.

    It names the executable, for what is left is known by the environment that the kernel tells of it (`tests.begun`).
    """
    log, seen = RunDirectory(run), 0
    known = max((end for _, end in log.lines()), default=0)
    process = subprocess.Popen(
        flows.command(*arguments), env=flows.environment(home), cwd=flows.ROOT, text=True, executable=sys.executable,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        for line, end in log.lines(known):  # each once: what compiles beside needs the processors
            known = end
            seen += json.loads(line)["event"]["kind"] == until
        if seen >= count:
            process.send_signal(number)
            break
        time.sleep(0.05)
    else:
        process.kill()
    _, err = process.communicate(timeout=60)
    until_gone = time.monotonic() + 15
    while processes(home) and time.monotonic() < until_gone:
        time.sleep(0.05)
    return Leg(code=process.returncode, err=err, left=processes(home))


def course(model: Path, root: Path, *settings: object) -> Course:
    """A run that is terminated, interrupted, and killed four times, and resumed each time until it is done; before its
    step is measured it is packed."""
    made = Course(
        root=root, home=root / "home", model=Path(shutil.copytree(model, root / "model")), run=root / "run",
        lock=root / "agentcompile.lock.toml", legs={}, packed=root / "x.run.tar.xz", covered=root / "covered",
        noted=root / "noted",
    )  # fmt: skip
    home, run = made.home, made.run
    start: list[object] = ["compile", made.model, *settings, "--out", made.lock, "--run-dir", run]
    resume: list[object] = ["compile", "--resume", "--run-dir", run]
    made.legs["terminated"] = leg(home, start, run, "trial-started", 1, signal.SIGTERM)
    made.legs["interrupted"] = leg(home, resume, run, "trial-finished", 1, signal.SIGINT)
    made.legs["killed in the search"] = leg(home, resume, run, "trial-finished", 3, signal.SIGKILL)
    made.legs["killed after a choice"] = leg(home, resume, run, "choice-made", 1, signal.SIGKILL)
    made.legs["killed before the step"] = leg(home, resume, run, "stage-finished", STAGES, signal.SIGKILL)
    packed = flows.verb(home, "runs", "pack", run, "--out", made.packed)
    assert packed.code == 0, packed.err
    shutil.copytree(run, made.covered, ignore=shutil.ignore_patterns("control.sock"))
    shutil.copytree(home / "cache/store", made.noted, ignore=shutil.ignore_patterns("*.so", "*.h", "*.gch"))
    made.legs["killed between steps"] = leg(home, resume, run, "steps-timed", 1, signal.SIGKILL)
    done = flows.cli(home, *resume, limit_s=LIMIT_S, itself=True)
    made.legs["done"] = Leg(code=done.code, err=done.err, left=processes(home))
    return made
