"""`agentcompile bench app`: the terminal app's figures, one result file.

First paint in a real terminal; a 20 ms heartbeat beside 500 events a second, and what memory does meanwhile; the time
to open a run of 100,000 events; a compile's own timing with the app attached and without, in the order ABBA.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import itertools
import json
import math
import os
import pty
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentcompile import events
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import canonical, digest
from agentcompile.ir.region import Regime
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Check, Measured, Measurement, NumericReport, Trial
from agentcompile.options import resolve
from agentcompile.runs import session

from .harness.numbers import at_least, seconds
from .harness.records import revision
from .models.locate import SAMPLE

_say = functools.partial(print, flush=True)
PER_S = 500
OPENED = 100_000
PAINTS = 7
VERSION = 1
REGIONS = 33
ROUNDS = 8
"""Number of progress events between the start and the end of a made-up trial."""


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
        _say(f"first paint     {paint['screen_ms']:.0f} ms")
        _say(f"                {paint['after_toolkit_ms']:.0f} ms after the toolkit's {paint['toolkit_ms']:.0f} ms")
        beat = heartbeat(folder, asked.seconds)
        _say(
            f"heartbeat       p50 {beat['p50_ms']:.1f} ms, p99 {beat['p99_ms']:.1f} ms, worst {beat['most_ms']:.0f} ms"
        )
        _say(f"                at {beat['events_per_s']:.0f} events/s for {beat['seconds']:.0f} s")
        _say(
            f"memory          {beat['grown_bytes'] / 1e6:+.1f} MB; PyTorch imported: {'yes' if beat['torch'] else 'no'}"
        )
        opened = opening(folder, asked.events)
        _say(f"opening         {opened['events']} events in {opened['seconds']:.2f} s")
        _say(f"                p99 {opened['p99_ms']:.1f} ms, {opened['peak_bytes'] / 1e6:.0f} MB at most")
        attached = beside(folder, asked)
        if "why" in attached:
            _say(f"with the app    not measured: {attached['why']}")
        else:
            word = "the same" if attached["same"] else "different"
            _say(f"with the app    {math.expm1(attached['difference']):+.2%} ± {attached['half_width']:.2%}: {word}")
    result = {
        "version": VERSION,
        **begun,
        "target": encode(this_machine(resolve().options, kind="cpu").target),
        "toolkit": importlib.metadata.version("textual"),
        "paint": paint,
        "heartbeat": beat,
        "opened": opened,
        "attached": attached,
    }
    Path(asked.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    _say(f"wrote {asked.out}")
    return ExitCode.OK


def first_paint(folder: Path, paints: int) -> dict[str, float]:
    """Return median times until the last line of the start page is in a terminal, and of importing the toolkit."""
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
    return {"toolkit_ms": first, "screen_ms": second, "after_toolkit_ms": second - first, "samples": paints}


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


def _recorded(path: Path, count: int, into: Path | None = None) -> Path:
    """Make a run's directory, write the lines of `count` made-up events there or to `into`, and return their file."""
    log = session.RunDirectory.create(path, {"model": "a recorded run"}).path / session.EVENTS
    with (into or log).open("wb") as out:
        for seq, event in enumerate(itertools.islice(_made_up_events(), count)):
            line = {"seq": seq, "at_ms": 1_700_000_000_000 + 2 * seq, "event": events.encode(event)}
            out.write(canonical(line) + b"\n")
    return log


def _gauged(folder: Path, run: Path, seconds: float) -> dict[str, Any]:
    out = folder / "gauge.json"
    command = [sys.executable, "-m", "agentcompile.tui.gauge", str(run), str(seconds), str(out)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def heartbeat(folder: Path, seconds: float) -> dict[str, float]:
    """Measure the app from inside for `seconds` while another process writes `PER_S` events a second.

    Returned are the delays of a 20 ms heartbeat, the growth of resident memory from a sixth of the time on, and whether
    the app imported PyTorch.
    """
    log = _recorded(folder / "stream", int(PER_S * (seconds + 10)), folder / "lines")
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder / "lines"), str(log), str(PER_S)])
    try:
        found = _gauged(folder, log.parent, seconds)
    finally:
        writer.kill()
        writer.wait()
    written = log.read_bytes().count(b"\n")
    beats = [float(beat) for beat in found["beats_ms"]]
    sizes = [int(size) for size in found["memory_bytes"]]
    return {
        "seconds": seconds,
        "events_per_s": min(written / seconds, PER_S),
        "p50_ms": beats[len(beats) // 2],
        "p99_ms": beats[int(len(beats) * 0.99)],
        "most_ms": beats[-1],
        "grown_bytes": sizes[-1] - sizes[len(sizes) // 6],
        "torch": bool(found["torch"]),
    }


_WRITER = """
import sys, time
lines = open(sys.argv[1], "rb").readlines()
per_s, begin = float(sys.argv[3]), time.monotonic()
with open(sys.argv[2], "ab", buffering=0) as out:
    for number, line in enumerate(lines):
        out.write(line)
        time.sleep(max(0.0, begin + number / per_s - time.monotonic()))
"""


def opening(folder: Path, count: int) -> dict[str, float]:
    """Measure how the app opens a run of `count` events, from its start until all of it is on the screen."""
    found = _gauged(folder, _recorded(folder / "opened", count).parent, 0)
    beats = found["beats_ms"]
    p99 = float(beats[int(len(beats) * 0.99)]) if beats else 0.0
    took_s, peak = float(found["opened_s"]), int(found["peak_bytes"])
    return {"events": count, "seconds": took_s, "p99_ms": p99, "peak_bytes": peak}


def beside(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Compile in the order ABBA, where B is with the app attached, and compare the steps' log ratios to PyTorch.

    All share one store that a first compile fills, so that the others time only their step. The half width combines
    the widest interval of either kind. On a machine that others use, a step may not be timed at all.
    """
    if not asked.pairs:
        return {"why": "left out by --pairs 0"}
    try:
        _compile(folder, asked, "warm", attached=False)
        order = (False, True, True, False) * asked.pairs
        steps = [_compile(folder, asked, f"r{at}", attached=on) for at, on in enumerate(order)]
    except AgentCompileError as error:
        return {"why": error.message}
    without, attached = ([step for step in steps if step["attached"] == on] for on in (False, True))
    means = [statistics.fmean(step["log_ratio"] for step in some) for some in (without, attached)]
    half_width = math.hypot(*(max(step["half_width"] for step in some) for some in (without, attached)))
    difference = means[1] - means[0]
    same = abs(difference) <= half_width
    return {"steps": steps, "difference": difference, "half_width": half_width, "same": same}


def _compile(folder: Path, asked: argparse.Namespace, name: str, *, attached: bool) -> dict[str, Any]:
    path = folder / name
    command = ["env", f"AGENTCOMPILE_HOME={folder / 'home'}", sys.executable, "-m", "agentcompile"]
    flags = [f"--context={asked.context}", f"--budget={asked.budget}", f"--threads={asked.threads}"]
    out = ["--out", str(folder / f"{name}.lock.toml"), "--run-dir", str(path)]
    process = subprocess.Popen([*command, "compile", asked.model, *flags, *out, "--quiet"], stdout=subprocess.DEVNULL)
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
            text = f"bench app: the compile of {asked.model} ended with {process.returncode}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="run it by itself to see why")
    finally:
        process.kill()
        process.wait()
    plan = next(plan for plan in session.RunDirectory.open(path).state().plans if plan.phase == "decode")
    measured = {"step_ns": plan.step_ns, "log_ratio": plan.log_ratio, "half_width": plan.half_width}
    return {"attached": attached, **measured}


_REGIME = Regime(phase="decode", context=(1, 2048))
_TARGET = Target(kind="cpu", device="made up", arch="x86_64", isa=("avx2",), threads=2, cache_bytes=(1, 2, 3))
_REPORT = NumericReport(
    checks=(Check(name="element", ok=True, measured=0.5, allowed=1.0),), error_ratio=1.0, cases=6, repeats=16
)


def _made_up_events() -> Iterator[events.Event]:
    """Yield events without end: regions, then trials that begin, progress and end; no number was measured."""
    draw = random.Random(0)
    ids = [digest("made-up/1", number) for number in range(REGIONS)]
    yield events.RunStarted(model="made-up", target=_TARGET, options="made up", version="0", budget_trials=10_000)
    yield events.StageStarted(stage="partition")
    for number, id in enumerate(ids):
        kind = f"linear-{number}"
        yield events.RegionFound(
            region=id, name=f"{kind}@{id[:6]}", region_kind=kind, regime=_REGIME.name, sites=1 + number % 6,
            flops=10**6, bytes=10**6, floor_ns=1000.0 + number, share=1 / REGIONS,
        )  # fmt: skip
        yield events.SpaceBounded(region=id, templates=2, points=400, rejected=20)
        yield events.Advised(region=id, adviser="heuristic", head=(f"{kind}/rows(ROWS=4)",), note="a note")
    yield events.StageStarted(stage="search")
    number = 0
    while True:
        candidate = _candidate(ids[number % REGIONS], number)
        yield events.TrialStarted(region=candidate.region, candidate=candidate.id, label=candidate.label)
        for done in range(ROUNDS):
            yield events.RoundsProgress(region=candidate.region, done=done, total=ROUNDS)
        yield events.TrialFinished(trial=Trial(candidate=candidate, source="s", verdict=_measured(draw)))
        number += 1


def _candidate(region: str, number: int) -> Candidate:
    params = (("ROWS", number // REGIONS), ("AHEAD", 2048))
    return Candidate(
        region=region, regime=_REGIME, template="linear/rows", template_digest="t", params=params, target="made up"
    )


def _measured(draw: random.Random) -> Measured:
    log_ratio = draw.gauss(0.4, 0.2)
    measurement = Measurement(
        median_ns=round(10_000 * (1.0 + draw.random())), p95_ns=24_000, baseline_ns=30_000, baseline="pytorch",
        log_ratio=log_ratio, half_width=0.02, comparison="FASTER", rounds=10, dropped=0, processes=1, batch=16,
        residency="cache", bytes_per_s=1e10,
    )  # fmt: skip
    return Measured(report=_REPORT, measurement=measurement)
