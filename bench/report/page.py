"""A suite's result as one HTML page: tables, plots and all rounds, without scripts and external files.

Every string of the result is escaped, and the page's content policy lets a browser load nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from agentcompile.runs.tables import Table

from ..harness.result import Case, SuiteResult
from ..harness.trial import OURS
from .cells import NOTHING, number, plain
from .markdown import device, head, models, parts, revision
from .sheet import GRID, INK, MUTED, PAPER, Plot

_STYLE = "\n" + Path(__file__).with_name("page.css").read_text(encoding="utf-8")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}


def page(result: SuiteResult, plots: Sequence[Plot]) -> str:
    """Return the whole page as HTML."""
    title = _text(f"Suite {result.suite} on {device(result)}")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        f"<p>{_text(f'{result.made}, revision {revision(result)}')}</p>",
        *_table(head(result)),
    ]
    for model in models(result):
        lines += _model(result, model, [plot for plot in plots if plot.model == model])
    return "\n".join([*lines, "</body></html>", ""])


def _model(result: SuiteResult, model: str, plots: Sequence[Plot]) -> Iterator[str]:
    yield f"<h2>{_text(model)}</h2>"
    shown = list(parts(result, model))
    for part in shown[:1]:
        yield from _part(part.title, part.about, part.table)
    for plot in plots:
        yield f"<figure>{_inline(plot)}</figure>"
    for part in shown[1:]:
        yield from _part(part.title, part.about, part.table)
    cases = [case for case in result.cases if case.model == model and case.rounds]
    for case in cases:
        yield f"<details><summary>Rounds of {_text(case.workload)}, {case.mode}: ms a token</summary>"
        yield from _table(_rounds(case))
        yield "</details>"


def _part(title: str, about: str, table: Table) -> Iterator[str]:
    yield f"<h3>{_text(title)}</h3>"
    yield from _table(table)
    if about:
        yield f"<p>{_text(about)}</p>"


def _rounds(case: Case) -> Table:
    names = [arm.name for arm in case.arms if any(arm.name in one.token_s for one in case.rounds)]
    rows = []
    for at, one in enumerate(case.rounds):
        times = [number(one.token_s[name] * 1e3) if name in one.token_s else NOTHING for name in names]
        what = ("kept" if one.kept else "dropped", number(one.read_bytes_per_s / 1e9))
        rows.append((str(at + 1), str(one.process), *what, *times))
    heads = ("round", "process", "", "read GB/s", *names)
    return Table(heads=heads, rows=rows, right=(0, 1, *range(3, len(heads))))


def _table(table: Table) -> Iterator[str]:
    def kind(at: int) -> str:
        return ' class="right"' if at in table.right else ' class="first"' if at == 0 else ""

    headed, before = any(table.heads), ""
    grouped = headed and any(one[0] == other[0] for one, other in pairwise(table.rows))
    yield '<div class="wide"><table>'
    if headed:
        yield f"<tr>{''.join(f'<th{kind(at)}>{_text(cell)}</th>' for at, cell in enumerate(table.heads))}</tr>"
    for row in table.rows:
        # Consecutive rows with the same first cell show it once.
        begins = not grouped or row[0] != before
        marks = [
            *(["begins"] if grouped and begins and before else []),
            *(["ours"] if headed and OURS in row[:2] else []),
        ]
        shown, wide = ((row if begins else ("", *row[1:])), _spanned(table, row))
        cells = [f"<td{kind(at)}>{_text(cell)}</td>" for at, cell in enumerate(shown[:2] if wide else shown)]
        cells += [f'<td class="note" colspan="{len(row) - 2}">{_text(row[-1])}</td>'] if wide else []
        named = f' class="{" ".join(marks)}"' if marks else ""
        yield f"<tr{named}>{''.join(cells)}</tr>"
        before = row[0]
    yield "</table></div>"


def _spanned(table: Table, row: Sequence[str]) -> bool:
    """Return whether a row has no numbers but a note, which then spans the columns of the numbers."""
    return len(row) > 3 and len(row) - 1 not in table.right and bool(row[-1]) and set(row[2:-1]) == {NOTHING}


def _text(text: str) -> str:
    return escape(plain(text))


def _inline(plot: Plot) -> str:
    svg = re.sub(r"<style.*?</style>", "", plot.svg[plot.svg.index("<svg") :], flags=re.DOTALL)
    named = svg.replace("<svg", f'<svg role="img" aria-label="{_text(plot.title)}"', 1)
    # Text between tags has no bare `<`, so that no text of the result is taken for a tag.
    return re.sub(r"<[a-z][^>]*>", lambda tag: _themed(tag[0], plot.name), named)


def _themed(tag: str, name: str) -> str:
    if "aria-label" in tag:
        return tag
    for grey, variable in _THEMED.items():
        tag = tag.replace(grey, variable)
    return re.sub(r'( id="|href="#|url\(#)', rf"\1{name}-", tag)
