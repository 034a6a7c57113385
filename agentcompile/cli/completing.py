"""What a shell offers for the word under the cursor: runs, sessions, presets, strategies, recipes, regions.

In: the word so far. Out: the words that begin with it; none lets the shell complete a file's name. What fails offers
nothing. A key may not wait: imports are light, and no run is folded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer
from typer.core import TyperCommand

from agentcompile.errors import AgentCompileError

if TYPE_CHECKING:
    from agentcompile.options import Options

STRATEGIES = (
    "halving",
    "exhaustive",
    "random",
    "evolutionary",
    "annealing",
    "greedy",
    "epsilon-greedy",
    "mcts",
    "mcts+advice",
    "llm-rounds",
)
"""The names of `agentcompile.search.STRATEGIES`, whose import a key would wait for; a test compares them."""
_MOST = 200
"""The most words that are offered."""
_REGION, _SEARCHED = b'"kind":"region-found"', b'"kind":"trial-finished"'


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)][:_MOST]


def runs(incomplete: str) -> list[str]:
    """Return the names of runs, the newest first."""
    from agentcompile.runs.folders import LATEST, runs_in

    options = _options()
    return _matching([*_newest_first(runs_in(options.runs)), LATEST], incomplete) if options else []


def sessions(incomplete: str) -> list[str]:
    """Return the names of sessions of `refine`, the newest first."""
    from agentcompile.agents.folder import sessions_in

    options = _options()
    return _matching(_newest_first(sessions_in(options.runs)), incomplete) if options else []


def _newest_first(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in reversed(paths)]


def presets(incomplete: str) -> list[str]:
    """Return `preset:NAME` of every checkpoint that can be made."""
    makers = [name for entry in entry_points(group="agentcompile.models") for name in entry.load()]
    return _matching((f"preset:{name}" for name in sorted(makers)), incomplete)


def strategies(incomplete: str) -> list[str]:
    """Return the names of search strategies."""
    return _matching(STRATEGIES, incomplete)


def rules(incomplete: str) -> list[str]:
    """Return the rules by which a plan is chosen."""
    from agentcompile.ir.rule import Rule

    return _matching(get_args(Rule), incomplete)


def advisers(incomplete: str) -> list[str]:
    """Return the advisers, and how those begin that need more."""
    return _matching(("heuristic", "none", "random:", "openai:", "replay:"), incomplete)


def regions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the regions of the run that the line names, or of the newest."""
    from agentcompile.runs.folders import EVENTS, LATEST, named, runs_in

    options = _options()
    if options is None:
        return []
    asked = str(context.params.get("run_dir") or context.params.get("run") or "")
    try:
        found = [named(options.runs, asked)] if asked not in ("", LATEST) else list(runs_in(options.runs)[-1:])
        return _matching(dict.fromkeys(name for path in found for name in _regions_in(path / EVENTS)), incomplete)
    except (AgentCompileError, OSError, ValueError, KeyError):
        return []


def _regions_in(events: Path) -> Iterator[str]:
    """Yield the names of a run's regions, which it finds before its first trial."""
    with events.open("rb") as stream:
        for line in stream:
            if _REGION in line:
                yield str(json.loads(line)["event"]["name"])
            elif _SEARCHED in line:
                return


def _options() -> Options | None:
    from agentcompile.options import resolve

    try:
        return resolve().options
    except AgentCompileError:
        return None


def unconverted(command: Any) -> Any:
    """Return a command, and all below it, that takes the words of a line as they are while one of them is completed.

    Typer converts them with pydantic, whose import takes longer than all else that a key waits for.
    """
    every = command.get_params

    def parameters(context: Any) -> list[Any]:
        found: list[Any] = every(context)
        if context.resilient_parsing:
            for one in found:
                one.process_value = _as_it_is
        return found

    command.get_params = parameters
    for one in getattr(command, "commands", {}).values():
        unconverted(one)
    return command


def _as_it_is(context: Any, value: Any) -> Any:
    return value


def front_end(name: str) -> type[TyperCommand]:
    """Return the class of a front end's command: its first word is one of those that the front end names.

    They come from the entry points of the group ``agentcompile.words``, each a mapping from word to what it means.
    """

    class FrontEnd(TyperCommand):
        def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
            """Return the words, each with its meaning."""
            from typer._click.shell_completion import CompletionItem

            if ctx.args:
                return []
            words: dict[str, str] = {}
            for one in entry_points(group="agentcompile.words", name=name):
                words |= one.load()
            return [CompletionItem(word, help=words[word]) for word in _matching(words, incomplete)]

    return FrontEnd
