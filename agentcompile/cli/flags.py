"""Parts that the verbs of the command line share: their flags, the screen that they print to, and how they end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from agentcompile import arguments
from agentcompile.cli.exits import guarded
from agentcompile.cli.render import Format, Screen
from agentcompile.errors import AgentCompileError
from agentcompile.options import terminal

P = ParamSpec("P")

Checkpoint = Annotated[str | None, typer.Argument(metavar="MODEL", help="A checkpoint directory, or preset:NAME.")]
Model = Annotated[str | None, typer.Option("--model", help="The checkpoint, when the lock does not find it.")]
LockFile = Annotated[Path, typer.Argument(metavar="LOCK", help="A lock that `compile` wrote.")]
Target = Annotated[str | None, typer.Option("--target", help="auto, cpu or cuda:N.")]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="N", help="Tokens that the cache holds; unset: 2,048, or the model's."),
]
Batch = Annotated[str | None, typer.Option("--batch", metavar="N,…", help="Sequences in a step: 1,2,4,8; CUDA alone.")]
Threads = Annotated[str | None, typer.Option("--threads", metavar="N", help="Worker threads; 0: one a physical core.")]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy", metavar="NAME", help="Search strategy of regions and steps: halving, exhaustive or random."
    ),
]
Choose = Annotated[
    str | None,
    typer.Option("--choose", metavar="RULE", help="pytorch, first (untimed), isolated (times alone) or admitted."),
]
Advisor = Annotated[
    str | None, typer.Option("--advisor", help="heuristic, none, random:SEED, openai:MODEL[@BASE_URL] or replay:DIR.")
]
AdvisorKey = Annotated[
    str | None, typer.Option("--advisor-key", metavar="VARIABLE", help="The variable that holds the model's key.")
]
AdvisorCalls = Annotated[
    str | None, typer.Option("--advisor-calls", metavar="N", help="Most requests to the language model.")
]
AdvisorTokens = Annotated[
    str | None, typer.Option("--advisor-tokens", metavar="N", help="Most tokens of these requests.")
]
AdvisorCents = Annotated[
    str | None, typer.Option("--advisor-cents", metavar="N", help="Most US cents of these requests; 0: no limit.")
]
AdvisorPrice = Annotated[
    str | None, typer.Option("--advisor-price", metavar="IN,OUT", help="Dollars for a million tokens.")
]
AdvisorSeconds = Annotated[
    str | None, typer.Option("--advisor-seconds", metavar="S", help="Most seconds for all answers.")
]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="N", help="Most trials of the search, for each batch size.")
]
Seconds = Annotated[
    str | None, typer.Option("--seconds", metavar="S", help="Most seconds of search and step tuning; 0: no limit.")
]
Review = Annotated[bool | None, typer.Option("--review/--no-review", help="Stop before the lock for a person.")]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Seed of inputs, rounds and ties.")]
Out = Annotated[str | None, typer.Option("--out", metavar="LOCK", help="Where the lock is written.")]
RunDir = Annotated[str | None, typer.Option("--run-dir", metavar="DIR", help="The run's directory.")]
Templates = Annotated[list[str] | None, typer.Option("--templates", metavar="DIR", help="More templates; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
Events = Annotated[str, typer.Option("--events", metavar="jsonl", help="A line of JSON an event on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]


def verb(function: Callable[P, int]) -> Callable[P, None]:
    """Wrap a verb so that its exit code, or that of its exception, becomes the process's."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        def checked() -> int:
            for name, value in kwargs.items():
                sound(f"--{name.replace('_', '-')}", value)
            return function(*args, **kwargs)

        raise typer.Exit(guarded(checked))

    return run


def sound(name: str, value: object) -> None:
    """Check an argument, or each item of a list.

    Raises:
        AgentCompileError: it is not valid UTF-8, or a path that no file system takes (usage).
    """
    if isinstance(value, Path):
        arguments.path(name, value)
    elif isinstance(value, str):
        arguments.text(name, value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            sound(name, one)


def front_end(name: str) -> Callable[[Sequence[str]], int] | None:
    """Return a front end's verb, which takes the rest of the command line as it is; None when it is not installed."""
    found = next(iter(entry_points(group="agentcompile.verbs", name=name)), None)
    run: Callable[[Sequence[str]], int] | None = found.load() if found is not None else None
    return run


def screen_of(json: bool = False, events: str = "", quiet: bool = False) -> Screen:
    """Return where a verb prints: text, one JSON value, or one line of JSON for each event.

    Raises:
        AgentCompileError: `events` is not allowed, or both `json` and `events` are given (usage).
    """
    if events not in ("", "jsonl"):
        raise AgentCompileError(f"--events: {events!r} is not allowed", hint="allowed: jsonl")
    if json and events:
        raise AgentCompileError("--json and --events share stdout", hint="give one of them")
    format: Format = "json" if json else "events" if events else "text"
    redraws, colour = terminal()
    return Screen.standard(format, quiet=quiet, redraws=redraws, colour=colour)
