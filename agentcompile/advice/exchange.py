"""Exchanges with an adviser on disk, one JSON file each: the prompt, the answer, who answered, and what it used.

A folder of them is all that a replay needs. They are looked up by the region that an answer is about, so regions may be
asked together or one by one. The files may have any origin and are decoded as strictly as an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentcompile.advice.answer import AnswerError, Reading, answer_of, read_answer
from agentcompile.advice.asked import PromptRegion
from agentcompile.advice.prompt import Prompt
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.advice import Usage
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import canonical, digest
from agentcompile.system.plain_files import write_atomically

FORMAT = 1
"""Format version of a file; a greater one is refused."""
MOST_BYTES = 8 << 20
ENDING = ".exchange.json"
Rung = Literal["json_schema", "json_object", "text"]
"""Request format: a JSON schema, any JSON object, or a text with one fenced block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its answer."""

    format: int = FORMAT
    keys: dict[str, str]
    """Key of each question that it answers, by its name: the region's id in a prompt for advice, or an agent's role."""
    model: str
    """Model name that was requested."""
    answered_by: str = ""
    """Model name that the server reported, or the name that whoever recorded the exchange gave."""
    rung: Rung
    system: str
    user: str
    answer: str
    usage: Usage
    at_ms: int
    """Unix time in milliseconds, for people; nothing depends on it."""

    @property
    def digest(self) -> str:
        """The identity of request and answer; time and usage are left out."""
        return digest("exchange/1", self.model, self.rung, self.system, self.user, self.answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An exchange and the accepted part of its answer."""

    exchange: Exchange
    reading: Reading


class Cassette:
    """A folder of exchanges; reading needs no existing folder, and `keep` creates it."""

    def __init__(self, folder: Path) -> None:
        """Read every exchange of `folder`.

        Raises:
            AgentCompileError: a file is not an exchange or has a newer format, or `folder` is a file (usage).
        """
        if folder.exists() and not folder.is_dir():
            raise AgentCompileError(f"{folder}: not a folder", hint="name a folder that holds exchanges, or a new one")
        self.folder = folder
        self._by_key: dict[str, Exchange] = {}
        for path in sorted(folder.glob(f"*{ENDING}")):
            self._index(_read(path))

    def __len__(self) -> int:
        """Return the number of regions with a recorded answer."""
        return len(self._by_key)

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        """The exchanges by digest."""
        return {exchange.digest: exchange for exchange in self._by_key.values()}

    def recall(self, asked: PromptRegion) -> Answered | None:
        """Return the recorded answer about one region; None when there is none."""
        exchange = self._by_key.get(asked.key)
        if exchange is None:
            return None
        alone = Prompt(asked=(asked,), system=exchange.system, user=exchange.user)
        try:
            found = answer_of(exchange.answer, fenced=exchange.rung == "text")
            items = found.get("regions") if isinstance(found, dict) else None
            if isinstance(found, dict) and isinstance(items, list):
                others = set(exchange.keys) - {asked.id}
                found = {**found, "regions": [one for one in items if not _is_of(one, others)]}
            reading = read_answer(found, alone, exchange.model)
        except AnswerError:
            reading = Reading(advice={})
        return Answered(exchange=exchange, reading=reading)

    def get(self, key: str) -> Exchange | None:
        """Return the exchange that answers the question with that key; None when there is none."""
        return self._by_key.get(key)

    def keep(self, exchange: Exchange) -> None:
        """Write an exchange to the folder, whole or not at all.

        Raises:
            AgentCompileError: the file cannot be written (environment).
        """
        path = self.folder / f"{exchange.digest[:32]}{ENDING}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, exchange_bytes(exchange))
        except OSError as error:
            raise AgentCompileError(
                f"{path}: {error.strerror or error}",
                exit_code=ExitCode.ENVIRONMENT,
                hint="free some space, or make the folder writable",
            ) from error
        self._index(exchange)

    def _index(self, exchange: Exchange) -> None:
        for key in exchange.keys.values():
            known = self._by_key.get(key)
            if known is None or known.at_ms <= exchange.at_ms:
                self._by_key[key] = exchange


def exchange_bytes(exchange: Exchange) -> bytes:
    """Return the content of an exchange's file."""
    return canonical(encode(exchange)) + b"\n"


def exchange_in(data: bytes, file: str) -> Exchange:
    """Decode an exchange from the content of `file`.

    Raises:
        AgentCompileError: the content is not an exchange, or has a newer format (usage); the message names `file`.
    """
    remedy = "record it again, or take the file away"
    try:
        found = json.loads(data)
        version = found.get("format") if isinstance(found, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise AgentCompileError(
                f"{file}: format: {version} is newer than the {FORMAT} that this agentcompile reads",
                hint="install the agentcompile that recorded it",
            )
        exchange: Exchange = decode(Exchange, found, "exchange")
    except (CodecError, ValueError, RecursionError) as error:
        raise AgentCompileError(f"{file}: no exchange: {str(error)[:200]}", hint=remedy) from error
    return exchange


def _read(path: Path) -> Exchange:
    try:
        if not path.is_file():  # reading a pipe would block, and a device may never end
            raise AgentCompileError(f"{path}: no exchange: not a file", hint="take it away")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise AgentCompileError(f"{path}: more than {MOST_BYTES} bytes", hint="this is no exchange")
        return exchange_in(data, str(path))
    except OSError as error:
        raise AgentCompileError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error


def _is_of(item: object, ids: set[str]) -> bool:
    name = item.get("region") if isinstance(item, dict) else None
    return isinstance(name, str) and name in ids
