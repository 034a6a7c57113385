"""The tables of a study for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentcompile.cli.render import columns
from agentcompile.runs.tables import Table

from ..report.cells import plain
from .result import Beside, Row, Study
from .summary import BASELINE, Mean, Rate, Summary, summaries

_NOTES = (
    "success: sessions with a kernel that passed every gate; fast_1: sessions whose kernel, timed once more in fresh",
    "processes, is surely faster than every form of PyTorch. Rates have Wilson intervals, means over the tasks with a",
    "kernel bootstrap intervals over these; all are of 95 %. Baseline: PyTorch's fastest form.",
)


def report(study: Study) -> Iterator[str]:
    """Yield the lines of a report: one table by session, one by arm."""
    yield from columns(_sessions(study))
    yield ""
    found = summaries(study)
    yield from columns(_arms(found))
    yield ""
    if any(one.means for one in found):
        yield from columns(_means(found))
        yield ""
    yield from _NOTES
    yield f"Kernels and PyTorch ran on {plain(study.machine)}."
    if contended := sum(one.contended for one in found):
        yield f"contended: other processes disturbed the timing of {contended} sessions: these are estimates"


def _sessions(study: Study) -> Table:
    heads = ("task", "arm", "seed", "kernel", "time", *(f"over {form}" for form in _forms(study)), "compiled",
             "correct", "attempts", "tokens", "cents", "seconds", "ended by")  # fmt: skip
    right = tuple(range(4, len(heads) - 1))
    return Table(heads=heads, rows=[_session(row, study) for row in study.rows], right=right)


def _forms(study: Study) -> Sequence[str]:
    return study.forms or ("PyTorch",)


def _session(row: Row, study: Study) -> tuple[str, ...]:
    kernel = "faster" if row.fast else "correct" if row.success else "none"
    return (
        plain(row.task),
        row.arm,
        str(row.seed),
        f"{kernel}, contended" if row.contended else kernel,
        f"{row.us:.1f} µs" if row.success else "-",
        *(_speedup(row.over(form)) for form in _forms(study)),
        str(row.compiled),
        str(row.correct),
        str(len(row.attempts)),
        f"{row.tokens:,}",
        f"{row.cents:.2f}",
        f"{row.seconds:.0f}",
        row.ended,
    )


def _speedup(one: Beside | None) -> str:
    return f"{one.speedup:.2f}× ({one.low:.2f}–{one.high:.2f})" if one is not None else "-"


def _arms(found: Sequence[Summary]) -> Table:
    heads = ("arm", "sessions", "success", "fast_1", "compiled", "correct", "attempts", "tokens", "cents", "seconds",
             "ended by")  # fmt: skip
    rows = [
        (
            one.arm,
            str(one.sessions),
            *map(_rate, (one.success, one.fast, one.compiled, one.correct)),
            str(one.attempts),
            f"{one.tokens:,}",
            f"{one.cents:.2f}",
            f"{one.seconds:.0f}",
            ", ".join(f"{end}: {count}" for end, count in one.ended),
        )
        for one in found
    ]
    return Table(heads=heads, rows=rows, right=(1, 6, 7, 8, 9))


def _rate(rate: Rate) -> str:
    return f"{rate.value:.0%} ({rate.low:.0%}–{rate.high:.0%})"


def _means(found: Sequence[Summary]) -> Table:
    names = tuple(dict.fromkeys(mean.over for one in found for mean in one.means))
    rows = [(one.arm, *(_mean(one, name) for name in names), _tasks(one)) for one in found]
    heads = ("arm", *(f"speedup over {'the baseline' if name == BASELINE else name}" for name in names), "tasks")
    return Table(heads=heads, rows=rows, right=tuple(range(1, len(heads))))


def _mean(one: Summary, name: str) -> str:
    mean: Mean | None = next((mean for mean in one.means if mean.over == name), None)
    if mean is None:
        return "-"
    ends = f" ({mean.low:.2f}–{mean.high:.2f})" if mean.low is not None and mean.high is not None else ""
    return f"{mean.value:.2f}×{ends}"


def _tasks(one: Summary) -> str:
    return str(max((mean.tasks for mean in one.means), default=0))
