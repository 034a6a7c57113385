"""How a flow reports: stages begin and end as events, and several threads may emit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentcompile.events import Emit, Event, FlowStage, StageFinished, StageStarted


@contextmanager
def stage(emit: Emit, name: FlowStage) -> Iterator[Callable[[str], None]]:
    """Emit begin and end of a stage; the function that it yields takes the result in one line.

    An exception leaves the stage without an end event.
    """
    begin = time.monotonic()
    emit(StageStarted(stage=name))
    said = [""]
    yield lambda text: said.__setitem__(0, text)
    emit(StageFinished(stage=name, detail=said[0], seconds=time.monotonic() - begin))


def shared(emit: Emit) -> tuple[Emit, threading.RLock]:
    """Return an `emit` that several threads may call, and the lock that it takes."""
    lock = threading.RLock()

    def locked(event: Event) -> None:
        with lock:
            emit(event)

    return locked, lock
