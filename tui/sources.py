"""The program of a candidate as a page, or its difference from the program of what the region runs."""

from __future__ import annotations

from pathlib import Path

from agentcompile.events import clean
from agentcompile.ir.trial import Kernel
from agentcompile.runs.progress import State
from agentcompile.runs.session import RunDirectory

from .scene import Page
from .source import difference
from .trials import latest, placed


def page(state: State, region: str, candidate: str, run: Path, store: Path, *, diff: bool) -> Page | str:
    """The page, or the sentence that says why there is none."""
    found = latest(state, region)
    one = found.get(candidate)
    if one is None:
        return "This candidate was not judged yet: its program is made when it is."
    label = one.candidate.label
    new = text_of(run, one.source)
    if new is None:
        return f"The program of {label} is not kept here any more: r judges it again."
    row = state.row(region)
    language = next(
        (offer.language for offer in (row.offers if row else ()) if offer.template == one.candidate.template),
        "cpp",
    )
    if not diff:
        return Page(title=label, kind="source", lines=new, language=language)
    other = incumbent(state, region, candidate)
    if other is None:
        return "There is nothing to hold it against: no other candidate of this region was measured."
    old = text_of(run, found[other].source)
    old_label = found[other].candidate.label
    if old is None:
        return f"The program of {old_label} is not kept here any more: r judges it again."
    return Page(title=f"{old_label} → {label}", kind="diff", lines=difference(old, new, old_label, label))


def incumbent(state: State, region: str, candidate: str) -> str | None:
    """What `candidate` is held against: what the region runs, else its best, else the first other one measured."""
    row = state.row(region)
    wanted = []
    runs = placed(state).get(region, row.choice if row is not None else None)
    if isinstance(runs, Kernel):
        wanted.append(runs.candidate.id)
    if row is not None and row.best is not None:
        wanted.append(row.best.candidate)
    known = latest(state, region)
    wanted += [id for id, one in known.items() if one.verdict.kind == "measured"]
    return next((id for id in wanted if id != candidate and id in known), None)


def text_of(run: Path, digest: str) -> tuple[str, ...] | None:
    """The lines of a program by its digest; None when it is not kept."""
    from agentcompile.control import source_text

    text = source_text(RunDirectory(run), digest)
    return tuple(clean(text, len(text) + 1, lines=True).split("\n")) if text is not None else None
