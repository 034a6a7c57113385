"""Strict decoding of hand-written files: TOML text goes in, our dataclasses or one readable error come out.

Nothing is repaired: unknown keys, missing keys and values of the wrong type are refused with file, key and value, and a
hint that says what is allowed. This is the only module that imports pydantic, and it does so on first use.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import tomllib
import types
import typing
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast

from agentcompile.errors import AgentCompileError, ExitCode

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
MAX_BYTES = 64 * 2**20
"""The most bytes of a text that is decoded; no file of this program is larger."""


def read_text(path: Path, *, file: str = "") -> str:
    """Return the text of a UTF-8 file; `file` is its name in messages, by default its path.

    Raises:
        AgentCompileError: the file cannot be read, is too large, or is not UTF-8 (usage).
    """
    file = file or str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AgentCompileError(f"{file}: cannot be read: {error.strerror or error}", hint="check the path") from error
    if len(data) > MAX_BYTES:
        raise AgentCompileError(f"{file}: {len(data)} bytes, more than {MAX_BYTES}", hint="this is not such a file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = f"{file}:{data[: error.start].count(10) + 1}"
        wrong = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise AgentCompileError(f"{where}: {wrong}", hint="save it as UTF-8") from error


def from_toml(cls: type[T], text: str, *, file: str) -> T:
    """Decode TOML text to the dataclass `cls`.

    Raises:
        AgentCompileError: the text is not TOML or does not fit `cls` (usage); it names `file`, key and value.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AgentCompileError(f"{file}: not TOML: {error}", hint="correct the syntax there") from error
    except RecursionError as error:
        raise AgentCompileError(f"{file}: not TOML: nested too deeply", hint="this is not such a file") from error
    except ValueError as error:  # Python converts no number of thousands of digits
        raise AgentCompileError(f"{file}: not TOML: {error}", hint="numbers have at most 64 bits") from error
    return from_value(cls, data, file=file)


def from_value(cls: type[T], data: object, *, file: str) -> T:
    """Decode tables, arrays and scalars, as a TOML or JSON reader gives them, to the dataclass `cls`.

    Raises:
        AgentCompileError: the data does not fit `cls` (usage); it names `file`, key and value.
    """  # noqa: DOC501
    from pydantic import ValidationError

    _refuse_what_json_lacks(data, "", file)
    try:
        # pydantic reads a table as a dataclass in strict mode only from JSON.
        (value,) = _adapter(cast(Hashable, cls)).validate_json(json.dumps([data]), strict=True)
    except ValidationError as error:
        raise _readable(cls, error, file) from error
    return cast(T, value)


def nearest(word: str, allowed: Sequence[str]) -> str:
    """Return the allowed word that is most like `word`, or an empty string when none is close."""
    return next(iter(difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)), "")


def hint_of(word: str, allowed: Sequence[str], *, what: str = "allowed") -> str:
    """Return a hint for an unknown word, such as ``did you mean `dtypes`? allowed: arch, dtypes, …``."""
    near = nearest(word, allowed)
    listed = f"{what}: {', '.join(allowed)}" if allowed else f"{what}: none"
    return f"did you mean `{near}`? {listed}" if near else listed


@functools.cache
def _adapter(cls: Hashable) -> TypeAdapter[Any]:
    """Return pydantic's strict adapter for a tuple that holds one `cls`.

    For a dataclass alone pydantic accepts no configuration, but it applies that of an enclosing tuple to it.
    """
    from pydantic import ConfigDict, TypeAdapter

    of: Any = types.GenericAlias(tuple, (cls,))
    return TypeAdapter(of, config=ConfigDict(strict=True, extra="forbid"))


def _refuse_what_json_lacks(data: object, path: str, file: str) -> None:
    """Refuse dates, times, infinities, NaN and enormous numbers, which TOML has and none of our files uses."""  # noqa: DOC501
    if isinstance(data, dict):
        for key, item in data.items():
            _refuse_what_json_lacks(item, f"{path}.{key}" if path else str(key), file)
    elif isinstance(data, list):
        for index, item in enumerate(data):
            _refuse_what_json_lacks(item, f"{path}[{index}]", file)
    elif data is not None and not isinstance(data, (bool, int, float, str)):
        raise AgentCompileError(f"{file}: {path}: {data} is a {type(data).__name__}", hint="no key takes one")
    elif isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
        raise AgentCompileError(f"{file}: {path}: {data} is not a finite number", hint="write a finite number")
    elif isinstance(data, int) and not -(1 << 63) <= data < 1 << 64:
        raise AgentCompileError(f"{file}: {path}: a number of more than 64 bits", hint="write a smaller number")


UNKNOWN_KEY = ("unexpected_keyword_argument", "extra_forbidden")


def _readable(cls: type, error: ValidationError, file: str) -> AgentCompileError:
    """Return one error for a person; unknown keys come first, because a misspelt key is reported as missing too."""
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] not in UNKNOWN_KEY)
    fault = faults[0]
    path, hint = _descend(cls, fault["loc"][1:])
    places = {_descend(cls, other["loc"][1:])[0] for other in faults}
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    message, advice = _words(fault["type"], fault["loc"], fault["input"], hint, dict(fault.get("ctx") or {}))
    where = f"{file}: {path}: " if path else f"{file}: "
    return AgentCompileError(f"{where}{message}{more}", exit_code=ExitCode.USAGE, hint=advice)


def _descend(hint: Any, loc: Sequence[int | str]) -> tuple[str, Any]:
    """Return the path of `loc` as people write it, ``launch[0].entry``, and the type declared there.

    For an unknown key the type is that of its table.
    """
    path = ""
    for step in loc:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (Union, types.UnionType):
            continue  # pydantic adds the name of the alternative it tried
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(str(step), hint)
        elif origin is tuple and isinstance(step, int):
            hint = args[0] if args[-1:] == (Ellipsis,) else args[min(step, len(args) - 1)]
        elif origin is dict:
            hint = args[1]
    return path, hint


def _words(kind: str, loc: tuple[int | str, ...], value: object, hint: Any, ctx: dict[str, Any]) -> tuple[str, str]:
    if kind in UNKNOWN_KEY:
        return "unknown key", hint_of(str(loc[-1]), _keys(hint), what="allowed keys")
    if kind == "missing":
        return "missing", f"it takes {_spoken(hint)}"
    if kind == "literal_error":
        allowed = [str(option) for option in typing.get_args(hint)]
        return f"{_shown(value)} is not one of {', '.join(allowed)}", hint_of(str(value), allowed)
    if kind in ("too_long", "too_short"):
        return f"{_shown(value)} has {ctx.get('actual_length', 'too many or few')} items", f"it takes {_spoken(hint)}"
    if kind == "value_error" and "error" in ctx:
        return str(ctx["error"]), f"it takes {_spoken(hint)}"
    return f"{_shown(value)} is not {_spoken(hint)}", f"it takes {_spoken(hint)}"


def _keys(hint: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(hint)] if dataclasses.is_dataclass(hint) else []


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


_SPOKEN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "nothing"}


def _spoken(hint: Any) -> str:
    """Return a type in words: ``an array of texts`` for ``tuple[str, ...]``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SPOKEN:
        return _SPOKEN[hint]
    if origin is Literal:
        return f"one of {', '.join(str(option) for option in args)}"
    if origin in (Union, types.UnionType):
        return " or ".join(_spoken(option) for option in args)
    if origin is tuple and args[-1:] == (Ellipsis,):
        return f"an array of {_plural(args[0])}"
    if origin is tuple:
        return f"an array of {len(args)}: {', '.join(_spoken(item) for item in args)}"
    if dataclasses.is_dataclass(hint):
        return f"a table with {', '.join(_keys(hint))}"
    return "a table" if origin is dict else str(hint)


def _plural(hint: Any) -> str:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_plural(option) for option in typing.get_args(hint))
    if dataclasses.is_dataclass(hint):
        return f"tables with {', '.join(_keys(hint))}"
    plain = {int: "whole numbers", float: "numbers", str: "texts"}
    return plain.get(hint, f"items, each {_spoken(hint)}")
