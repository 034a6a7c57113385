"""Commands that a person may send to a run, and the reply: one line with a JSON object each way.

In: commands of a front end. Out: lines, and back, strictly: an unknown key, kind or type is refused. Regions and
candidates are named by their full ids. Only the standard library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from agentcompile.events import clean
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.template import Params

LINE_BYTES = 64 << 10
"""The longest line in either direction; a longer one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Hold the session before its next candidate; what is under way is finished and kept."""

    kind: Literal["pause"] = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Continue after `Pause`."""

    kind: Literal["resume"] = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Give up a candidate that has no verdict yet; its worker is killed."""

    kind: Literal["cancel"] = "cancel"
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Forget a candidate's trials and evaluate it again."""

    kind: Literal["rerun"] = "rerun"
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Evaluate the candidate of the same template with these parameters: all of them, in the template's order."""

    kind: Literal["edit"] = "edit"
    candidate: str
    params: Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """Let a region run what was chosen for it.

    `approval` is the digest of what the person saw; empty stands for the present one. An outdated digest is refused.
    """

    kind: Literal["approve"] = "approve"
    region: str
    approval: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Let a region run as captured, in PyTorch."""

    kind: Literal["reject"] = "reject"
    region: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Let a region run another candidate than the one chosen; it must have passed every check."""

    kind: Literal["override"] = "override"
    region: str
    candidate: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Take back the last decision, with every region that it decided at once."""

    kind: Literal["undo"] = "undo"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveSafe:
    """Approve every undecided region whose kernel is faster beyond its interval and passed every check."""

    kind: Literal["approve-safe"] = "approve-safe"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectRest:
    """Reject every region that is undecided or whose approval is stale."""

    kind: Literal["reject-rest"] = "reject-rest"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLock:
    """Ask whether the lock may be written now; `compile --resume` of the run then writes it."""

    kind: Literal["write-lock"] = "write-lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the compiler; the run can be resumed later with `compile --resume`."""

    kind: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Record that a screen follows the run and draws at most `ui_hz` times a second."""

    kind: Literal["watch"] = "watch"
    ui_hz: float


Command = (
    Pause | Resume | Cancel | Rerun | Edit | Approve | Reject | Override | Undo | ApproveSafe | RejectRest | WriteLock
    | Stop | Watch
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a command; when it was refused, `text` says why and what would help, and nothing was changed."""

    ok: bool
    text: str


def line_of(message: Command | Reply) -> bytes:
    """Return a command or a reply as the line that is sent."""
    return canonical(encode(message)) + b"\n"


def command_in(line: bytes) -> Command:
    """Return the command in a line.

    Raises:
        CodecError: the line is not a command.
    """
    command: Command = decode(Command, _value(line), "command")
    return command


def reply_in(line: bytes) -> Reply:
    """Return the reply in a line, its text cleaned.

    Raises:
        CodecError: the line is not a reply.
    """
    reply: Reply = decode(Reply, _value(line), "reply")
    return Reply(ok=reply.ok, text=clean(reply.text, lines=True))


def _value(line: bytes) -> Json:
    if len(line) > LINE_BYTES:
        raise CodecError(f"{len(line)} bytes in one line, more than {LINE_BYTES}")
    if not line.endswith(b"\n"):
        raise CodecError("the line is cut off")
    try:
        value: Json = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from error
    return value
