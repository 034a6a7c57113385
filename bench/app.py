"""`agentcompile bench app`: the terminal app's figures, one result file.

First paint in a real terminal; a 20 ms heartbeat beside 500 events a second, and what memory does meanwhile; the time
to open a run of 100,000 events; a compile's own timing with the app attached and without, in the order ABBA.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from agentcompile import events
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.trial import Plan
from agentcompile.options import resolve
from agentcompile.runs import session

from .harness.numbers import at_least, seconds
from .harness.records import revision
from .models.locate import SAMPLE

PER_S = 500
OPENED = 100_000
PAINTS = 7
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    """Median times from the start of the process to the imported toolkit and to the first full screen."""

    toolkit_ms: float
    screen_ms: float
    after_toolkit_ms: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Delays of a 20 ms heartbeat inside the app while it follows a stream of events, and its memory growth."""

    seconds: float
    events_per_s: float
    p50_ms: float
    p99_ms: float
    most_ms: float
    grown_bytes: int
    """Resident memory at the end minus that after a sixth of the time."""
    torch: bool
    """Whether the app imported PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The time to open a run of many events, from the start of the app until all of it is on the screen."""

    events: int
    seconds: float
    p99_ms: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedStep:
    """The decode step of the plan that one compile admitted, with its log ratio to PyTorch."""

    attached: bool
    step_ns: int
    log_ratio: float
    half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """Compiles with the app attached and without, in the order ABBA, and how far their log ratios differ.

    `half_width` combines the widest interval of either kind.
    """

    steps: tuple[AdmittedStep, ...]
    difference: float
    half_width: float

    @property
    def same(self) -> bool:
        """Whether the difference lies inside the combined interval."""
        return abs(self.difference) <= self.half_width


def run(arguments: Sequence[str]) -> int:
    """Measure, print and write the result file; return an exit code."""
    parser = argparse.ArgumentParser(prog="agentcompile bench app", description=__doc__)
    parser.add_argument("--out", default="app.json", help="the result file")
    parser.add_argument("--seconds", type=seconds, default=60.0, help="how long the heartbeat is watched")
    parser.add_argument("--paints", type=at_least(1), default=PAINTS, help="how often the first screen is timed")
    parser.add_argument("--events", type=at_least(1), default=OPENED, help="events of the run that is opened")
    parser.add_argument("--model", default=str(SAMPLE), help="the checkpoint of the compiles")
    parser.add_argument("--context", type=at_least(0), default=256, help="its context")
    parser.add_argument("--budget", type=at_least(0), default=24, help="trials of each compile")
    parser.add_argument("--threads", type=at_least(0), default=0, help="their threads; 0: one a physical core")
    parser.add_argument("--pairs", type=at_least(0), default=1, help="how often ABBA is gone through; 0 leaves it out")
    asked, begun = parser.parse_args(list(arguments)), revision()
    with tempfile.TemporaryDirectory(prefix="bench-app-") as name:
        folder = Path(name)
        paint = first_paint(folder, asked.paints)
        _say(f"first paint     {paint.screen_ms:.0f} ms")
        _say(f"                {paint.after_toolkit_ms:.0f} ms after the toolkit's {paint.toolkit_ms:.0f} ms")
        beat = heartbeat(folder, asked.seconds)
        _say(f"heartbeat       p50 {beat.p50_ms:.1f} ms, p99 {beat.p99_ms:.1f} ms, worst {beat.most_ms:.0f} ms")
        _say(f"                at {beat.events_per_s:.0f} events/s for {beat.seconds:.0f} s")
        _say(f"memory          {beat.grown_bytes / 1e6:+.1f} MB; PyTorch imported: {'yes' if beat.torch else 'no'}")
        opened = opening(folder, asked.events)
        _say(f"opening         {opened.events} events in {opened.seconds:.2f} s")
        _say(f"                p99 {opened.p99_ms:.1f} ms, {opened.peak_bytes / 1e6:.0f} MB at most")
        attached, why = _beside(folder, asked)
        if attached is not None:
            word = "the same" if attached.same else "different"
            _say(f"with the app    {math.expm1(attached.difference):+.2%} ± {attached.half_width:.2%}: {word}")
        else:
            _say(f"with the app    not measured: {why}")
    result = {
        "version": VERSION,
        **begun,
        "target": encode(this_machine(resolve().options, kind="cpu").target),
        "toolkit": importlib.metadata.version("textual"),
        "paint": asdict(paint),
        "heartbeat": asdict(beat),
        "opened": asdict(opened),
        "attached": {**asdict(attached), "same": attached.same} if attached else {"why": why},
    }
    Path(asked.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _say(f"wrote {asked.out}")
    return ExitCode.OK


def _beside(folder: Path, asked: argparse.Namespace) -> tuple[Attached | None, str]:
    """Return the compiles' comparison, or None and why there is none: `--pairs 0`, or a compile that failed.

    On a machine that others use, a step may not be timed at all.
    """
    if not asked.pairs:
        return None, "left out by --pairs 0"
    flags = [f"--context={asked.context}", f"--budget={asked.budget}", f"--threads={asked.threads}"]
    try:
        return beside(folder, asked.model, flags, asked.pairs), ""
    except AgentCompileError as error:
        return None, error.message


def _say(text: str) -> None:
    print(text, flush=True)


def first_paint(folder: Path, paints: int) -> Paint:
    """Time the app in a terminal until the last line of its start page shows, and the import of the toolkit alone."""
    toolkit, screen = [], []
    for _ in range(paints):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import textual.app"], check=True, cwd=folder)
        toolkit.append((time.perf_counter() - begin) * 1e3)
        begin = time.perf_counter()
        with _terminal([sys.executable, "-m", "agentcompile", "tui"], folder) as master:
            _until(master, b"quit")
            screen.append((time.perf_counter() - begin) * 1e3)
            os.write(master, b"q")
            _drain(master)
    first, second = statistics.median(toolkit), statistics.median(screen)
    return Paint(toolkit_ms=first, screen_ms=second, after_toolkit_ms=second - first, samples=paints)


@contextmanager
def _terminal(command: Sequence[str], cwd: Path) -> Iterator[int]:
    """Run a program on a terminal of 80×24, yield the terminal's master end, and wait until the program ends."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    # Through `env`, so that this module reads nothing of the environment itself.
    wrapped = ["env", "-u", "CI", "TERM=xterm-256color", "LANG=C.UTF-8", *command]
    process = subprocess.Popen(wrapped, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=cwd)
    os.close(slave)
    try:
        yield master
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _until(master: int, wanted: bytes, seconds: float = 30.0) -> None:
    seen, end = b"", time.monotonic() + seconds
    while wanted not in seen:
        if not select.select([master], [], [], max(end - time.monotonic(), 0))[0]:
            raise AgentCompileError("bench app: the app painted nothing", exit_code=ExitCode.ENVIRONMENT)
        seen += os.read(master, 1 << 16)


def _drain(master: int) -> None:
    try:
        while select.select([master], [], [], 5.0)[0] and os.read(master, 1 << 16):
            pass
    except OSError:  # the other end is gone
        return


def _run_directory(path: Path) -> Path:
    run = session.RunDirectory.create(path, {"model": "a recorded run"})
    return run.path


def _stream(count: int) -> Iterator[bytes]:
    from .made_up import made_up_events

    for seq, event in enumerate(made_up_events(count)):
        yield canonical({"seq": seq, "at_ms": 1_700_000_000_000 + 2 * seq, "event": events.encode(event)}) + b"\n"


def _gauged(folder: Path, path: Path, seconds: float) -> dict[str, Json]:
    out = folder / "gauge.json"
    command = [sys.executable, "-m", "agentcompile.tui.gauge", str(path), str(seconds), str(out)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    found: dict[str, Json] = json.loads(out.read_text())
    return found


def heartbeat(folder: Path, seconds: float) -> Heartbeat:
    """Measure the app from inside for `seconds` while another process writes `PER_S` events a second."""
    path = _run_directory(folder / "stream")
    lines = list(_stream(int(PER_S * (seconds + 10))))
    (folder / "lines").write_bytes(b"".join(lines))
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder / "lines"), str(path / session.EVENTS), str(PER_S)]
    )
    try:
        found = _gauged(folder, path, seconds)
    finally:
        writer.kill()
        writer.wait()
    written = (path / session.EVENTS).read_bytes().count(b"\n")
    beats, memory = found["beats_ms"], found["memory_bytes"]
    assert isinstance(beats, list)
    assert isinstance(memory, list)
    figures = [float(str(beat)) for beat in beats]
    sizes = [int(str(size)) for size in memory]
    return Heartbeat(
        seconds=seconds,
        events_per_s=min(written / seconds, PER_S),
        p50_ms=figures[len(figures) // 2],
        p99_ms=figures[int(len(figures) * 0.99)],
        most_ms=figures[-1],
        grown_bytes=sizes[-1] - sizes[len(sizes) // 6],
        torch=bool(found["torch"]),
    )


_WRITER = """
import sys, time
lines = open(sys.argv[1], "rb").readlines()
per_s, begin = float(sys.argv[3]), time.monotonic()
with open(sys.argv[2], "ab", buffering=0) as out:
    for number, line in enumerate(lines):
        out.write(line)
        time.sleep(max(0.0, begin + number / per_s - time.monotonic()))
"""


def opening(folder: Path, count: int) -> Opened:
    """Measure how the app opens a run of `count` events."""
    path = _run_directory(folder / "opened")
    (path / session.EVENTS).write_bytes(b"".join(_stream(count)))
    found = _gauged(folder, path, 0)
    beats = found["beats_ms"]
    assert isinstance(beats, list)
    p99 = float(str(beats[int(len(beats) * 0.99)])) if beats else 0.0
    return Opened(
        events=count, seconds=float(str(found["opened_s"])), p99_ms=p99, peak_bytes=int(str(found["peak_bytes"]))
    )


def beside(folder: Path, model: str, flags: Sequence[str], pairs: int) -> Attached:
    """Compile in the order ABBA, where B is with the app attached, `pairs` times.

    All share one store that a first compile fills, so that the others time only their step.
    """
    _compile(folder, model, flags, "warm", attached=False)
    order = [attached for _ in range(pairs) for attached in (False, True, True, False)]
    steps = tuple(_compile(folder, model, flags, f"r{at}", attached=on) for at, on in enumerate(order))
    mean = {on: statistics.fmean(step.log_ratio for step in steps if step.attached == on) for on in (False, True)}
    worst = {on: max(step.half_width for step in steps if step.attached == on) for on in (False, True)}
    half_width = math.hypot(*worst.values())
    return Attached(steps=steps, difference=mean[True] - mean[False], half_width=half_width)


def _compile(folder: Path, model: str, flags: Sequence[str], name: str, *, attached: bool) -> AdmittedStep:
    path = folder / name
    command = ["env", f"AGENTCOMPILE_HOME={folder / 'home'}", sys.executable, "-m", "agentcompile"]
    asked = [*flags, "--out", str(folder / f"{name}.lock.toml")]
    process = subprocess.Popen(
        [*command, "compile", model, *asked, "--run-dir", str(path), "--quiet"], stdout=subprocess.DEVNULL
    )
    try:
        if attached:
            while process.poll() is None and not (path / session.EVENTS).exists():
                time.sleep(0.05)
            with _terminal([*command, "tui", str(path)], folder) as master:
                while process.poll() is None:
                    if select.select([master], [], [], 0.2)[0]:
                        os.read(master, 1 << 16)
                os.write(master, b"q")
                _drain(master)
        if process.wait():
            text = f"bench app: the compile of {model} ended with {process.returncode}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="run it by itself to see why")
    finally:
        process.kill()
        process.wait()
    plan = _plan(path)
    return AdmittedStep(attached=attached, step_ns=plan.step_ns, log_ratio=plan.log_ratio, half_width=plan.half_width)


def _plan(path: Path) -> Plan:
    plans = [plan for plan in session.RunDirectory.open(path).state().plans if plan.phase == "decode"]
    kept: Plan = decode(Plan, encode(plans[0]))
    return kept
