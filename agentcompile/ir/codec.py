"""Converts dataclasses to plain JSON and back, strictly: unknown keys, wrong types and missing fields are refused.

Unions of dataclasses are told apart by a ``kind`` field of type ``Literal["…"]``. Tuples become lists. A float that
JSON lacks becomes the text ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``, as in pydantic: the error of a wrong kernel
may be infinite, and must still be reported.

This is for our own files and pipes (events, worker frames, the measurement database). Files that people write
(templates, configuration, locks) are read by `agentcompile.catalog.decode`, whose errors name file and key.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Literal, TypeVar, Union, cast

from agentcompile.ir.digest import Json

T = TypeVar("T")


class CodecError(ValueError):
    """A value that does not have the shape its type declares; the message starts with its path."""


def encode(value: object) -> Json:
    """Turn dataclasses, tuples, mappings and scalars into plain JSON values.

    Raises:
        CodecError: a value has another type.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else _told(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: encode(getattr(value, name)) for name in _fields(type(value))}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    raise CodecError(f"cannot encode a {type(value).__name__}")


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _told(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def lean(value: object) -> Json:
    """Return `encode`'s output without fields at their defaults, so that a new optional field changes no identity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = _fields(type(value)).values()
        told = [field for field in fields if getattr(value, field.name) != _default(field)]
        return {field.name: lean(getattr(value, field.name)) for field in told}
    if isinstance(value, (tuple, list)):
        return [lean(item) for item in value]
    return encode(value)


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default is not dataclasses.MISSING else dataclasses.MISSING


@functools.cache
def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _tag(cls: type) -> str | None:
    hint = _hints(cls).get("kind")
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Literal else None


def decode(cls: type[T] | Any, data: Json, path: str = "$") -> T:
    """Rebuild a value of type `cls` from `encode`'s output.

    Raises:
        CodecError: the data does not fit the type; the message has the path of the first fault.
    """
    try:
        return cast(T, _decoder(cast(Hashable, cls))(data))
    except _FaultError as fault:
        raise CodecError(f"{path}{''.join(reversed(fault.steps))}: {fault.reason}") from None


def decode_bare(cls: type[T] | Any, data: Json, path: str = "$") -> T:
    """Rebuild a value like `decode`, without calling `__post_init__` of the outermost dataclass.

    Use it only where `__post_init__` has nothing left to do.

    Raises:
        CodecError: the data does not fit the type; the message has the path of the first fault.
    """
    try:
        return cast(T, _decoder_bare(cast(Hashable, cls))(data))
    except _FaultError as fault:
        raise CodecError(f"{path}{''.join(reversed(fault.steps))}: {fault.reason}") from None


Decoder = Callable[[Json], object]


class _FaultError(Exception):
    """The reason of a fault, and the steps from it to the outermost value, one a level."""

    def __init__(self, reason: str, *steps: str) -> None:
        self.reason, self.steps = reason, list(steps)


@functools.cache
def _decoder(hint: Hashable) -> Decoder:
    """Return the decoder of one type; it is made once, because a frame holds thousands of values of each type."""
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(typing.get_args(hint))
    if origin is Literal:
        return _literal(typing.get_args(hint))
    if origin is tuple:
        args = typing.get_args(hint)
        return _sequence(args[0]) if len(args) == 2 and args[1] is Ellipsis else _fixed(args)
    if origin is dict:
        return _table(typing.get_args(hint)[1])
    return _dataclass(cast(type, hint)) if dataclasses.is_dataclass(hint) else _scalar(hint)


@functools.cache
def _decoder_bare(hint: Hashable) -> Decoder:
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    return _union(options, lambda option: _dataclass(option, _bare(option)))


def _bare(cls: Any) -> Callable[..., object]:
    """Return a function that makes a dataclass like its own `__init__`, without calling `__post_init__`."""
    fields = _fields(cls)
    assert all(field.default_factory is dataclasses.MISSING for field in fields.values()), cls
    defaults = {name: field.default for name, field in fields.items() if field.default is not dataclasses.MISSING}

    def make(**values: object) -> object:
        made = object.__new__(cls)
        for name, value in (defaults | values).items():
            object.__setattr__(made, name, value)
        return made

    return make


_MOST = int(sys.float_info.max)
"""The largest integer that fits a float."""


def _scalar(hint: Any) -> Decoder:
    name = getattr(hint, "__name__", hint)

    known = hint in (bool, int, float, str, type(None))

    def scalar(data: Json) -> object:
        if type(data) is hint and known:
            return data
        if hint is float and type(data) is int and abs(data) <= _MOST:
            return float(data)
        if hint is float and isinstance(data, str) and data in _NOT_FINITE:
            return _NOT_FINITE[data]
        raise _FaultError(f"expected {name}, got {data!r:.80}")

    return scalar


def _literal(allowed: tuple[Any, ...]) -> Decoder:
    def literal(data: Json) -> object:
        if data not in allowed:
            raise _FaultError(f"{data!r} is not one of {allowed}")
        return data

    return literal


def _sequence(of: Any) -> Decoder:
    item = _later(of)

    def sequence(data: Json) -> object:
        if not isinstance(data, list):
            raise _FaultError(f"expected a list, got {type(data).__name__}")
        return _each(itertools.repeat(item), data) if data else ()

    return sequence


def _fixed(args: tuple[Any, ...]) -> Decoder:
    items = [_later(arg) for arg in args]

    def fixed(data: Json) -> object:
        if not isinstance(data, list):
            raise _FaultError(f"expected a list, got {type(data).__name__}")
        if len(items) != len(data):
            raise _FaultError(f"expected {len(items)} items, got {len(data)}")
        return _each(items, data)

    return fixed


def _each(items: Iterable[Decoder], data: list[Json]) -> tuple[object, ...]:
    found: list[object] = []
    try:
        for item, one in zip(items, data, strict=False):
            found.append(item(one))
    except _FaultError as fault:
        fault.steps.append(f"[{len(found)}]")
        raise
    return tuple(found)


def _table(of: Any) -> Decoder:
    item = _later(of)

    def table(data: Json) -> object:
        if not isinstance(data, dict):
            raise _FaultError(f"expected a table, got {type(data).__name__}")
        return {key: _under(f".{key}", item, one) for key, one in data.items()}

    return table


def _union(options: tuple[Any, ...], of: Callable[[Any], Decoder] | None = None) -> Decoder:
    of = of or _later
    tagged = {_tag(cast(type, option)): of(option) for option in reversed(options) if dataclasses.is_dataclass(option)}
    decoders = [of(option) for option in options]

    tells = len(tagged) == len(options) and None not in tagged

    def union(data: Json) -> object:
        if tells and isinstance(data, dict) and "kind" not in data:
            raise _FaultError("missing", ".kind")
        if isinstance(data, dict) and "kind" in data:
            kind = data["kind"]
            chosen = tagged.get(kind) if isinstance(kind, str) else None
            if chosen is None:
                raise _FaultError(f"{kind!r} is unknown", ".kind")
            return chosen(data)
        for decoder in decoders:
            try:
                return decoder(data)
            except _FaultError:
                continue
        raise _FaultError(f"{data!r:.80} fits none of the allowed types")

    return union


_SHAPES = 64
"""Most shapes of one table that are remembered: our own tables have few, others are not worth remembering."""


def _dataclass(cls: type, make: Callable[..., object] | None = None) -> Decoder:
    """Return the decoder of a dataclass, which checks tables of one shape thoroughly only once.

    A shape is the keys in their order and the types of their values. For later tables of the same shape it decodes only
    the values that their type alone does not prove valid.
    """
    make = make or cls
    thorough, items = _thorough(cls, make), {name: _later(hint) for name, hint in _hints(cls).items()}
    told = {name: hint for name, hint in _hints(cls).items() if hint in (bool, int, float, str)}
    shapes = dict[tuple[object, ...], tuple[str, ...]]()

    def made(data: Json) -> object:
        if type(data) is not dict:
            return thorough(data)
        shape = (*data, *map(type, data.values()))
        left = shapes.get(shape)
        if left is None:
            value = thorough(data)
            if len(shapes) < _SHAPES:
                shapes[shape] = tuple(name for name, one in data.items() if told.get(name) is not type(one))
            return value
        if not left:
            return make(**data)
        values, name = dict[str, object](data), ""
        try:
            for name in left:
                values[name] = items[name](data[name])
        except _FaultError as fault:
            fault.steps.append(f".{name}")
            raise
        return make(**values)

    return made


def _thorough(cls: type, make: Callable[..., object]) -> Decoder:
    hints, fields = _hints(cls), _fields(cls)
    items = {name: _later(hints[name]) for name in fields}
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def made(data: Json) -> object:
        if not isinstance(data, dict):
            raise _FaultError(f"expected a table for {cls.__name__}, got {type(data).__name__}")
        if not data.keys() <= items.keys():
            raise _FaultError("unknown key", f".{min(data.keys() - items.keys())}")
        values, name = dict[str, object](), ""
        try:
            for name, one in data.items():
                values[name] = items[name](one)
        except _FaultError as fault:
            fault.steps.append(f".{name}")
            raise
        for name in required:
            if name not in values:
                raise _FaultError("missing", f".{name}")
        return make(**values)

    return made


def _under(step: str, item: Decoder, data: Json) -> object:
    try:
        return item(data)
    except _FaultError as fault:
        fault.steps.append(step)
        raise


def _later(hint: Any) -> Decoder:
    """Return a decoder that is made at its first use, because types may contain themselves."""
    if hint in (bool, int, float, str):
        return _decoder(hint)
    made: Decoder | None = None

    def decoder(data: Json) -> object:
        nonlocal made
        if made is None:
            made = _decoder(hint)
        return made(data)

    return decoder
