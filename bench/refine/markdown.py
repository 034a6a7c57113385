"""The table of a study of refining, for a page of the documentation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ..report.cells import number
from .result import Row, Study, TaskFacts


def rows(study: Study) -> Iterator[str]:
    """Yield a Markdown table: a row for each task and seed, and for each arm the speed-up of its best kernel.

    The speed-up is over PyTorch's fastest form, timed once more in fresh processes, with its interval; behind it is how
    many attempts gave right results.
    """
    yield f"| task | PyTorch's fastest form, µs | roofline, µs | {' | '.join(study.arms)} |"
    yield f"|---|--:|--:|{'--:|' * len(study.arms)}"
    for task, seed in itertools.product(study.tasks, study.seeds):
        found = {row.arm: row for row in study.rows if (row.task, row.seed) == (task.name, seed)}
        cells = [_cell(found[arm]) if arm in found else "-" for arm in study.arms]
        yield f"| {' | '.join((task.name, *_times(task), *cells))} |"


def _times(task: TaskFacts) -> tuple[str, str]:
    return number(min(task.us.values(), default=None), 3), number(task.floor_us or None, 3)


def _cell(row: Row) -> str:
    right = f"{row.correct} of {len(row.attempts)}"
    if row.least is None:
        return f"none, {right}"
    one = row.least
    value, low, high = (number(ratio, 3) for ratio in (one.speedup, one.low, one.high))
    return f"{value}× ({low}–{high}{', contended' if one.contended else ''}), {right}"
