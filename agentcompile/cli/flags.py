"""Parts that the verbs of the command line share: their flags, the screen that they print to, and how they end."""

from __future__ import annotations

import functools
import inspect
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
Flags = dict[str, object]
"""Settings by name; None or no entry for one that was not given."""

LockFile = Annotated[Path, typer.Argument(metavar="LOCK", help="A lock that `compile` wrote.")]
RunDir = Annotated[str | None, typer.Option("--run-dir", metavar="DIR", help="The run's directory.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
Events = Annotated[str, typer.Option("--events", metavar="jsonl", help="A line of JSON an event on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]

_TEXTS: tuple[tuple[str, str | None, str], ...] = (
    ("target", None, "auto, cpu or cuda:N."),
    ("context", "N", "Tokens that the cache holds; unset: 2,048, or the model's."),
    ("batch", "N,…", "Sequences in a step: 1,2,4,8; CUDA alone."),
    ("threads", "N", "Worker threads; 0: one a physical core."),
    (
        "strategy",
        "NAME",
        "Search strategy: halving, exhaustive, random, evolutionary, annealing, greedy, epsilon-greedy, mcts, "
        "mcts+advice or llm-rounds; NAME:KEY=VALUE,… changes its settings.",
    ),
    ("choose", "RULE", "pytorch, first (untimed), isolated (times alone) or admitted."),
    ("advisor", None, "heuristic, none, random:SEED, openai:MODEL[@BASE_URL] or replay:DIR."),
    ("advisor_key", "VARIABLE", "The variable that holds the model's key."),
    ("advisor_calls", "N", "Most requests to the language model."),
    ("advisor_tokens", "N", "Most tokens of these requests."),
    ("advisor_cents", "N", "Most US cents of these requests; 0: no limit."),
    ("advisor_price", "IN,OUT", "Dollars for a million tokens."),
    ("advisor_context", "N", "Tokens that the model's server holds; 0: it will say."),
    ("advisor_seconds", "S", "Most seconds for all answers."),
    ("budget", "N", "Most trials of the search, for each batch size."),
    ("seconds", "S", "Most seconds of search and step tuning; 0: no limit."),
    ("seed", "N", "Seed of inputs, rounds and ties."),
    ("out", "LOCK", "Where the lock is written."),
)
"""Name, metavar and help of the settings that take a text."""


def _text(name: str, metavar: str | None, help: str) -> object:
    return Annotated[str | None, typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=help)]


_SETTINGS: dict[str, object] = {
    "model": Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A checkpoint directory, a GGUF file, or preset:NAME.")
    ],
    "run_dir": RunDir,
    "memory": Annotated[
        bool | None,
        typer.Option("--memory/--no-memory", help="Begin with what was fast on like regions before."),
    ],
    "review": Annotated[bool | None, typer.Option("--review/--no-review", help="Stop before the lock for a person.")],
    "templates": Annotated[
        list[str] | None, typer.Option("--templates", metavar="DIR", help="More templates; repeatable.")
    ],
    "user_templates": Annotated[
        bool | None,
        typer.Option("--user-templates/--no-user-templates", help="Search the folder of written templates, too."),
    ],
    **{name: _text(name, metavar, help) for name, metavar, help in _TEXTS},
}
_LOCKED = Annotated[str | None, typer.Option("--model", help="The checkpoint, when the lock does not find it.")]


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


def takes(*names: str, **helps: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a wrapper of a verb that has these settings, named in order, where it has its parameter `flags`.

    `helps` are other texts on some of them, where a verb means them otherwise.
    """
    shapes = {name: metavar for name, metavar, _ in _TEXTS}
    own = {name: _text(name, shapes[name], help) for name, help in helps.items()}
    return _takes({name: own.get(name, _SETTINGS[name]) for line in names for name in line.split()})


def on_lock(function: Callable[..., int]) -> Callable[..., int]:
    """Wrap a verb on a lock, as `takes` does, with the settings that a lock leaves open."""
    shared = ("threads", "templates", "user_templates")
    return _takes({"model": _LOCKED, **{name: _SETTINGS[name] for name in shared}})(function)


def _takes(settings: dict[str, object]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    def wrap(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def run(**given: object) -> int:
            flags = {name: value for name in settings if (value := given.pop(name)) != []}
            return function(flags=flags, **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [one.replace(kind=keyword) for one in inspect.signature(function, eval_str=True).parameters.values()]
        at = [one.name for one in own].index("flags")
        own[at : at + 1] = [
            inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in settings.items()
        ]
        run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined] # Typer makes its options from it
        return run

    return wrap


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
