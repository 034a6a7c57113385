"""The table of a study of refining, for a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from .result import Row, Study, TaskFacts


def rows(study: Study) -> Iterator[str]:
    """Yield a Markdown table: a row for each task, and for each arm the speed-up of its best kernel.

    The speed-up is over PyTorch's fastest form, timed once more in fresh processes, with its interval; behind it is the
    share of attempts whose results were right.
    """
    yield f"| task | PyTorch's fastest form, µs | roofline, µs | {' | '.join(study.arms)} |"
    yield f"|---|--:|--:|{'--:|' * len(study.arms)}"
    for task in study.tasks:
        found = {row.arm: row for row in study.rows if row.task == task.name and row.seed == study.seeds[0]}
        cells = [_cell(found[arm]) if arm in found else "-" for arm in study.arms]
        yield f"| {' | '.join((task.name, *_times(task), *cells))} |"


def _times(task: TaskFacts) -> tuple[str, str]:
    return f"{min(task.us.values()):.4g}" if task.us else "-", f"{task.floor_us:.3g}" if task.floor_us else "-"


def _cell(row: Row) -> str:
    right = f"{row.correct} of {len(row.attempts)}"
    if row.least is None:
        return f"none, {right}"
    one = row.least
    return f"{one.speedup:.3g}× ({one.low:.3g}–{one.high:.3g}{', contended' if one.contended else ''}), {right}"
