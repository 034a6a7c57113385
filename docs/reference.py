"""Writes `docs/reference.md` from the code: verbs and flags, settings, exit codes, the Python API, events, locks.

`python docs/reference.py` rewrites the page; with `--check` it exits with 1 when the page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import front_ends
import typer

import agentcompile
from agentcompile import errors, events, options
from agentcompile.cli import main as _every_verb  # noqa: F401 - it adds the groups of verbs
from agentcompile.cli.verbs import app
from agentcompile.lockfile import schema

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Generated from the code by `python docs/reference.py`; a test holds both together.

"""
_SHORT = 100
"""The characters of a signature that is shown on one line."""
_ITEM = re.compile(r"\n\s*(?=- )")
_AFTER = re.compile(r"\n\s*(?:Raises|Args|Returns|Yields):\n.*", re.S)


def page() -> str:
    """Return the whole page."""
    parts = (commands(), settings(), exit_codes(), python_api(), event_stream(), lock_file())
    return HEAD + "\n".join("\n".join(part) + "\n" for part in parts)


def commands() -> Iterator[str]:
    """Yield a section for each verb: what it does, how it is called, and its flags."""
    yield "## Command line"
    yield ""
    yield "Options of `agentcompile bench` without a recipe are those of `bench run`; alone it lists the recipes."
    root = typer.main.get_command(app)
    yield ""
    yield "| | |"
    yield "|---|---|"
    for one in root.params:
        yield f"| `{one.opts[0]}` | {_cell(one.help or '')} |"
    yield from _group(root, "agentcompile")
    yield from front_ends.sections(_plain, _cell)


def _group(group: Any, name: str) -> Iterator[str]:
    for verb, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _group(command, f"{name} {verb}")
        elif getattr(command, "help", "") and command.params:
            # The command behind `refine MODEL` has no name of its own.
            yield from _command(command, name if command.hidden else f"{name} {verb}")


def _command(command: Any, name: str) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    flags = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    words = [_called(one) if one.required else f"[{_called(one)}]" for one in arguments]
    yield ""
    yield f"### {' '.join([name, *words])}"
    yield ""
    yield _plain(command.help)
    yield ""
    yield "| | |"
    yield "|---|---|"
    for one in arguments:
        yield f"| `{_called(one)}` | {_cell(one.help or '')} |"
    for one in flags:
        shown = " ".join(filter(None, (", ".join([*one.opts, *one.secondary_opts]), _value(one))))
        yield f"| `{_cell(shown)}` | {_cell(one.help or '')} |"


def _called(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _value(flag: Any) -> str:
    return "" if flag.is_flag else str(flag.metavar or flag.type.name.upper())


def settings() -> Iterator[str]:
    """Yield the table of settings, which flags, variables and files share."""
    usual = options.Options()
    yield "## Settings"
    yield ""
    yield "A flag `--name`, a variable `AGENTCOMPILE_NAME`, or a key of `agentcompile.toml`: [settings](settings.md)."
    yield ""
    yield "| setting | default | |"
    yield "|---|---|---|"
    for one in options.SETTINGS:
        value = getattr(usual, one.name)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        yield f"| `{one.key}` | {f'`{text}`' if text else ''} | {_cell(one.about)} |"


def exit_codes() -> Iterator[str]:
    """Yield the table of exit codes."""
    yield "## Exit codes"
    yield ""
    yield "| code | meaning |"
    yield "|---|---|"
    for code in errors.ExitCode:
        yield f"| {code.value} | {_cell(errors.MEANINGS[code])} |"
    yield "| 128 + n | ended by signal n |"


def python_api() -> Iterator[str]:
    """Yield the functions and the classes that `agentcompile` exports."""
    yield "## Python"
    functions = {name: getattr(agentcompile, name) for name in sorted(agentcompile.__all__) if name != "__version__"}
    for name, value in functions.items():
        yield ""
        if inspect.ismodule(value):
            yield f"### agentcompile.{name}.wrap"
            yield ""
            yield _called_so("wrap", value.wrap)
            yield ""
            yield _about(value.wrap)
        elif inspect.isclass(value):
            yield f"### class agentcompile.{name}"
            yield ""
            yield _about(value)
            yield from _members(value)
        else:
            yield f"### agentcompile.{name}"
            yield ""
            yield _called_so(name, value)
            yield ""
            yield _about(value)


def _members(owner: type) -> Iterator[str]:
    for name, value in vars(owner).items():
        if name.startswith("_") and name not in ("__enter__",):
            continue
        if inspect.isfunction(value):
            short, about = f"`.{name}{_signature(value)}`", _about(value)
            yield ""
            if len(short) <= _SHORT:
                yield f"{short}: {about}" if about else short
            else:
                yield f"`.{name}(…)`:"
                yield ""
                yield _called_so(name, value)
                yield ""
                yield about
        elif isinstance(value, property):
            yield ""
            yield f"`.{name}`: {_about(value.fget)}"
    if dataclasses.is_dataclass(owner):
        yield ""
        yield from _fields(owner, _documents(sys.modules[owner.__module__]))


def _signature(function: Any) -> str:
    told = inspect.signature(function)
    return str(told.replace(parameters=_parameters(function), return_annotation=inspect.Signature.empty))


def _parameters(function: Any) -> list[inspect.Parameter]:
    return [_shown(one) for one in inspect.signature(function).parameters.values() if one.name != "self"]


def _called_so(name: str, function: Any) -> str:
    """Return how a function is called, as a block of code with a line for each parameter where there are many."""
    short = f"def {name}{_signature(function)}: ..."
    if len(short) <= _SHORT:
        return f"```python\n{short}\n```"
    lines, keywords = [], False
    for one in _parameters(function):
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not keywords:
            lines.append("    *,")
            keywords = True
        lines.append(f"    {one},")
    return "\n".join(["```python", f"def {name}(", *lines, "): ...", "```"])


def _shown(one: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter whose annotation has no quotes, and whose default is a name where it is a function."""
    default: object = one.default
    if inspect.isfunction(default):
        default = _Text(default.__name__)
    elif isinstance(default, str):
        default = _Text(json.dumps(default))
    annotation = _Text(one.annotation) if isinstance(one.annotation, str) else one.annotation
    return one.replace(default=default, annotation=annotation)


class _Text:
    """A text whose representation is itself."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return self._value


def _about(thing: Any) -> str:
    return _plain(_AFTER.sub("", inspect.getdoc(thing) or ""))


def event_stream() -> Iterator[str]:
    """Yield a section for each event of `--events jsonl` and of a run's `events.jsonl`."""
    yield "## Events"
    yield ""
    yield "One JSON object a line in `--events jsonl` and in a run's `events.jsonl`; `kind` says which."
    documents: dict[str, dict[str, str]] = {}
    for one in events.Event.__args__:
        module = sys.modules[one.__module__]
        documents = {**_documents(module), **documents}
        usual = {field.name: field.default for field in dataclasses.fields(one)}
        yield ""
        yield f"### {usual['kind']}"
        yield ""
        yield _about(one)
        yield ""
        yield from _fields(one, documents, leaving=("kind",))


def lock_file() -> Iterator[str]:
    """Yield the tables of a lock."""
    documents = _documents(schema)
    yield "## Lock"
    yield ""
    yield "Plain TOML. Keys are these fields, with hyphens for underscores."
    for name, value in vars(schema).items():
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == schema.__name__:
            yield ""
            yield f"### {name}"
            yield ""
            yield _about(value)
            yield ""
            yield from _fields(value, documents)


def _fields(owner: Any, documents: dict[str, dict[str, str]], leaving: tuple[str, ...] = ()) -> Iterator[str]:
    fields = [one for one in dataclasses.fields(owner) if one.name not in leaving]
    if fields:
        yield "| field | type | |"
        yield "|---|---|---|"
    for one in fields:
        kind = one.type if isinstance(one.type, str) else getattr(one.type, "__name__", str(one.type))
        yield f"| `{one.name}` | `{_cell(kind)}` | {_cell(documents.get(owner.__name__, {}).get(one.name, ''))} |"


def _documents(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return, by class and field, the text under each field of a module's classes."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            for field, text in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    told = textwrap.dedent(str(text.value.value))
                    found.setdefault(node.name, {})[field.target.id] = _plain(told)
    return found


def _plain(text: str) -> str:
    """Return a docstring as Markdown: each paragraph and each item of a list on a line, single backquotes."""
    paragraphs = [
        "\n".join(" ".join(piece.split()) for piece in _ITEM.split(part))
        for part in text.replace("``", "`").strip().split("\n\n")
    ]
    return "\n\n".join(paragraphs)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def run() -> int:
    """Write the page, or with `--check` compare it."""
    new = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run())
