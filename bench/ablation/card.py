"""The table of a data card: what each recorded space in a folder holds. Pure, but for reading the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentcompile.runs.tables import duration

from .questions import ENDING, beside, read_question
from .spaces import read_space

_TEXTS = ("space", "device", "kind of region", "extents")
_HEAD = (*_TEXTS, "points", "failed", "≤ 5 %", "≤ 2 %", "best", "floor", "PyTorch")


def card(folder: Path) -> Iterator[str]:
    """Yield the lines of the Markdown table of all spaces of ours in a folder, by name.

    Raises:
        AgentCompileError: a space or its question cannot be read, or they do not belong together (usage).
    """
    yield f"| {' | '.join(_HEAD)} |"
    yield "|" + " --- |" * len(_TEXTS) + " --: |" * (len(_HEAD) - len(_TEXTS))
    for path in sorted(folder.glob("*.json.gz")):
        if not path.name.endswith(ENDING):
            yield _row(path)


def _row(path: Path) -> str:
    space, question = read_space(path), read_question(beside(path)).question
    dims = ", ".join(f"{name} {extent}" for name, extent in question.region.dims if extent)
    cells = (
        f"`{space.name}`", space.device, question.region.kind, dims, f"{len(space.candidates):,}",
        f"{len(space.candidates) - len(space.times_ns):,}", str(len(space.near)), str(len(space.nearer)),
        duration(space.best_ns or 0.0), duration(question.floor_ns), duration(space.baseline_ns),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"
