"""Checks of arguments: plain values of the right type and range, or a usage error that names argument and value.

In: whatever a program or a command line gave. Out: `int`, `float`, `bool`, `str`, `Path` or token ids. Whole numbers
(`__index__`) and real numbers (`__float__`) of other libraries are accepted; a bool is not a number, and bytes are not
text.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentcompile.errors import AgentCompileError

LONGEST_PATH, LONGEST_NAME = 4095, 255
"""The most bytes that Linux accepts in a path, and in one part of a path."""
MOST_IDS = 1 << 24
"""The most token ids that are accepted: more than any KV cache holds, because a `range` may be longer than memory."""
OPENAI_ADVISOR = re.compile(r"openai:(?P<model>[^\s@]{1,200})(@(?P<url>https?://[^\s@]{1,500}))?")
"""The form of an adviser that is a model: `openai:MODEL[@BASE_URL]`."""
_SHOWN = 60
_IDS = "a text, or a list of token ids (int)"


def whole(name: str, value: Any, least: int, most: int, hint: str = "") -> int:
    """Return `value` as a whole number from `least` to `most`; `hint` says what else is allowed.

    Raises:
        AgentCompileError: it is not a whole number, or is out of range (usage).
    """  # noqa: DOC501
    if type(value) is int and least <= value <= most:  # the usual case, on the way to a first token
        return value
    allowed = f"a whole number from {least} to {most}" + (f", {hint}" if hint else "")
    with _own_code(name, value, allowed):
        if _is_bool(value) or not hasattr(value, "__index__"):
            raise TypeError
        number = int(value.__index__())
    if not least <= number <= most:
        raise wrong(name, value, allowed)
    return number


def one_or_more(name: str, value: Any, least: int, most: int) -> tuple[int, ...]:
    """Return one whole number from `least` to `most`, or a list or array of them, as a tuple.

    Raises:
        AgentCompileError: it is neither, or a number is out of range (usage).
    """
    with _own_code(name, value, f"a whole number from {least} to {most}, or a list of them"):
        single = not hasattr(value, "__len__") or (hasattr(value, "__index__") and not getattr(value, "ndim", 0))
    return tuple(whole(name, one, least, most) for one in ([value] if single else ids(name, value)))


def real(name: str, value: object, least: float, most: float, hint: str) -> float:
    """Return `value` as a finite number from `least` to `most`; `hint` says what its values mean.

    Raises:
        AgentCompileError: it is not a number, not finite, or out of range (usage).
    """  # noqa: DOC501
    if type(value) is float and least <= value <= most:
        return value
    allowed = f"a number from {least:g} to {most:g}; {hint}"
    with _own_code(name, value, allowed):  # an array of several numbers, or an enormous int
        if _is_bool(value) or isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    if not (math.isfinite(number) and least <= number <= most):
        raise wrong(name, value, allowed)
    return number


def switch(name: str, value: object) -> bool:
    """Return `value`, which must be True or False.

    Raises:
        AgentCompileError: it is not a bool (usage).
    """  # noqa: DOC501
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def text(name: str, value: object) -> str:
    """Return `value` as a plain `str` that UTF-8 can encode.

    A lone surrogate, as command-line arguments that are not UTF-8 leave behind, cannot be encoded.

    Raises:
        AgentCompileError: it is not a `str`, or holds a lone surrogate (usage).
    """  # noqa: DOC501
    if not isinstance(value, str):
        raise wrong(name, value, "a text (str)")
    try:  # `str`'s own methods: a derived class may do anything
        encoded = str.encode(value, "utf-8")
    except UnicodeEncodeError as error:
        letter = str.__getitem__(value, error.start)
        said = f"{name}: character {error.start} is a lone surrogate ({letter!a}), which is no text"
        raise AgentCompileError(said, hint="give text that is valid UTF-8") from None
    return value if type(value) is str else encoded.decode("utf-8")


def texts(name: str, value: object) -> tuple[str, ...]:
    """Return one text, or a list or tuple of texts, as a tuple.

    Raises:
        AgentCompileError: it is neither, or an item is not a text (usage).
    """  # noqa: DOC501
    if isinstance(value, str):
        return (text(name, value),)
    if not isinstance(value, (list, tuple)):
        raise wrong(name, value, "a text, or a list of texts")
    return tuple(text(f"{name}[{index}]", one) for index, one in enumerate(value))


def path(name: str, value: object) -> str:
    """Return the text of a path that a file system could hold.

    Raises:
        AgentCompileError: it is not a path, holds a NUL character, or is too long (usage).
    """  # noqa: DOC501
    if not isinstance(value, (str, Path)):
        raise wrong(name, value, "a path (str or pathlib.Path)")
    said = text(name, value if isinstance(value, str) else str(value))
    if "\0" in said:
        raise wrong(name, value, "a path without NUL characters")
    if len(os.fsencode(said)) > LONGEST_PATH or any(len(os.fsencode(one)) > LONGEST_NAME for one in said.split("/")):
        raise wrong(name, value, f"a path of at most {LONGEST_PATH} bytes, {LONGEST_NAME} in each part")
    return said


def located(name: str, value: str, base: Path) -> str:
    """Return an absolute path, relative to `base` where `value` is relative; an empty `value` stays empty.

    A leading `~` stands for a user's home directory.

    Raises:
        AgentCompileError: it is not a valid path, or names a user who does not exist (usage).
    """
    try:
        return str(base / Path(path(name, value)).expanduser()) if value else ""
    except RuntimeError as error:  # a user that does not exist
        raise AgentCompileError(f"{name}: {value[:_SHOWN]!a}: {error}", hint="give the whole path") from None


def adviser(name: str, text: str, base: Path) -> str:
    """Return the spelling of an adviser, with a replay's folder made absolute.

    Raises:
        AgentCompileError: the text names no adviser (usage).
    """
    word, _, rest = text.partition(":")
    if text in ("heuristic", "none") or (word == "random" and rest.isascii() and rest.isdecimal()):
        return text
    if word == "replay" and rest:
        return f"replay:{located(name, rest, base)}"
    if text.isprintable() and (found := OPENAI_ADVISOR.fullmatch(text)) is not None:
        try:
            parts = urlsplit(found["url"] or "")
            served = not parts.scheme or (bool(parts.hostname) and parts.port != 0)
        except ValueError as error:  # brackets without an address, or an invalid port
            raise AgentCompileError(f"{name}: {text!r}: {error}", hint="http://HOST:PORT/v1, or https") from error
        if not served:
            raise AgentCompileError(f"{name}: {text!r} names no host, or port 0", hint="http://HOST:PORT/v1, or https")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            hint = "name the variable that holds the key with --advisor-key"
            raise AgentCompileError(f"{name}: a base URL holds no key, user or query", hint=hint)
        return text
    allowed = "heuristic, none, random:SEED, openai:MODEL[@BASE_URL] or replay:DIR"
    raise AgentCompileError(f"{name}: {text[:80]!r} is not allowed", hint=f"allowed: {allowed}")


def prices(text: str) -> tuple[float, float] | None:
    """Return dollars for a million tokens of prompt and of answer, from ``IN,OUT``; None for any other text."""
    parts = text.split(",")
    if len(parts) != 2 or not all(re.fullmatch(r"\d{1,6}(\.\d{1,6})?", part.strip()) for part in parts):
        return None
    return float(parts[0]), float(parts[1])


def listed(name: str, value: Any) -> Sequence[Any]:
    """Return a list, a tuple or an array of any library as a sequence; its items are not checked.

    Raises:
        AgentCompileError: it is not a sequence of items (usage).
    """  # noqa: DOC501
    if isinstance(value, array) and value.typecode == "q":
        return value
    with _own_code(name, value, _IDS):
        found: Any = value.tolist() if hasattr(value, "tolist") and not isinstance(value, memoryview) else value
        if not isinstance(found, Sequence) or isinstance(found, (str, bytes, bytearray, memoryview)):
            raise TypeError
        len(found)
    return found


def ids(name: str, value: Any, most: int = MOST_IDS) -> array[int]:
    """Return token ids as an array of 64-bit numbers, from a list, a tuple or a one-dimensional array of whole numbers.

    Thousands of ids take microseconds, because the check looks at each type once, not at each item.

    Raises:
        AgentCompileError: there are more than `most` ids, or an item is not a whole number of 64 bits (usage).
    """  # noqa: DOC501
    found = listed(name, value)
    if isinstance(found, array) and found.typecode == "q":
        return found
    if len(found) > most:
        raise AgentCompileError(f"{name}: {len(found)} numbers", hint=f"give at most {most}")
    with _own_code(name, value, _IDS):
        kinds = set(map(type, found))
        for kind in kinds:
            if kind is bool or not hasattr(kind, "__index__"):
                index = next(i for i, one in enumerate(found) if type(one) is kind)
                raise wrong(f"{name}[{index}]", found[index], "a token id (int)")
        if kinds - {int} and (truths := [index for index, one in enumerate(found) if _is_bool(one)]):
            raise wrong(f"{name}[{truths[0]}]", found[truths[0]], "a token id (int)")
        try:
            return array("q", iter(found))
        except OverflowError:
            index = next(i for i, one in enumerate(found) if not -(1 << 63) <= int(one) < 1 << 63)
            raise wrong(f"{name}[{index}]", found[index], "a token id, which 64 bits hold") from None


def rows(value: Any) -> list[Any] | None:
    """Return the rows of a two-dimensional array of any library, as lists; None for anything else."""
    try:
        if isinstance(value, (str, bytes, list, tuple)) or getattr(value, "ndim", 0) != 2:
            return None
        return list(value.tolist())
    except Exception:  # noqa: BLE001 - a caller's own code may do anything; what it is as one prompt is said then
        return None


def is_batch(prompt: object) -> bool:
    """Return whether `prompt` is a list of prompts rather than one prompt: whether its first item is a sequence."""
    try:
        if not isinstance(prompt, (list, tuple)) or not prompt:
            return False
        return isinstance(prompt[0], Sequence) or getattr(prompt[0], "ndim", 0) > 0
    except Exception:  # noqa: BLE001 - a caller's own code may do anything; what it is as one prompt is said then
        return False


def _is_bool(value: object) -> bool:
    """Return whether `value` is True or False, in the bool type of any library."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


@contextmanager
def _own_code(name: str, value: object, allowed: str) -> Iterator[None]:
    """Turn any exception that the value's own code raises into the usage error of `wrong`.

    Raises:
        AgentCompileError: the block raised; an AgentCompileError of the block passes through unchanged.
    """  # noqa: DOC501
    try:
        yield
    except AgentCompileError:
        raise
    except Exception:  # noqa: BLE001 - a caller's own __index__, __float__ or __len__ may do anything
        raise wrong(name, value, allowed) from None


def wrong(name: str, value: object, allowed: str) -> AgentCompileError:
    """Return the usage error for an argument: its name, its value cut short, its type, and what is allowed."""
    return AgentCompileError(
        f"{name}: {shown(value)} ({type(value).__name__}) is not allowed", hint=f"allowed: {allowed}"
    )


def shown(value: object) -> str:
    """Return a value as messages show it: in ASCII, on one line, cut short."""
    try:
        value = str(value) if isinstance(value, Path) else value
        text = ascii(value[:_SHOWN] if isinstance(value, (str, bytes, bytearray, list, tuple)) else value)
    except Exception:  # noqa: BLE001 - a caller's own __repr__ may do anything
        text = "?"
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * _SHOWN]).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
