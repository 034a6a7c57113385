"""The program `python -m agentcompile.tui.gauge RUN SECONDS OUT`: it measures the app while it follows a run.

It draws to no terminal, at 160×48, and writes JSON to OUT. It ends after SECONDS; with SECONDS 0, once all that lies
in the run is on the screen.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from pathlib import Path

from agentcompile.control.commands import Command, Reply

from .app import CompilerApp
from .feed import Feed
from .ink import Ink
from .session import Session

BEAT_S = 0.020
SIZE = (160, 48)


def _silent(path: Path, command: Command) -> Reply:
    return Reply(ok=False, text="a gauge sends nothing")


class Gauge:
    """One app with a heart that beats beside it; whatever delays a beat would delay a key."""

    def __init__(self, run: Path, seconds: float) -> None:
        self.seconds = seconds
        self.beats_ms: list[float] = []
        self.memory_bytes: list[int] = []
        self.opened_s = 0.0
        session = Session(Feed(run), name=run.name, deliver=_silent, store=run)
        self.app = CompilerApp(session=session, start=None, open=lambda page: "", ink=Ink())
        self._begin = time.perf_counter()

    async def beat(self) -> None:
        """Beat until the time is over, or everything is read and drawn."""
        end = time.perf_counter() + self.seconds
        noted = 0.0
        while self.seconds == 0 or time.perf_counter() < end:
            before = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            now = time.perf_counter()
            self.beats_ms.append((now - before) * 1e3)
            if now - noted >= 1.0:
                noted = now
                self.memory_bytes.append(_resident_bytes())
            if self.seconds == 0 and self._read():
                self.app.draw()
                self.opened_s = time.perf_counter() - self._begin
                break
        self.app.exit(0)

    def _read(self) -> bool:
        session = self.app.session
        return session is not None and session.feed is not None and session.feed.caught_up

    def run(self) -> dict[str, object]:
        """Run the app with its heart and return what was seen."""
        self.app.call_later(self._start)
        self.app.run(headless=True, size=SIZE, mouse=False)
        if self.app.fault is not None:
            raise self.app.fault
        state = self.app.session.scene.state if self.app.session else None
        return {
            "beats_ms": sorted(self.beats_ms),
            "memory_bytes": self.memory_bytes,
            "opened_s": self.opened_s,
            "trials": state.counts.total if state else 0,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "drawn": self.app.canvas.drawn,
            "first_paint_s": self.app.first_paint_s,
            "torch": "torch" in sys.modules,
        }

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.beat())


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(arguments: list[str]) -> int:
    """Measure the app on one run, write what was seen, and return an exit code."""
    run, seconds, out = arguments
    gc.set_threshold(100_000, 20, 50)  # as the command line sets it, through which the app is started
    Path(out).write_text(json.dumps(Gauge(Path(run), float(seconds)).run()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
