"""Results of studies on disk: decoded strictly, written whole or not at all, with other files beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, canonical
from agentcompile.runs.session import environment_error
from agentcompile.system.plain_files import write_atomically

T = TypeVar("T")


def kind_of(path: Path) -> str:
    """Return the kind that a result file says it has; empty where it says none or cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""
    return str(found.get("kind", "")) if isinstance(found, dict) else ""


def read_result(path: Path, form: type[T], what: str, *, newest: int, hint: str) -> T:
    """Return the result of `form` in a file; `what` names such a result in messages, `hint` says what to do.

    Raises:
        AgentCompileError: it cannot be read, is no such result, or has a format above `newest` (usage).
    """
    try:
        found: Json = json.loads(path.read_bytes())
        newer = found.get("format") if isinstance(found, dict) else None
        if isinstance(newer, int) and newer > newest:
            raise AgentCompileError(f"{path}: format: {newer} is newer than {newest}", hint="upgrade agentcompile")
        result: T = decode(form, found, form.__name__.lower())
    except OSError as error:
        raise AgentCompileError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    except (CodecError, ValueError, RecursionError) as error:
        raise AgentCompileError(f"{path}: no result of {what}: {str(error)[:200]}", hint=hint) from error
    return result


def write_result(result: object, out: Path) -> None:
    """Write a result as JSON.

    Raises:
        AgentCompileError: the file cannot be written (environment).
    """  # noqa: DOC501
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, canonical(encode(result)) + b"\n")
    except OSError as error:
        raise environment_error(error, out) from error


def write_beside(out: Path, files: Mapping[str, bytes]) -> None:
    """Write files beside `out`, by the suffix that each has in place of its own.

    Raises:
        AgentCompileError: a file cannot be written (environment).
    """  # noqa: DOC501
    for suffix, content in files.items():
        try:
            write_atomically(out.with_suffix(suffix), content)
        except OSError as error:
            raise environment_error(error, out.with_suffix(suffix)) from error


def figure(draw: Callable[[], tuple[bytes, str]], say: Callable[[str], None]) -> dict[str, bytes]:
    """Return the figure's PNG and SVG by suffix; without matplotlib none, and `say` gets the reason."""
    try:
        png, svg = draw()
    except ImportError as error:
        say(f"no figure: {error}; pip install 'agentcompile[bench]'")
        return {}
    return {".png": png, ".svg": svg.encode()}
