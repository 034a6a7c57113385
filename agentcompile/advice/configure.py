"""From settings to the counsel of a run: who is asked, what it may cost, where exchanges lie, and the events of it.

In: options, and for each region its question with what a heuristic advised. Out: a `Counsel` that asks nobody, replays
a folder of exchanges, or asks a model in the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.advice.client import Called, Client, Replied
from agentcompile.advice.counsel import Asks, Counsel, Missed, News, Settled, Taken
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import OpenAIWire, needs_openai
from agentcompile.errors import AgentCompileError
from agentcompile.events import (
    AdviceMissed,
    AdviceTaken,
    AdviserCalled,
    AdviserReplied,
    ClaimSettled,
    Emit,
    Event,
    silent,
)
from agentcompile.ir.advice import Advice, Question, Usage
from agentcompile.ir.trial import Trial
from agentcompile.options import OPENAI_ADVISOR, Options, advisor_secret, prices

FOLDER = "advice"
"""Of a run directory: its exchanges."""
_HEAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What `advise` is to do."""

    show_prompt: bool = False
    """Ask nobody."""
    record: Path | None = None
    """Where exchanges are kept."""
    region: str = ""
    """A region's name, kind or the start of its id; empty: all."""
    answered_by: str = ""
    """Who answers, for the record, in place of what the server says."""
    history: tuple[Trial, ...] = ()
    """Trials that the adviser is told of, and no others: what is recorded for an ablation must not know its winners."""


def is_remote(options: Options) -> bool:
    """Whether a model, or a record of one, is to be asked."""
    return options.advisor.startswith(("openai:", "replay:"))


def counsel_of(
    options: Options,
    first: Mapping[str, tuple[Question, Advice]],
    emit: Emit,
    spent: Usage,
    *,
    record: Path | None = None,
    recalls: bool = True,
    asks: bool = True,
    answered_by: str = "",
) -> Counsel:
    """The counsel that `options.advisor` names, before it was asked anything. `emit` must be one for several threads.

    Exchanges are kept in `record`, else in the run directory, else in the cache; what is kept there is not asked again,
    unless `recalls` is not set; without `asks` nobody is asked about the rest either. Raises AgentCompileError: usage
    for a key that is not set and for a folder that holds no exchange, environment without the `openai` package.
    """

    def tell(news: News) -> None:
        emit(_event(news, first))

    if not is_remote(options):
        return Counsel(first, tell=tell)
    kept = Cassette(record or folder_of(options))
    if options.advisor.startswith("replay:"):
        recorded = Cassette(Path(options.advisor.partition(":")[2]))
        if not len(recorded):
            recorded = kept  # a run that goes on elsewhere has them with it
        if not len(recorded):
            raise AgentCompileError(
                f"--advisor {options.advisor}: holds no exchange",
                hint="name a folder that was recorded: the folder `advice` of a run, or that of `advise --record`",
            )
        return Counsel(first, recalls=recorded, keeps=kept, tell=tell)
    return Counsel(
        first,
        asks=client_of(options, emit, spent, answered_by=answered_by) if asks else None,
        recalls=kept if recalls else None,
        keeps=kept,
        tell=tell,
    )


def check(options: Options) -> None:
    """Raise what `counsel_of` would, before minutes were spent on a run."""
    if is_remote(options):
        counsel_of(options, {}, silent, Usage())


def folder_of(options: Options) -> Path:
    """Where a run keeps its exchanges. Outside a run they are kept by who was asked."""
    if options.run_dir:
        return Path(options.run_dir) / FOLDER
    from agentcompile.ir.digest import digest

    return options.cache / FOLDER / digest("adviser/1", options.advisor)[:16]


def client_of(options: Options, emit: Emit, spent: Usage, *, answered_by: str = "") -> Asks:
    """A client of the server that ``openai:MODEL[@BASE_URL]`` names, with the ceilings of `options`."""
    found = OPENAI_ADVISOR.fullmatch(options.advisor)
    assert found is not None, options.advisor
    needs_openai()
    price = prices(options.advisor_price)
    if options.advisor_cents and price is None:
        raise AgentCompileError(
            f"--advisor-cents: {options.advisor_cents}, but nobody said what a token costs",
            hint="say it with --advisor-price IN,OUT, in dollars for a million tokens",
        )
    ceilings = Ceilings(
        calls=options.advisor_calls,
        tokens=options.advisor_tokens,
        microdollars=options.advisor_cents * 10_000,
        seconds=options.advisor_seconds,
        price=price or (0.0, 0.0),
    )

    def said(call: Called | Replied) -> None:
        if isinstance(call, Called):
            emit(AdviserCalled(call=call.number, booked=call.booked, way=call.rung))
        else:
            emit(AdviserReplied(call=call.number, booked=call.booked, used=call.used, result=call.result))

    wire = OpenAIWire(found["model"], found["url"] or "", advisor_secret(options))
    return Client(wire, found["model"], Ledger(ceilings, spent), said=said, answered_by=answered_by)


def _event(news: News, first: Mapping[str, tuple[Question, Advice]]) -> Event:
    match news:
        case Taken(region=region, advice=advice, exchange=exchange):
            head = _head(advice, first[region][0])
            ranked = replace(advice, order=advice.order[: len(advice.rationales)])
            return AdviceTaken(region=region, exchange=exchange, advice=ranked, head=head)
        case Missed(regions=regions, reason=reason, refused=refused):
            return AdviceMissed(regions=regions, reason=reason, refused=refused)
        case Settled(region=region, claim=claim):
            return ClaimSettled(region=region, claim=claim)


def _head(advice: Advice, question: Question) -> tuple[str, ...]:
    return tuple(candidate.label for candidate in advice.sorted(question.candidates)[:_HEAD])
