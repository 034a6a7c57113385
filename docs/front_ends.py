"""The flags of `ablate`, the recipes of `bench`, and `tui`, whose arguments `argparse` reads.

In: the entry points of the groups `agentcompile.verbs` and `agentcompile.words`. Out: the parsers, and lines of
Markdown in the form that the reference gives the other verbs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NAMED = re.compile(r"^`agentcompile [^`]*`: ")
"""What a recipe's description begins with, which the heading says."""
_EXAMPLES = "Examples:"


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the name of each front end's verb, with a recipe's after it, and the parser of what follows."""
    for entry in sorted(entry_points(group="agentcompile.verbs"), key=lambda entry: entry.name):
        words = [word for table in entry_points(group="agentcompile.words", name=entry.name) for word in table.load()]
        for word in words:
            yield f"{entry.name} {word}", parser_of(entry.load(), word)
        if not words:
            yield entry.name, parser_of(entry.load())


def parser_of(run: Callable[[Sequence[str]], object], *words: str) -> argparse.ArgumentParser:
    """Return the parser that answers when a verb is called with words and `--help`.

    Parsers are made where they are used. One that shows its help ends the call, and is in the trace of that.

    Raises:
        LookupError: no parser answers.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run([*words, "--help"])
    except SystemExit as ended:
        trace = ended.__traceback__
        while trace is not None:
            found = trace.tb_frame.f_locals.get("self")
            if isinstance(found, argparse.ArgumentParser):
                return found
            trace = trace.tb_next
    raise LookupError(f"{' '.join(words)} --help: no parser answers")


def sections(plain: Callable[[str], str], cell: Callable[[str], str]) -> Iterator[str]:
    """Yield a section for each front end; `plain` makes Markdown of a docstring, `cell` of what a table holds."""
    for name, parser in parsers():
        shown = [one for one in parser._actions if argparse.SUPPRESS not in (one.help, one.default)]
        arguments = [one for one in shown if not one.option_strings]
        yield ""
        yield f"### {' '.join([f'agentcompile {name}', *map(_in_heading, arguments)])}"
        yield ""
        about = _NAMED.sub("", parser.description or "")
        yield plain(about[:1].upper() + about[1:])
        yield ""
        yield "| | |"
        yield "|---|---|"
        for one in [*arguments, *(one for one in shown if one.option_strings)]:
            words = " ".join(filter(None, (", ".join(one.option_strings), _value(one))))
            yield f"| `{cell(words)}` | {cell(_about(one, parser))} |"
        if parser.epilog and not parser.epilog.startswith(_EXAMPLES):
            yield ""
            yield plain(parser.epilog)


def _in_heading(argument: argparse.Action) -> str:
    return f"[{_value(argument)}]" if argument.nargs in ("?", "*") else _value(argument)


def _value(action: argparse.Action) -> str:
    """Return what stands for the value, or the values, of an argument or a flag."""
    name = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper().replace("_", "-"))
    match action.nargs:
        case int(count):
            return " ".join([name] * count)
        case "*" | "+":
            return f"{name}…"
        case _:
            return name


def _about(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the help of an argument, with its default where the help does not say it."""
    told = (action.help or "") % {**vars(action), "prog": parser.prog}
    usual = action.default
    if action.required and action.option_strings:
        return f"{told} [required]"
    if usual is None or usual is False or usual == "" or isinstance(usual, list) or not action.option_strings:
        return told
    text = ",".join(map(str, usual)) if isinstance(usual, tuple) else str(usual).removeprefix(f"{ROOT}/")
    text = text.removesuffix(".0")
    said = "default" in told or f"({text})" in told
    return told if said else f"{told} [default: {text}]"
