"""Builds the `Counsel` of a run from its options: whom to ask, the spending limits, the exchange folder, the events.

In: options, and for each region its question with the heuristic's advice. Out: a `Counsel` that asks nobody, replays a
folder of exchanges, or asks a model in the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentcompile.advice.client import Client
from agentcompile.advice.counsel import Counsel, PromptAnswerer
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import OpenAIWire, needs_openai
from agentcompile.arguments import OPENAI_ADVISOR, prices
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit, silent
from agentcompile.ir.advice import Advice, Question, Usage
from agentcompile.ir.trial import Trial
from agentcompile.options import Options, advisor_secret

FOLDER = "advice"
"""Name of the exchange folder inside a run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """The arguments of the verb `advise`."""

    show_prompt: bool = False
    """Whether to only show the prompt and ask nobody."""
    record: Path | None = None
    """Folder in which exchanges are kept."""
    region: str = ""
    """Region's name, kind or the start of its id; empty for all regions."""
    answered_by: str = ""
    """Name recorded as the answerer, in place of the one that the server reports."""
    history: tuple[Trial, ...] = ()
    """All trials that the prompt may mention; an exchange recorded for an ablation must not contain its winners."""


def is_remote(options: Options) -> bool:
    """Return whether a model is to be asked, or recorded exchanges of one are to be replayed."""
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
    """Return the counsel that `options.advisor` names, before anything was asked.

    `emit` must be safe to call from several threads. Exchanges are kept in `record`, else in the run directory, else in
    the cache. Recorded questions are not asked again unless `recalls` is False; with `asks` False nobody is asked at
    all.

    Raises:
        AgentCompileError: the API key is not set or the folder holds no exchange (usage), or the `openai` package is
            missing (environment).
    """
    if not is_remote(options):
        return Counsel(first, tell=emit)
    kept = Cassette(record or folder_of(options))
    if options.advisor.startswith("replay:"):
        recorded = Cassette(Path(options.advisor.partition(":")[2]))
        if not len(recorded):
            recorded = kept  # a run resumed elsewhere carries its exchanges with it
        if not len(recorded):
            raise AgentCompileError(
                f"--advisor {options.advisor}: holds no exchange",
                hint="name a folder that was recorded: the folder `advice` of a run, or that of `advise --record`",
            )
        return Counsel(first, recalls=recorded, keeps=kept, tell=emit)
    return Counsel(
        first,
        asks=client_of(options, emit, spent, answered_by=answered_by) if asks else None,
        recalls=kept if recalls else None,
        keeps=kept,
        tell=emit,
    )


def check(options: Options) -> None:
    """Raise the errors of `counsel_of` early, before minutes are spent on a run."""
    if is_remote(options):
        counsel_of(options, {}, silent, Usage())


def folder_of(options: Options) -> Path:
    """Return the folder of a run's exchanges; outside a run, one in the cache for each adviser."""
    if options.run_dir:
        return Path(options.run_dir) / FOLDER
    from agentcompile.ir.digest import digest

    return options.cache / FOLDER / digest("adviser/1", options.advisor)[:16]


def ceilings_of(options: Options) -> Ceilings:
    """Return what may be spent on asking models, by the options.

    Raises:
        AgentCompileError: there is a limit in cents but no price per token (usage).
    """
    price = prices(options.advisor_price)
    if options.advisor_cents and price is None:
        raise AgentCompileError(
            f"--advisor-cents: {options.advisor_cents}, but nobody said what a token costs",
            hint="say it with --advisor-price IN,OUT, in dollars for a million tokens",
        )
    return Ceilings(
        calls=options.advisor_calls,
        tokens=options.advisor_tokens,
        microdollars=options.advisor_cents * 10_000,
        seconds=options.advisor_seconds,
        price=price or (0.0, 0.0),
    )


def client_of(options: Options, emit: Emit, spent: Usage, *, answered_by: str = "") -> PromptAnswerer:
    """Return a client of the server that ``openai:MODEL[@BASE_URL]`` names, with the spending limits of `options`.

    Raises:
        AgentCompileError: there is a limit in cents but no price per token, or the key is not set (usage); or the
            `openai` package is missing (environment).
    """
    found = OPENAI_ADVISOR.fullmatch(options.advisor)
    assert found is not None, options.advisor
    needs_openai()
    ceilings = ceilings_of(options)
    wire = OpenAIWire(found["model"], found["url"] or "", advisor_secret(options))
    ledger, context = Ledger(ceilings, spent), options.advisor_context
    return Client(wire, found["model"], ledger, emit=emit, answered_by=answered_by, context=context)
