"""The verb `advise`: an adviser's advice on a checkpoint's regions, or the prompts for it; nothing is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from agentcompile.advice.claims import standing_of
from agentcompile.advice.configure import Inquiry
from agentcompile.cli.flow import REAL, Flow
from agentcompile.cli.render import Reporter, Screen
from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Advice, SequenceCounts
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.ir.search_events import Transformation
from agentcompile.ir.trial import Trial
from agentcompile.options import Options, resolve
from agentcompile.runs.progress import RegionProgress, State
from agentcompile.runs.session import RunDirectory, named
from agentcompile.runs.tables import Table

_SHOWN = 6
"""Lines of each kind that are shown for a region; `--json` has all."""


def advise(
    flags: Mapping[str, object],
    *,
    show_prompt: bool,
    record: Path | None,
    region: str,
    answered_by: str,
    run: str = "",
    screen: Screen,
    flow: Flow = REAL,
) -> int:
    """Ask the adviser about the regions of a checkpoint, or with `show_prompt` show what it would be asked.

    Raises:
        AgentCompileError: no model was named, or the adviser cannot be asked (usage).
    """
    options = resolve(flags).options
    if not options.model:
        raise AgentCompileError(
            "no model was named", hint="agentcompile advise MODEL, a checkpoint directory, a GGUF file or preset:NAME"
        )
    with Reporter(screen) as reporter:
        asked = Inquiry(
            show_prompt=show_prompt,
            record=record,
            region=region,
            answered_by=answered_by,
            history=_trials(options, run),
        )
        prompts = flow.advise(options, reporter, asked)
    state = reporter.state
    if show_prompt:
        for one in prompts:
            screen.text(f"── prompt {one.digest} ──\n── system ──\n{one.system}\n── user ──\n{one.user}")
        screen.json([{"digest": one.digest, "system": one.system, "user": one.user} for one in prompts])
        return 0
    for row in state.rows:
        if row.advice is not None:
            said(row, row.advice, screen)
        elif row.head and not options.advisor.startswith(("openai:", "replay:")):
            screen.text(f"{row.name}: {options.advisor} would try first {'; '.join(row.head)}")
    _missed(state, screen)
    counts = sum((row.advice.sequence_counts for row in state.rows if row.advice is not None), SequenceCounts())
    if counts.total:
        screen.text(f"sequences of all regions: {_shares(counts)}")
    rows: list[Json] = [
        {"region": row.region, "name": row.name, "head": [*row.head], "advice": encode(row.advice)}
        for row in state.rows
        if row.points
    ]
    screen.json(
        {
            "adviser": options.advisor,
            "asked": encode(state.spent),
            "exchanges": [*state.exchanges],
            "missed": encode(state.unadvised),
            "sequences": encode(counts),
            "regions": rows,
        }
    )
    screen.next(f"agentcompile compile {quote(options.model)} --advisor {quote(options.advisor)}")
    return 0


def _trials(options: Options, run: str) -> tuple[Trial, ...]:
    if not run:
        return ()
    return tuple(RunDirectory.open(named(options.runs, run)).state().trials)


def said(row: RegionProgress, advice: Advice, screen: Screen) -> None:
    """Show what a model said about a region.

    That is its label, its diagnosis, its claims with their standing, the candidates that it would measure first, the
    legal part of its sequences, and what was refused.
    """
    screen.text(f"{row.name}: {advice.label} says: {advice.meaning or 'nothing'} ({standing_of(advice.claims)})")
    if advice.diagnosis is not None:
        hopes = advice.diagnosis.attainable_us
        at_best = "" if hopes is None else f"; at best {hopes:g} us a launch"
        screen.text(f"  limited by {advice.diagnosis.limit}: {advice.diagnosis.evidence}{at_best}")
    claims = [(one.topic, one.text, one.standing, one.because, one.rationale) for one in advice.claims]
    screen.table(Table(heads=("topic", "claim", "status", "because", "rationale"), rows=claims))
    for label, (_, why) in list(zip(row.head, advice.rationales, strict=False))[:_SHOWN]:
        screen.text(f"  first {label}: {why}")
    if advice.sequence_counts.total:
        screen.text(f"  sequences: {_shares(advice.sequence_counts)}")
    for sequence in advice.sequences[:_SHOWN]:
        steps = ", ".join(_step(step) for step in sequence.steps)
        screen.text(
            f"  sequence {steps}{f'; then {sequence.stopped}' if sequence.stopped else ''}: {sequence.rationale}"
        )
    for hint in advice.hints[:_SHOWN]:
        values = ", ".join(str(value) for value in hint.values)
        screen.text(f"  hint {hint.template} {hint.param}: {values}: {hint.rationale}")
    refused = [one for one in advice.proposals if not one.accepted]
    for one in refused[:_SHOWN]:
        screen.text(f"  refused {one.what} {one.text}: {one.reason}")
    if len(refused) > _SHOWN:
        screen.text(f"  {len(refused) - _SHOWN} more were refused; --json shows them")


def consulted(row: RegionProgress, screen: Screen) -> None:
    """Show what a model proposed in the middle of a region's search, and how much of it was legal."""
    if not row.consulted:
        return
    answered = [one for one in row.consulted if one.exchange]
    counts = SequenceCounts(
        full=sum(one.full for one in answered),
        partial=sum(one.partial for one in answered),
        dropped=sum(one.dropped for one in answered),
    )
    none = sum(not one.full + one.partial for one in row.consulted)
    screen.text(
        f"asked a model {len(row.consulted)} times, {len(answered)} answers; sequences: {_shares(counts)}; "
        f"{none} times none that is legal"
    )
    for reason in dict.fromkeys(one.reason for one in row.consulted if one.reason):
        screen.text(f"  no answer: {reason}")


def _shares(counts: SequenceCounts) -> str:
    return f"{counts.full} of {counts.total} legal, {counts.partial} in part, {counts.dropped} not"


def _step(step: Transformation) -> str:
    return f"template {step.value}" if step.change == "template" else f"{step.name}={step.value}"


def _missed(state: State, screen: Screen) -> None:
    names = {row.region: row.name for row in state.rows}
    for missed in state.unadvised:
        about = ", ".join(names.get(region, region[:12]) for region in missed.regions)
        screen.text(f"no advice{f' about {about}' if about else ''}: {missed.reason}")
        for one in missed.refused[:_SHOWN]:
            screen.text(f"  refused {one.what} {one.text}: {one.reason}")
