"""The verbs `replay`, `bundle`, `generate` and `verify`, which use a lock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentcompile.cli.flow import REAL, Flow, Piece, Request
from agentcompile.cli.render import Reporter, Screen
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit, Event, StageStarted, Warned
from agentcompile.ir.digest import Json
from agentcompile.lockfile.bundle import beside
from agentcompile.options import resolve
from agentcompile.runs.tables import Table, amount, state_json


def replay(
    flags: Mapping[str, object], lock: Path, *, locked: bool, check: bool, screen: Screen, flow: Flow = REAL
) -> int:
    """Rebuild and validate a lock here, or with `check` only compare it; no adviser, no network."""
    options = resolve(flags).options
    begin = time.monotonic()
    with Reporter(screen) as reporter:
        flow.replay(lock, options, reporter, locked, check)
    done = "holds here" if check else "is ready"
    screen.text(f"{lock} {done} ({time.monotonic() - begin:.1f} s, {len(reporter.state.drift)} drifted fields)")
    screen.json({**state_json(reporter.state), "path": str(lock)})
    return 0


def bundle(flags: Mapping[str, object], lock: Path, out: Path | None, *, screen: Screen, flow: Flow = REAL) -> int:
    """Write a lock with everything that its kernels are made from to one file, by default beside the lock."""
    file = out or beside(lock)
    kernels, size = flow.bundle(lock, resolve(flags).options, file)
    screen.text(f"{file}: {kernels} kernels with their templates, {amount(size)}")
    screen.json({"lock": str(lock), "file": str(file), "kernels": kernels, "bytes": size})
    return 0


def _warnings(screen: Screen) -> Emit:

    def emit(event: Event) -> None:
        if isinstance(event, Warned):
            screen.say(f"warning: {event.text}")
        elif isinstance(event, StageStarted) and event.detail:
            screen.say(event.detail)

    return emit


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a generation was: the first piece waits for the prompt, the pieces after it give the rate."""

    tokens: int
    rest: int
    """Tokens that came after the first piece."""
    first_s: float
    rest_s: float

    @property
    def tokens_per_s(self) -> float:
        """The rate after the first piece, in tokens/s; 0 when nothing came after it."""
        return self.rest / self.rest_s if self.rest and self.rest_s > 0 else 0.0


def generate(
    flags: Mapping[str, object],
    lock: Path,
    request: Request,
    *,
    beside_eager: bool,
    screen: Screen,
    flow: Flow = REAL,
) -> int:
    """Stream text from a lock; with `beside_eager`, time the same request in PyTorch eager after it.

    Raises:
        AgentCompileError: the prompt is empty, or the lock cannot be run (usage).
    """
    options = resolve(flags).options
    if not request.prompt:
        raise AgentCompileError("--prompt: is empty", hint="give at least one token to go on from")
    pieces = flow.generate(lock, options, request, _warnings(screen))
    screen.text(request.prompt, end="")
    text, speed = _stream(pieces, screen)
    screen.text("")
    screen.say(f"agentcompile  {_speed(speed)}")
    result: dict[str, Json] = {
        "text": text,
        "tokens": speed.tokens,
        "first_s": speed.first_s,
        "tokens_per_s": speed.tokens_per_s,
    }
    if beside_eager:
        _, eager = _stream(flow.eager(lock, options, request), None)
        ratio = speed.tokens_per_s / eager.tokens_per_s if eager.tokens_per_s else 0.0
        screen.say(f"PyTorch eager {_speed(eager)}; agentcompile is {ratio:.2f}× as fast")
        result |= {"eager_tokens_per_s": eager.tokens_per_s, "ratio": ratio}
    screen.json(result)
    return 0


def _stream(pieces: Iterator[Piece], screen: Screen | None) -> tuple[str, Speed]:
    begin = time.perf_counter()
    first = last = begin
    tokens, rest, text = 0, 0, ""
    for piece in pieces:
        last = time.perf_counter()
        if tokens == 0:
            first = last
        else:
            rest += piece.tokens
        tokens += piece.tokens
        text += piece.text
        if screen is not None:
            screen.text(piece.text, end="")
    return text, Speed(tokens=tokens, rest=rest, first_s=first - begin, rest_s=last - first)


def _speed(speed: Speed) -> str:
    return f"{speed.tokens} tokens, first after {speed.first_s * 1e3:.0f} ms, then {speed.tokens_per_s:.1f} tokens/s"


def verify(flags: Mapping[str, object], lock: Path, prompts: Path, *, screen: Screen, flow: Flow = REAL) -> int:
    """Measure a lock's end-to-end accuracy on the user's prompts, one per line of a file.

    Raises:
        AgentCompileError: the file cannot be read, or has no prompt (usage).
    """
    options = resolve(flags).options
    try:
        lines = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise AgentCompileError(f"{prompts}: cannot be read: {error}", hint="a text file, one prompt a line") from error
    if not lines:
        raise AgentCompileError(f"{prompts}: holds no prompt", hint="a text file, one prompt a line")
    figures = flow.verify(lock, options, lines, _warnings(screen))
    rows = [(name, value if isinstance(value, str) else f"{value:.4g}") for name, value in figures.items()]
    screen.table(Table(heads=("figure", "value"), rows=rows))
    screen.json(dict(figures))
    return 0
