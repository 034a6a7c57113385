"""Calls `--help` of every verb of the installed agentcompile at 80 columns, and fails where a line is longer."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from typer.main import get_command

COLUMNS = 80


def verbs(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of the group itself and of every command below it."""
    yield words
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield from verbs(command, (*words, name))


def every() -> Iterator[tuple[str, ...]]:
    """Yield the words of every verb, with those of front ends and the recipes of `bench`."""
    from agentcompile.cli.main import app

    yield from verbs(get_command(app))
    for entry in entry_points(group="agentcompile.verbs"):
        yield (entry.name,)
        for words in entry_points(group="agentcompile.words", name=entry.name):
            yield from ((entry.name, word) for word in words.load())


def help_of(words: tuple[str, ...]) -> str:
    """Return what a verb's `--help` prints."""
    from agentcompile.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            code = main([*words, "--help"])
        except SystemExit as end:  # argparse
            code = end.code or 0
    assert code == 0, f"{words}: exit {code}"
    assert out.getvalue().strip(), f"{words}: no help"
    return out.getvalue()


def wide(words: tuple[str, ...]) -> list[str]:
    """Return the lines of a verb's help that are too long."""
    return [f"{' '.join(words)}: {line}" for line in help_of(words).splitlines() if len(line) > COLUMNS]


if __name__ == "__main__":
    os.environ["COLUMNS"] = str(COLUMNS)
    found = [line for words in every() for line in wide(words)]
    print("\n".join(found))
    sys.exit(1 if found else 0)
