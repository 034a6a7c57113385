"""The checkpoint of a run: a GGUF file is converted in a stage of its own, which says how far it is."""

from __future__ import annotations

import time
from pathlib import Path

from agentcompile.checkpoint.locate import find_model
from agentcompile.events import Emit, StageFinished, StageStarted, silent


def checkpoint_of(name: str, cache: Path, emit: Emit = silent) -> Path:
    """Return the checkpoint directory that `name` means; nothing is emitted where it is there already.

    Raises:
        AgentCompileError: there is no such preset, or a GGUF file cannot be converted.
    """
    begin, said = time.monotonic(), ""

    def say(text: str) -> None:
        nonlocal said
        said = text
        emit(StageStarted(stage="convert", detail=text))

    path = find_model(name, cache, say)
    if said:
        emit(StageFinished(stage="convert", detail=str(path), seconds=time.monotonic() - begin))
    return path
