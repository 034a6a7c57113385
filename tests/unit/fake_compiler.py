"""A compiler that evaluates nothing: it works on a run until somebody stops it, and does what a person asks of it.

Called as ``python fake_compiler.py RUN [--resume]``; it serves the run's socket as the real one does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from agentcompile.cli import compiling
from agentcompile.cli.exits import guarded
from agentcompile.cli.flow import Flow
from agentcompile.cli.render import Screen
from agentcompile.control.steering import Steering
from agentcompile.events import Emit, RoundsProgress, TrialFinished, TrialStarted
from agentcompile.ir.trial import Cancelled, Trial
from agentcompile.options import Options
from tests.unit import reviewed, runs

UNDER_WAY = reviewed.point("linear", 64)
TICK_S = 0.02


def works(options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
    """Search on and on."""
    for event in [runs.STARTED] if past else reviewed.SEARCHED:
        emit(event)
    emit(TrialStarted(region=UNDER_WAY.region, candidate=UNDER_WAY.id, label=UNDER_WAY.label))
    waits, done = True, 0
    while True:
        steering.point()
        if waits and steering.cancelled(UNDER_WAY.id):
            waits = False
            emit(TrialFinished(trial=Trial(candidate=UNDER_WAY, source="s", verdict=Cancelled(stage="measure"))))
        for asked in steering.take():
            assert asked.point is not None
            emit(TrialFinished(trial=Trial(candidate=asked.point, source="s", verdict=runs.measured(0.9))))
        done += 1
        emit(RoundsProgress(region=UNDER_WAY.region, done=done, total=1_000_000))
        time.sleep(TICK_S)


if __name__ == "__main__":
    asked = {"run_dir": sys.argv[1]}
    resume = sys.argv[2:] == ["--resume"]
    flags = asked if resume else {**asked, "model": "sample"}
    flow = Flow()
    flow.compile = works  # type: ignore[method-assign]
    sys.exit(guarded(lambda: compiling.compile(flags, resume=resume, screen=Screen.standard(), flow=flow)))
