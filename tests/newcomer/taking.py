"""Whether the command line takes a line: its verb, flags and arguments exist, and its values are of the right types.

Nothing is run. Words in capitals, such as MODEL, RUN and DIR, stand for values.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from agentcompile.cli.main import app
from tests.newcomer.commands import blocks

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = re.compile(r"[A-Z]+")


def commands(page: str) -> list[str]:
    """The commands of ours in a page's shell blocks, with continued lines joined and without comments."""
    lines = [line for kind, text in blocks(page) if kind == "sh" for line in text.replace("\\\n", " ").splitlines()]
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if re.match(r"agentcompile\b", line)]


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """The values of a command line; it raises where a verb, a flag or an argument is none."""
    if words[0] in {entry.name for entry in entry_points(group="agentcompile.verbs")}:
        return _by_argparse(words[0], words[1:])
    group: Any = get_command(app)
    name, command, rest = group.resolve_command(typer.Context(group, info_name="agentcompile"), list(words))
    with command.make_context(name, rest) as context:
        if hasattr(command, "commands"):
            inner, below, left = command.resolve_command(context, [*context._protected_args, *context.args])
            return dict(below.make_context(inner, left, parent=context).params)
        return dict(context.params)


def _by_argparse(verb: str, words: Sequence[str]) -> dict[str, Any]:
    (entry,) = entry_points(group="agentcompile.verbs", name=verb)
    recipes = [name for table in entry_points(group="agentcompile.words", name=verb) for name in table.load()]
    if recipes and not words:  # it lists them
        return {"recipes": recipes}
    if recipes and words[0] in recipes:
        recipe, words = [words[0]], words[1:]
    elif recipes and words[0].startswith("--"):
        recipe = ["run"]
    elif recipes:
        raise ValueError(f"{verb}: no such recipe: {words[0]}")
    else:
        recipe = []
    parser = _front_ends().parser_of(entry.load(), *recipe)
    parser.allow_abbrev = False
    for action in parser._actions:
        if action.type is not None:
            action.type = _unless_placeholder(action.type)
    with _told():
        return vars(parser.parse_args(list(words)))


def _unless_placeholder(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda word: word if PLACEHOLDER.fullmatch(word) else kind(word)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raise what argparse complains of, which it says on stderr before it ends the process."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as ended:
        raise argparse.ArgumentTypeError(said.getvalue()) from ended


@cache
def _front_ends() -> Any:
    spec = importlib.util.spec_from_file_location("front_ends", ROOT / "docs" / "front_ends.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
