"""What others may rely on, read from the code: flags by verb, events and the lock with their fields, exit codes.

`python -m tests.unit.interface` adds what is new to interface.json, and removes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from agentcompile.errors import ExitCode
from agentcompile.events import Event
from agentcompile.lockfile.schema import Lock

FILE = Path(__file__).with_name("interface.json")
Interface = dict[str, dict[str, list[str]]]
"""Section to name to what the name has: the flags of a verb, the fields of a table."""


def interface() -> Interface:
    """Return what there is now."""
    return {
        "flags": {verb: sorted(flags) for verb, flags in (*_verbs(), *_front_ends())},
        "events": {name: sorted(fields) for event in typing.get_args(Event) for name, fields in _event(event)},
        "lock": {name: sorted(keys) for name, keys in _tables(Lock, "lock", "-")},
        "exit codes": {code.name.lower(): [str(int(code))] for code in ExitCode},
    }


def committed() -> Interface:
    """Return what there must be."""
    found: Interface = json.loads(FILE.read_text())
    return found


def gone(now: Interface, before: Interface) -> Interface:
    """Return what is in `before` and not in `now`."""
    found: Interface = {}
    for section, names in before.items():
        for name, parts in names.items():
            there = now[section].get(name)
            if there is None or set(parts) - set(there):
                found.setdefault(section, {})[name] = sorted(set(parts) - set(there or ()))
    return found


def _verbs() -> Iterator[tuple[str, set[str]]]:
    from agentcompile.cli.main import app

    def below(group: Any, words: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
        options = {option for one in group.params for option in (*one.opts, *one.secondary_opts)}
        yield " ".join(words), {option for option in options if option.startswith("-")}
        for name, command in getattr(group, "commands", {}).items():
            yield from below(command, (*words, name))

    commands = below(get_command(app), ("agentcompile",))
    return ((verb, flags) for verb, flags in commands if verb.split()[1:2] not in (["ablate"], ["bench"], ["tui"]))


def _front_ends() -> Iterator[tuple[str, set[str]]]:
    """Yield the flags that the help of the front ends' verbs shows."""
    from bench.ablation import run as ablation
    from bench.cli import RECIPES, run
    from tui.cli import parser

    calls = {f"agentcompile bench {name}": (run, [name, "--help"]) for name in RECIPES}
    for verb, (call, arguments) in {"agentcompile ablate": (ablation.run, ["--help"]), **calls}.items():
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            call(arguments)
        yield verb, _shown(out.getvalue())
    yield "agentcompile tui", _shown(parser().format_help())


def _shown(text: str) -> set[str]:
    lines = re.findall(r"^ +((?:-\w, )?--[a-z][a-z-]*.*)$", text, re.MULTILINE)
    flags = {flag for line in lines for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line.split("  ")[0])}
    return flags - {"-h", "--help"}


def _event(event: type) -> Iterator[tuple[str, set[str]]]:
    return _tables(event, _kind(event), "_")


def _kind(table: type) -> str:
    """Return the name that tells a table from the others of its union, or nothing."""
    kinds = [field.default for field in dataclasses.fields(table) if field.name == "kind"]
    return kinds[0] if kinds and isinstance(kinds[0], str) else ""


def _tables(table: type, name: str, mark: str, above: tuple[type, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Yield the fields of a dataclass and of those that it holds, by the names of the fields that lead to them."""
    hints = typing.get_type_hints(table)
    fields = {field.name.replace("_", mark): hints[field.name] for field in dataclasses.fields(table)}
    yield name, set(fields)
    for field, hint in fields.items():
        for part in _dataclasses(hint):
            if part not in above:
                which = f"={_kind(part)}" if _kind(part) else ""
                yield from _tables(part, f"{name}.{field}{which}", mark, (*above, table))


def _dataclasses(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _dataclasses(part)


def written(what: Interface) -> str:
    """Return the text of the file, a name a line."""
    sections = (
        f"  {json.dumps(section)}: {{\n"
        + ",\n".join(f"    {json.dumps(name)}: {json.dumps(parts)}" for name, parts in sorted(names.items()))
        + "\n  }"
        for section, names in what.items()
    )
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    now, before = interface(), committed() if FILE.exists() else {}
    FILE.write_text(
        written(
            {
                section: {
                    name: sorted({*parts, *before.get(section, {}).get(name, ())})
                    for name, parts in {**before.get(section, {}), **names}.items()
                }
                for section, names in now.items()
            }
        )
    )
