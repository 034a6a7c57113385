"""The verbs `replay`, `bundle`, `generate` and `verify`, which use a lock."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from agentcompile.checkpoint.names import ENDING, PRESET, is_gguf
from agentcompile.cli.flow import REAL, Flow, GenerateRequest, InputPrompt, TextPiece
from agentcompile.cli.render import Reporter, Screen
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit, Event, StageStarted, Warned
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.lockfile.bundle import beside
from agentcompile.measure.clock import Others
from agentcompile.measure.policy import POLICY
from agentcompile.options import resolve
from agentcompile.runs.tables import Table, amount


def refuse_checkpoint(lock: Path) -> None:
    """Refuse a checkpoint in the place of a lock, with what makes a lock of it.

    Raises:
        AgentCompileError: it is a preset, a checkpoint directory or a GGUF file (usage).
    """
    folder = lock.is_dir() and ((lock / "config.json").is_file() or any(lock.glob(f"*{ENDING}")))
    if str(lock).startswith(PRESET) or folder or is_gguf(lock):
        hint = f"run `agentcompile compile {lock}` first"
        raise AgentCompileError(f"{lock}: is a checkpoint, not a lock", hint=hint)


def replay(
    flags: Mapping[str, object], lock: Path, *, locked: bool, check: bool, screen: Screen, flow: Flow = REAL
) -> int:
    """Rebuild and validate a lock here, or with `check` only compare it; no adviser, no network.

    Raises:
        AgentCompileError: the lock does not hold here; programs are told what drifted.
    """
    refuse_checkpoint(lock)
    options = resolve(flags).options
    begin = time.monotonic()
    with Reporter(screen) as reporter:
        try:
            made = flow.replay(lock, options, reporter, locked, check)
        except AgentCompileError as error:
            error.facts = {"lock": str(lock), "drift": encode(reporter.state.drift)}
            raise
    state, seconds = reporter.state, time.monotonic() - begin
    done = "holds here" if check else "is ready"
    screen.text(f"{lock} {done} ({seconds:.1f} s, {len(state.drift)} drifted fields)")
    told: dict[str, Json] = {"lock": str(lock), "path": str(lock), "model": made.model, "drift": encode(state.drift)}
    counts: dict[str, Json] = {"kernels": made.kernels, "validated": made.validated, "seconds": round(seconds, 3)}
    screen.json({**told, "warnings": encode(state.warnings), **counts, "ok": True})
    place = quote(str(lock))
    screen.next(f"agentcompile replay {place}" if check else f"agentcompile generate {place} --prompt TEXT")
    return 0


def bundle(flags: Mapping[str, object], lock: Path, out: Path | None, *, screen: Screen, flow: Flow = REAL) -> int:
    """Write a lock with everything that its kernels are made from to one file, by default beside the lock."""
    refuse_checkpoint(lock)
    file = out or beside(lock)
    kernels, size = flow.bundle(lock, resolve(flags).options, file)
    screen.text(f"{file}: {kernels} kernels with their templates, {amount(size)}")
    screen.json({"lock": str(lock), "file": str(file), "kernels": kernels, "bytes": size})
    screen.next(f"agentcompile replay {quote(str(file))}")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a generation made, and how fast; `finish` says why it ended, where that is known."""

    text: str
    ids: tuple[int, ...]
    finish: str | None
    speed: Speed


def generate(
    flags: Mapping[str, object],
    lock: Path,
    prompts: Sequence[InputPrompt],
    request: GenerateRequest,
    *,
    beside_eager: bool,
    screen: Screen,
    flow: Flow = REAL,
) -> int:
    """Stream text from a lock, a prompt after another; with `beside_eager`, time PyTorch eager on each after it.

    Without a tokenizer the ids are shown in place of the text. JSON is one object for one prompt, and a list of them
    for several.

    Raises:
        AgentCompileError: the lock cannot be run, or a prompt does not fit it (usage).
    """
    refuse_checkpoint(lock)
    options = resolve(flags).options
    run = flow.generate(lock, options, _warnings(screen))
    results = list[Json]()
    for prompt, stream in [(prompt, run(prompt, request)) for prompt in prompts]:  # all are checked before one is shown
        others = Others()
        screen.text("" if prompt.chat else prompt.text, end="")
        made = _streamed(stream.pieces, screen, has_text=stream.has_text)
        speed = made.speed
        screen.text("")
        screen.say(f"agentcompile  {_speed(speed)}")
        result: dict[str, Json] = {
            "text": made.text,
            "ids": list(made.ids),
            "tokens": speed.tokens,
            "prompt_tokens": stream.prompt_tokens,
            "finish": made.finish,
            "first_s": speed.first_s,
            "tokens_per_s": speed.tokens_per_s,
        }
        if beside_eager:
            eager = _streamed(flow.eager(lock, options, prompt, request), None).speed
            ratio = speed.tokens_per_s / eager.tokens_per_s if eager.tokens_per_s else 0.0
            share = others.share()
            screen.say(f"PyTorch eager {_speed(eager)}; {compared(ratio, share)}")
            result |= {"eager_tokens_per_s": eager.tokens_per_s, "ratio": ratio, "others": share}
        results.append(result)
    screen.json(results[0] if len(results) == 1 else results)
    screen.next(f"agentcompile verify {quote(str(lock))} --prompts FILE")
    return 0


def compared(ratio: float, others: float) -> str:
    """Return a line on a rate over PyTorch eager's; `others` is other processes' share of all processors, 0 to 1.

    They slow PyTorch down more than kernels: its threads wait for one another after each operator.
    """
    text = f"agentcompile is {ratio:.2f}× as fast"
    if others <= POLICY.others_share:
        return text
    return f"{text}, while other processes used {others:.0%} of the processors; on a quiet machine it may be far less"


def prompts_of(texts: Sequence[str], ids: Sequence[str], *, chat: bool) -> tuple[InputPrompt, ...]:
    """Return the prompts of a command line: texts, of which ``-`` is all of stdin, and lists of token ids ``N,…``.

    Raises:
        AgentCompileError: there is none, one is empty or no list of ids, or `chat` is given with ids (usage).
    """
    if chat and ids:
        raise AgentCompileError("--chat and --prompt-ids: ids are taken as they are", hint="give --prompt instead")
    found = [InputPrompt(text=sys.stdin.read() if text == "-" else text, chat=chat) for text in texts]
    if any(not one.text for one in found):
        raise AgentCompileError("--prompt: is empty", hint="give at least one token to continue from")
    for text in ids:
        try:
            found.append(InputPrompt(ids=tuple(int(one) for one in text.split(","))))
        except ValueError:
            hint = "token ids with commas between them, such as 1,15,7"
            raise AgentCompileError(f"--prompt-ids: {text[:80]!r} is no list of ids", hint=hint) from None
    if not found:
        raise AgentCompileError("no prompt was given", hint="--prompt TEXT, --prompt - for stdin, or --prompt-ids N,…")
    return tuple(found)


def _streamed(pieces: Iterator[TextPiece], screen: Screen | None, *, has_text: bool = True) -> Generated:
    """Take all pieces and show each on the screen, where there is one: its text, or its ids where there is no text."""
    begin = time.perf_counter()
    first = last = begin
    tokens, rest, text, ids, finish = 0, 0, "", list[int](), None
    for piece in pieces:
        last = time.perf_counter()
        if tokens == 0:
            first = last
        else:
            rest += piece.tokens
        if screen is not None:
            numbers = "".join(f",{one}" for one in piece.ids)
            screen.text(piece.text if has_text else numbers if ids else numbers[1:], end="")
        tokens += piece.tokens
        text += piece.text
        ids += piece.ids
        finish = piece.finish or finish
    speed = Speed(tokens=tokens, rest=rest, first_s=first - begin, rest_s=last - first)
    return Generated(text=text, ids=tuple(ids), finish=finish, speed=speed)


def _speed(speed: Speed) -> str:
    return f"{speed.tokens} tokens, first after {speed.first_s * 1e3:.0f} ms, then {speed.tokens_per_s:.1f} tokens/s"


def verify(flags: Mapping[str, object], lock: Path, prompts: Path, *, screen: Screen, flow: Flow = REAL) -> int:
    """Measure a lock's end-to-end accuracy on the user's prompts, one per line of a file; ``-``: stdin.

    Raises:
        AgentCompileError: the file cannot be read, or has no prompt (usage).
    """
    refuse_checkpoint(lock)
    options = resolve(flags).options
    named = "stdin" if str(prompts) == "-" else str(prompts)
    try:
        text = sys.stdin.read() if named == "stdin" else prompts.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentCompileError(f"{named}: cannot be read: {error}", hint="a text file, one prompt a line") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise AgentCompileError(f"{named}: holds no prompt", hint="a text file, one prompt a line")
    figures = flow.verify(lock, options, lines, _warnings(screen))
    rows = [(name, value if isinstance(value, str) else f"{value:.4g}") for name, value in figures.items()]
    screen.table(Table(heads=("figure", "value"), rows=rows))
    screen.json(dict(figures))
    screen.next(f"agentcompile generate {quote(str(lock))} --prompt TEXT")
    return 0
