"""Commands and replies as they travel: every one comes back as it was, nothing else is taken."""

from __future__ import annotations

import typing

import pytest

from agentcompile.control.commands import (
    LINE_BYTES,
    Command,
    Edit,
    Override,
    Pause,
    Reply,
    Stop,
    command_in,
    line_of,
    reply_in,
)
from agentcompile.ir.codec import CodecError

FIELDS: dict[str, object] = {
    "candidate": "c",
    "region": "r",
    "reason": "why",
    "params": (("ROWS", 4), ("MODE", "x")),
    "ui_hz": 2.0,
}


def one_of_each() -> list[Command]:
    kinds = typing.get_args(Command)
    return [kind(**{name: FIELDS[name] for name in kind.__dataclass_fields__ if name in FIELDS}) for kind in kinds]


@pytest.mark.parametrize("command", one_of_each(), ids=lambda command: command.kind)
def test_a_command_travels_on_one_line_and_comes_back(command: Command) -> None:
    line = line_of(command)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert command_in(line) == command


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"kind":"pause"}',
        b'{"kind":"explode"}\n',
        b'{"kind":"pause","now":true}\n',
        b'{"kind":"override","region":"r","candidate":"c"}\n',
        b'{"kind":"approve","region":7}\n',
        b'{"kind":"watch","ui_hz":"2"}\n',
        b'{"kind":"edit","candidate":"c","params":[["ROWS",1.5]]}\n',
        b'{"kind":"undo"' + b" " * LINE_BYTES + b"}\n",
        b"[" * 60_000 + b"\n",
    ],
)
def test_anything_else_is_no_command(line: bytes) -> None:
    with pytest.raises(CodecError):
        command_in(line)


def test_a_reply_is_clean_when_it_is_read() -> None:
    line = line_of(Reply(ok=False, text="no\x1b]52;c;AAAA\x07 more\u202e"))
    assert reply_in(line) == Reply(ok=False, text="no more")


def test_an_override_cannot_be_said_without_a_reason() -> None:
    with pytest.raises(TypeError):
        Override(region="r", candidate="c")  # type: ignore[call-arg]
    assert Edit(candidate="c", params=()).kind == "edit"
    assert (Pause().kind, Stop().kind) == ("pause", "stop")
