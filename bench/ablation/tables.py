"""The tables of a study of recorded spaces: lines for the terminal, CSV, and a page in Markdown. Pure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence

from agentcompile.cli.render import columns
from agentcompile.runs.tables import Table, duration

from ..report.cells import plain
from .advising import ModelAnswers
from .study import RESAMPLES, Overall, SpaceFacts, Standing, Study, together

NEVER = "∞"
_AREA = "area: mean, over the evaluations that the budget allows, of the optimum's time over the best time so far"
_BEST = "@N: the best time after N evaluations over the optimum's"
_COST = "calls, tokens: answers of a model that a search used, and the tokens of question and answer, mean over seeds"
_OVERHEAD = "ms/eval.: processor time that the arm itself takes for an evaluation"
_PER = "×/eval."
_EFFICIENCY = (
    "the speed-up, over PyTorch or over the median of a space without it, at the first best within",
    "divided by the evaluations until then (speed-up ÷ samples), median of the seeds; 0: never",
)
_RANK = (
    "rank: Spearman's rank correlation of the cost model with trials of a search that it did not see, every third held "
    "out in turn, median of the seeds; below 0.5 the model is not used"
)
_FALLBACKS = (
    "full fallback: answers in the middle of a search without a legal sequence; it goes on as without a model",
    "in part: sequences whose first steps alone are legal, and are kept; not legal: those without a legal first step",
)
_MODEL = ("model", "answers", "full fallback", "sequences", "in part", "not legal")
_MODELS = "Answers of models, each as often as a search used it."


def report(study: Study) -> Iterator[str]:
    """Yield the lines of the report: a table for each space, then one over all spaces."""
    for facts in study.spaces:
        yield _about(facts)
        yield from columns(_of_space(study, facts))
        yield ""
    if len(study.spaces) > 1:
        yield f"over the {len(study.spaces)} spaces, geometric means of the medians"
        yield from columns(_of_all(study))
        yield ""
    if (models := _of_models(study)) is not None:
        yield _MODELS
        yield from columns(models)
        yield ""
    yield from _notes(study)


def _about(facts: SpaceFacts) -> str:
    device = f" ({plain(facts.device)})" if facts.device else ""
    near = ", ".join(f"{points:,} within {percent:g} %" for percent, points in facts.near)
    best = duration(facts.best_ns)
    return f"{plain(facts.name)}{device}: {facts.points:,} points, {facts.failed:,} failed, {near}, best {best}"


def _of_space(study: Study, facts: SpaceFacts) -> Table:
    standings = [study.standing(facts.name, arm) for arm in study.arms]
    percents = [name for percent in study.percents for name in (f"to {percent:g} %", "interval", "seeds")]
    more = _more(study)
    heads = ("strategy", *percents, "area", *(f"@{mark}" for mark, _ in standings[0].best), "ms/eval.", *more)
    rows = [(*_row(one), *(cell(one) for cell in more.values())) for one in standings]
    return Table(heads=heads, rows=rows, right=tuple(range(1, len(heads))))


def _more(study: Study) -> dict[str, Callable[[Standing], str]]:
    """Return the columns, by head, that only some studies have."""
    found = dict[str, Callable[[Standing], str]]()
    if any(one.efficiency is not None for one in study.standings):
        found[_PER] = lambda one: _figure(one.efficiency)
    if any(one.correlation is not None for one in study.standings):
        found["rank"] = lambda one: _figure(one.correlation)
    if _asked(study):
        found |= {"calls": lambda one: f"{one.calls:.3g}", "tokens": lambda one: f"{one.tokens:,.0f}"}
    return found


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def _of_models(study: Study) -> Table | None:
    """Return how legal the answers of each model were; None where no model was asked."""
    given = [one.answers for one in study.standings if one.answers is not None]
    models = dict.fromkeys(one.model for one in given)
    rows = [_model_row(together(one for one in given if one.model == model)) for model in models]
    return Table(heads=_MODEL, rows=rows, right=tuple(range(1, len(_MODEL)))) if rows else None


def _model_row(one: ModelAnswers | None) -> tuple[str, ...]:
    assert one is not None
    counts = one.sequences
    return (
        plain(one.model), f"{one.consulted:,}", _share(one.fallbacks, one.consulted), f"{counts.total:,}",
        _share(counts.partial, counts.total), _share(counts.dropped, counts.total),
    )  # fmt: skip


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _asked(study: Study) -> bool:
    """Return whether an arm heard a model's answers."""
    return any(one.calls for one in study.standings)


def _row(one: Standing) -> tuple[str, ...]:
    reaches = [
        cell
        for reach in one.reaches
        for cell in (count(reach.median), f"{count(reach.low)}–{count(reach.high)}", f"{reach.seeds} of {one.seeds}")
    ]
    best = (NEVER if math.isinf(ratio) else f"{ratio:.2f}" for _, ratio in one.best)
    return (plain(one.arm), *reaches, f"{one.area:.3f}", *best, f"{one.overhead_s * 1e3:.2g}")


def _of_all(study: Study) -> Table:
    known = any(one.efficiency is not None for one in study.overall)
    heads = ("strategy", *(f"to {percent:g} %" for percent in study.percents), "area", *((_PER,) if known else ()))
    rows = [(*_overall_row(one), *((_figure(one.efficiency),) if known else ())) for one in study.overall]
    return Table(heads=heads, rows=rows, right=tuple(range(1, len(heads))))


def _overall_row(one: Overall) -> tuple[str, ...]:
    return (plain(one.arm), *(count(found) for _, found in one.evaluations), f"{one.area:.3f}")


def count(value: float) -> str:
    """Return a number of evaluations for people."""
    return NEVER if math.isinf(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _notes(study: Study) -> Iterator[str]:
    yield f"to P %: evaluations until the best is at most P % slower than the optimum, median of {study.seeds} seeds"
    yield f"interval: 95 %, from {RESAMPLES:,} resamples of the seeds; {NEVER}: not within {study.budget:,} evaluations"
    yield from (_AREA, _BEST, _OVERHEAD)
    more = _more(study)
    if _PER in more:
        yield f"{_PER}: {_EFFICIENCY[0]} {study.percents[0]:g} %, {_EFFICIENCY[1]}"
    if "rank" in more:
        yield _RANK
    if _asked(study):
        yield from (_COST, *_FALLBACKS)
    yield "failed points count as evaluations"


def as_csv(study: Study) -> str:
    """Return a row for every space and arm, with infinities as ``inf``."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    percents = [
        f"{name}_{percent:g}"
        for percent in study.percents
        for name in ("evaluations_to", "low_to", "high_to", "seeds_to")
    ]
    # A small space ends before a mark that a larger one reaches.
    marks = sorted({mark for one in study.standings for mark, _ in one.best})
    table.writerow(
        [
            "space",
            "strategy",
            "seeds",
            "budget",
            *percents,
            "area",
            *(f"best_{m}" for m in marks),
            "overhead_s",
            "calls",
            "tokens",
            "speedup_per_evaluation",
            "rank_correlation",
            "model",
            "answers",
            "full_fallbacks",
            "sequences",
            "partial_sequences",
            "dropped_sequences",
        ]
    )
    for one in study.standings:
        reaches = [value for reach in one.reaches for value in (reach.median, reach.low, reach.high, reach.seeds)]
        best = [dict(one.best).get(mark, "") for mark in marks]
        costs = (one.overhead_s, one.calls, one.tokens)
        told = ("" if value is None else value for value in (one.efficiency, one.correlation))
        row = [one.space, one.arm, one.seeds, study.budget, *reaches, one.area, *best, *costs, *told]
        table.writerow([*row, *_csv_of(one.answers)])
    return text.getvalue()


def _csv_of(one: ModelAnswers | None) -> tuple[str | int, ...]:
    """Return the cells of a model's answers; empty ones where no model was asked."""
    if one is None:
        return ("",) * 6
    counts = one.sequences
    return (plain(one.model), one.consulted, one.fallbacks, counts.total, counts.partial, counts.dropped)


def as_markdown(study: Study, picture: str) -> str:
    """Return the page with all tables; `picture` is the name of the picture's file, empty where there is none."""
    changed = ", with changes" if study.changed_since else ""
    lines = [
        "# Search strategies on recorded tuning spaces", "",
        f"`{plain(study.command).replace('`', '')}`", "",
        f"agentcompile {study.version}, revision {study.revision[:12] or 'unknown'}{changed}; "
        f"{_cell(study.machine.device)}. {study.seeds} seeds, at most {study.budget:,} evaluations.", "",
    ]  # fmt: skip
    if picture:
        lines += [f"![Best so far by evaluations]({picture})", ""]
    for facts in study.spaces:
        lines += [
            f"## {_cell(facts.name)}",
            "",
            f"{_cell(_about(facts))}.",
            "",
            *_markdown(_of_space(study, facts)),
            "",
        ]
    if len(study.spaces) > 1:
        lines += ["## Over all spaces", "", "Geometric means of the medians.", "", *_markdown(_of_all(study)), ""]
    if (models := _of_models(study)) is not None:
        lines += ["## Answers of models", "", _MODELS, "", *_markdown(models), ""]
    lines += [f"- {_cell(note)}" for note in _notes(study)]
    return "\n".join(lines) + "\n"


def _markdown(table: Table) -> Iterator[str]:
    sides = ["--:" if at in table.right else "---" for at in range(len(table.heads))]
    yield from (_line(table.heads), f"| {' | '.join(sides)} |", *(_line(row) for row in table.rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    for sign in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(sign, f"\\{sign}")
    return plain(text)
