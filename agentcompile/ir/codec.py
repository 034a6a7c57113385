"""Dataclasses to plain JSON and back, strictly: unknown keys, wrong types and missing fields are refused.

Unions of dataclasses are told apart by a ``kind`` field of type ``Literal["…"]``. Tuples travel as lists.
This is for our own files and pipes (events, worker frames, the measurement database); what people write
(templates, configuration, locks) enters through `agentcompile.decode`, whose errors name file and key.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Literal, TypeVar, Union, cast

from agentcompile.ir.digest import Json

T = TypeVar("T")


class CodecError(ValueError):
    """A value that does not have the shape its type declares; the message starts with its path."""


def encode(value: object) -> Json:
    """Turn dataclasses, tuples, mappings and scalars into plain JSON values."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    raise CodecError(f"cannot encode a {type(value).__name__}")


def lean(value: object) -> Json:
    """`encode` without the fields that stand at their defaults: a new optional field changes no identity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = [field for field in dataclasses.fields(value) if getattr(value, field.name) != _default(field)]
        return {field.name: lean(getattr(value, field.name)) for field in told}
    if isinstance(value, (tuple, list)):
        return [lean(item) for item in value]
    return encode(value)


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default is not dataclasses.MISSING else dataclasses.MISSING


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _tag(cls: type) -> str | None:
    hint = _hints(cls).get("kind")
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Literal else None


def decode(cls: type[T] | Any, data: Json, path: str = "$") -> T:
    """Rebuild a value of type `cls` from `encode`'s output; raises `CodecError` with the path of the first fault."""
    return cast(T, _decode(cls, data, path))


def _decode(hint: Any, data: Json, path: str) -> object:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(typing.get_args(hint), data, path)
    if origin is Literal:
        if data not in typing.get_args(hint):
            raise CodecError(f"{path}: {data!r} is not one of {typing.get_args(hint)}")
        return data
    if origin is tuple:
        return _decode_tuple(typing.get_args(hint), data, path)
    if origin is dict:
        if not isinstance(data, dict):
            raise CodecError(f"{path}: expected a table, got {type(data).__name__}")
        of = typing.get_args(hint)[1]
        return {key: _decode(of, item, f"{path}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(cast(type, hint), data, path)
    return _decode_scalar(hint, data, path)


def _decode_scalar(hint: Any, data: Json, path: str) -> object:
    if hint is type(None) and data is None:
        return None
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if hint in (bool, int, float, str) and type(data) is hint:
        return data
    raise CodecError(f"{path}: expected {getattr(hint, '__name__', hint)}, got {data!r:.80}")


def _decode_tuple(args: tuple[Any, ...], data: Json, path: str) -> tuple[object, ...]:
    if not isinstance(data, list):
        raise CodecError(f"{path}: expected a list, got {type(data).__name__}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if len(args) != len(data):
        raise CodecError(f"{path}: expected {len(args)} items, got {len(data)}")
    return tuple(_decode(a, item, f"{path}[{i}]") for i, (a, item) in enumerate(zip(args, data, strict=True)))


def _decode_union(options: tuple[Any, ...], data: Json, path: str) -> object:
    if isinstance(data, dict) and "kind" in data:
        for option in options:
            if dataclasses.is_dataclass(option) and _tag(cast(type, option)) == data["kind"]:
                return _decode(option, data, path)
        raise CodecError(f"{path}.kind: {data['kind']!r} is unknown")
    for option in options:
        try:
            return _decode(option, data, path)
        except CodecError:
            continue
    raise CodecError(f"{path}: {data!r:.80} fits none of the allowed types")


def _decode_dataclass(cls: type, data: Json, path: str) -> object:
    if not isinstance(data, dict):
        raise CodecError(f"{path}: expected a table for {cls.__name__}, got {type(data).__name__}")
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if unknown := sorted(set(data) - set(fields)):
        raise CodecError(f"{path}.{unknown[0]}: unknown key")
    values = {name: _decode(hints[name], item, f"{path}.{name}") for name, item in data.items()}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise CodecError(f"{path}.{name}: missing")
    return cls(**values)
