"""The text of a candidate's source, as the compiler of a run left it in its store. Standard library alone."""

from __future__ import annotations

import re
from pathlib import Path

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode
from agentcompile.options import Options
from agentcompile.runs.session import RunDirectory

MOST_BYTES = 4 << 20
"""Of one source; a longer one is none of ours."""


def source_text(run: RunDirectory, digest: str) -> str | None:
    """The source of a digest, as a trial has it; None when it is not here: another machine's run, or a pruned store.

    It is what a compiler saw, and nobody cleaned it: whoever shows it does (`events.clean` with ``lines=True``).
    """
    if not re.fullmatch(r"[0-9a-f]{8,64}", digest):
        return None
    try:
        options: Options = decode(Options, run.options(), "options")
        with (Path(options.store) / digest[:2] / f"{digest}.source").open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, CodecError, AgentCompileError):
        return None
    return data.decode("utf-8", "replace") if len(data) <= MOST_BYTES else None
