"""Announces the stages of a run: each begins and ends as an event, with its time and one line of result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentcompile.events import Emit, FlowStage, StageFinished, StageStarted


@contextmanager
def stage(emit: Emit, name: FlowStage) -> Iterator[Callable[[str], None]]:
    """Emit start and end of a stage; what it yields takes the result in one line. An error ends no stage."""
    begin = time.monotonic()
    emit(StageStarted(stage=name))
    said = [""]
    yield lambda text: said.__setitem__(0, text)
    emit(StageFinished(stage=name, detail=said[0], seconds=time.monotonic() - begin))
