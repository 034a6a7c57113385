"""Parts that the verbs of the command line share: their flags, the screen that they print to, and how they end.

What a verb needs when it runs is imported then: completion in a shell imports this module at every key.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from agentcompile import arguments
from agentcompile.cli import completing
from agentcompile.errors import AgentCompileError
from agentcompile.options import SETTINGS

if TYPE_CHECKING:
    from agentcompile.cli.render import Format, Screen

P = ParamSpec("P")
Flags = dict[str, object]
"""Settings by name; None or no entry for one that was not given."""

HELP: dict[str, object] = {"help_option_names": ["-h", "--help"]}
"""The settings of every group of verbs."""

LockFile = Annotated[Path, typer.Argument(metavar="LOCK", help="A lock that `compile` wrote.")]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's name or folder, or latest (the default).", autocompletion=completing.runs
    ),
]
RunDir = Annotated[
    str | None, typer.Option("--run-dir", metavar="DIR", help="Run directory; the name of a run that exists will do.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value to stdout, on an error too.")]
Events = Annotated[str, typer.Option("--events", metavar="jsonl", help="Print each event as a line of JSON to stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors to stderr.")]

_TEXTS: tuple[tuple[str, str | None, str], ...] = (
    ("target", "TARGET", "auto, cpu or cuda:N."),
    ("context", "N", "Maximum context length in tokens; unset: 2,048, or the model's where that is less."),
    ("batch", "N,…", "Batch sizes of the decode step, such as 1,2,4,8 (CUDA only)."),
    ("threads", "N", "Worker threads (0 = one per physical core)."),
    (
        "strategy",
        "NAME",
        f"Search strategy: {', '.join(completing.STRATEGIES[:-1])} or {completing.STRATEGIES[-1]}; "
        "NAME:KEY=VALUE,… changes its settings.",
    ),
    (
        "choose",
        "RULE",
        "How the plan is chosen: pytorch, first (untimed), isolated (each region alone) or admitted (the whole step).",
    ),
    (
        "advisor",
        "ADVISER",
        "Who orders the search: heuristic, none, random:SEED, openai:MODEL[@BASE_URL] or replay:DIR.",
    ),
    ("advisor_key", "VARIABLE", "Environment variable that holds the adviser's API key."),
    ("advisor_calls", "N", "Request limit for the adviser."),
    ("advisor_tokens", "N", "Token limit for the adviser, questions and answers together."),
    ("advisor_cents", "N", "Cost limit for the adviser in US cents (0 = none); needs --advisor-price."),
    ("advisor_price", "IN,OUT", "Price in dollars per million tokens of input and of output."),
    ("advisor_context", "N", "Context length of the adviser's server in tokens (0 = found out)."),
    ("advisor_seconds", "S", "Time limit in seconds for all of the adviser's answers."),
    (
        "budget",
        "N",
        "Candidates to evaluate for each batch size, about; at least one for each region that a plan needs.",
    ),
    ("seconds", "S", "Time limit in seconds for search and step tuning (0 = none)."),
    ("seed", "N", "Random seed of inputs, measurement order and ties."),
    ("out", "LOCK", "Path of the lock file that is written."),
)
"""Name, metavar and help of the settings that take a text."""


_WORDS: dict[str, Callable[[str], list[str]]] = {
    "model": completing.presets,
    "strategy": completing.strategies,
    "choose": completing.rules,
    "advisor": completing.advisers,
}
"""What a shell is offered for the value of a setting."""


SESSION: Mapping[str, int] = {
    "advisor_calls": 200,
    "advisor_tokens": 5_000_000,
    "advisor_seconds": 86_400,
    "seconds": 0,
}
"""Settings of a session of `refine` where nobody set them; those of `compile` are for one question on all regions."""
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def _with_default(name: str, help: str, usual: Mapping[str, str | int]) -> str:
    """Return a help text with the setting's default after it, unless that is empty or says that it is unset."""
    setting = _BY_NAME[name]
    value = usual.get(name, setting.default)
    if isinstance(value, bool):
        return f"{help} [default: --{'' if value else 'no-'}{setting.key}]"
    unset = isinstance(value, int) and value < setting.least
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return help if unset or not shown else f"{help} [default: {shown}]"


def _text(name: str, metavar: str | None, help: str, usual: Mapping[str, str | int] | None = None) -> object:
    flag, told = f"--{name.replace('_', '-')}", _with_default(name, help, usual or {})
    return Annotated[str | None, typer.Option(flag, metavar=metavar, help=told, autocompletion=_WORDS.get(name))]


def _switch(name: str, help: str) -> object:
    flag = f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}"
    return Annotated[bool | None, typer.Option(flag, help=_with_default(name, help, {}))]


def _argument(name: str, help: str) -> object:
    words = _WORDS.get(name)
    return Annotated[str | None, typer.Argument(metavar=name.upper(), help=help, autocompletion=words)]


_SETTINGS: dict[str, object] = {
    "model": _argument("model", "A checkpoint directory, a GGUF file, or preset:NAME."),
    "run_dir": RunDir,
    "memory": _switch("memory", "Seed the search with what was fast on like regions in earlier runs."),
    "review": _switch("review", "Stop before the lock, for review."),
    "templates": Annotated[
        list[str] | None, typer.Option("--templates", metavar="DIR", help="Another template folder (repeatable).")
    ],
    "user_templates": _switch("user_templates", "Search the user's template folder as well."),
    **{name: _text(name, metavar, help) for name, metavar, help in _TEXTS},
}
_LOCKED = Annotated[
    str | None, typer.Option("--model", metavar="DIR", help="Checkpoint directory, when the lock does not find it.")
]


def verb(function: Callable[P, int]) -> Callable[P, None]:
    """Wrap a verb so that its exit code, or that of its exception, becomes the process's."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from agentcompile.cli.exits import guarded

        def checked() -> int:
            for name, value in kwargs.items():
                sound(f"--{name.replace('_', '-')}", value)
            return function(*args, **kwargs)

        raise typer.Exit(guarded(checked, json=kwargs.get("json") is True))

    return run


def takes(
    *names: str, usual: Mapping[str, str | int] | None = None, **helps: str
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a wrapper of a verb that has these settings, named in order, where it has its parameter `flags`.

    `helps` are other texts on some of them, where a verb means them otherwise, and `usual` their defaults for it.
    """
    shapes = {name: metavar for name, metavar, _ in _TEXTS}
    own = {name: _text(name, shapes[name], help, usual) for name, help in helps.items() if name in shapes}
    own |= {name: _argument(name, help) for name, help in helps.items() if name not in shapes}
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
    from agentcompile.cli.render import Screen
    from agentcompile.options import terminal

    if events not in ("", "jsonl"):
        raise AgentCompileError(f"--events: {events!r} is not allowed", hint="allowed: jsonl")
    if json and events:
        raise AgentCompileError("--json and --events share stdout", hint="give one of them")
    format: Format = "json" if json else "events" if events else "text"
    redraws, colour = terminal()
    return Screen.standard(format, quiet=quiet, redraws=redraws, colour=colour)
