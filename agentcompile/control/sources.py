"""The source text of a candidate, as the run's compiler left it in its store; only the standard library."""

from __future__ import annotations

import re
from pathlib import Path

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode
from agentcompile.options import Options
from agentcompile.runs.session import RunDirectory

MOST_BYTES = 4 << 20
"""The most bytes of one source; a longer file did not come from this compiler."""


def source_text(run: RunDirectory, digest: str) -> str | None:
    """Return the source with a digest that a trial names; None when the store lacks it (another machine, or pruned).

    It is the text that a compiler saw, uncleaned: whoever shows it must clean it (`events.clean` with ``lines=True``).
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
