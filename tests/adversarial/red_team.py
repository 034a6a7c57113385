"""The table of planted cheats in docs/red-team.md: `python -m tests.adversarial.red_team` writes it anew."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from tests.adversarial.cheats import BUILDS, TEXTS, Cheat
from tests.adversarial.cheats_on_a_device import DEVICE_BUILDS, DEVICE_TEXTS
from tests.adversarial.cheats_on_the_process import ATTEMPTS, PROCESS
from tests.adversarial.cheats_that_run import RESULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "red-team.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
ELSEWHERE = "see below"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield of every plant its name, what it cheats, and what a task's and a region's gate make of it."""
    for one in (*TEXTS, *DEVICE_TEXTS, *BUILDS, *DEVICE_BUILDS, *RESULTS, *PROCESS):
        yield one.name, one.cheats, _shown(one, "task"), _shown(one, "region")
    for tried in ATTEMPTS:
        shown = [
            ELSEWHERE if got is None else f"the fence: {errno.errorcode[got]}" for got in (tried.task, tried.region)
        ]
        yield tried.name, "a system call that no word of the text shows", *shown


def table() -> str:
    """The rows in Markdown."""
    lines = ["| plant | what it cheats | kernel of a task | template of a region |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows()]
    return "\n".join(lines) + "\n"


def _shown(one: Cheat, gate: str) -> str:
    refusal = one.task if gate == "task" else one.region
    if refusal is None:
        return ELSEWHERE
    return f"{refusal.verdict}: {refusal.by.strip('`').replace('|', ' or ') or 'any reason'}"


if __name__ == "__main__":
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}{table()}{END}{rest.partition(END)[2]}", encoding="utf-8")
