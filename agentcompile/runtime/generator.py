"""Generation on one sequence: prefill in chunks, decode to the end, tokens and text as they come."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

import torch

from agentcompile.backends import backend_of
from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.completion import Completion, Finish, Piece, chosen, ended
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import CallClock, DecodedTokens
from agentcompile.runtime.openmp import dismiss_threads, fair_threads, one_thread
from agentcompile.runtime.request import Request
from agentcompile.runtime.sampling import Sampling
from agentcompile.runtime.text import TextStream, Tokenizer, push

STREAM_S = 0.02
"""The seconds of decoding per piece of a stream: far below what a reader notices, far above a piece's cost."""


class DecodeLoop(Protocol):
    """A decode loop that runs no Python between steps."""

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Set the sampling for what follows, the token at position `first + n` being draw n; False if it cannot."""

    def draw(self, logits: torch.Tensor, at: int, *, more: bool) -> DecodedTokens | None:
        """Choose the token from the logits [vocab] of a prompt's last token, at `at`; None when the host must choose.

        Memory then stands behind the prompt with that token. `more`: further tokens are wanted after it.
        """

    def steps(self, count: int, *, at: int, more: bool) -> DecodedTokens:
        """Make up to `count` tokens from position `at`, where memory stands.

        `more`: further tokens are wanted after these, unless one of them ends the sequence; a device may already begin.
        """


class Decode(Protocol):
    """A decode step on some device."""

    def again(self) -> torch.Tensor:
        """Run one step on memory's token and position and return the logits, [vocab]."""

    @property
    def clock(self) -> CallClock | None:
        """The clock that times the step's calls; None where the host cannot time them."""

    def decoder(self, stop_ids: Sequence[int], context: int) -> DecodeLoop | None:
        """Return the loop that ends at any of `stop_ids`; None when a step needs Python."""


class Prefill(Protocol):
    """The prefill of a prompt in chunks on some device."""

    @property
    def capacity(self) -> int:
        """The number of tokens of the longest chunk."""

    @property
    def spreads(self) -> bool:
        """Whether a chunk has operators of PyTorch that may run on several threads of the host."""

    def run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run a chunk, tokens and positions int64 [T] on the host; return the last token's logits, [vocab]."""


class SequenceGenerator:
    """Decode and prefill steps on one memory, which holds one sequence at a time; the caller sees to that."""

    def __init__(
        self,
        info: ModelInfo,
        decode: Decode,
        prefill: Prefill,
        memory: Memory,
        tokenizer: Tokenizer | None,
        steps_up_to: int = 0,
    ) -> None:
        """Bind steps to `memory`; of a prompt, up to `steps_up_to` tokens in a row run through `decode`."""
        self.decode, self.chunks, self.memory = decode, prefill, memory
        self._steps_up_to = steps_up_to
        self._info, self._tokenizer = info, tokenizer
        self._usual = {eos: decode.decoder(eos, info.context) for eos in {info.eos, ()}}
        self._other: dict[tuple[int, ...], DecodeLoop | None] = {}

    def complete(self, ids: Sequence[int], request: Request, logits: torch.Tensor | None = None) -> Completion:
        """Complete a prompt; `logits` [vocab] are those of its last token where it is in the cache already."""
        begin = time.perf_counter()
        timed = [(piece, time.perf_counter()) for piece in self.pieces(ids, request, logits)]
        pieces, first, last = [piece for piece, _ in timed], timed[0][1], timed[-1][1]
        return Completion(
            tokens=tuple(token for piece in pieces for token in piece.tokens),
            text="".join(piece.text for piece in pieces),
            finish=pieces[-1].finish or "length",
            prompt_tokens=len(ids),
            prefill_s=first - begin,
            decode_s=last - first,
            logprobs=tuple(value for piece in pieces for value in piece.logprobs),
            top_logprobs=tuple(top for piece in pieces for top in piece.top_logprobs),
        )

    def completions(self, ids: Sequence[int], requests: Sequence[Request]) -> list[Completion]:
        """Complete one prompt once for each request.

        On a CPU it is prefilled once: a decode step writes behind the prompt alone. On a GPU, where what chooses the
        first token is bound to the prefill's own buffers, it is prefilled each time.
        """
        if backend_of(self.memory.device).queued or not all(request.max_new_tokens for request in requests):
            return [self.complete(ids, request) for request in requests]
        begin = time.perf_counter()
        logits = self.prefill(ids).clone()
        spent = time.perf_counter() - begin
        first, *others = [self.complete(ids, request, logits) for request in requests]
        return [replace(first, prefill_s=first.prefill_s + spent), *others]

    def pieces(self, ids: Sequence[int], request: Request, logits: torch.Tensor | None = None) -> Iterator[Piece]:
        """Yield a completion's tokens and text as they are made; arguments as in `complete`."""
        stream = TextStream(self._tokenizer, request.stop) if self._tokenizer is not None else None
        for piece in self._tokens(ids, request, logits):
            shown = piece.tokens[:-1] if piece.finish == "eos" else piece.tokens
            text, count, finish = "", len(piece.tokens), piece.finish
            if stream is not None:
                text, pushed = push(stream, shown, request.stop)
                if stream.stopped:  # a chunk's length depends on timing: tokens after the stop do not count
                    count = pushed
                elif finish is not None:
                    text += stream.finish()
                finish = "stop" if stream.stopped else finish
            yield Piece(
                tokens=piece.tokens[:count],
                text=text,
                logprobs=piece.logprobs[:count],
                top_logprobs=piece.top_logprobs[:count],
                finish=finish,
            )
            if finish is not None:
                return

    def forced(self, ids: Sequence[int], wanted: Collection[int], prompt: int) -> torch.Tensor:
        """Return teacher-forced float32 logits, one row for each `wanted` position; `prompt` tokens are prefilled."""
        rows = [self.prefill(ids[:prompt]).float().clone()] if prompt else []
        rows = rows if prompt - 1 in wanted else []
        for position in range(prompt, len(ids)):
            self.memory.stand(ids[position], position)
            logits = self.decode.again()
            if position in wanted:
                rows.append(logits.float().clone())
        return torch.stack(rows)

    def prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """Run the prompt in chunks at exact positions; a remainder runs at its own length, never padded.

        A short prompt, or remainder, runs through decode steps where they are faster. The logits of the last token,
        [vocab], are overwritten by what runs next.
        """
        size = self.chunks.capacity
        array_of = ids if isinstance(ids, array) else array("q", ids)
        tokens = torch.frombuffer(array_of, dtype=torch.int64)
        logits = torch.empty(0)
        for start in range(0, len(ids), size):
            chunk = tokens[start : start + size]
            if chunk.numel() <= self._steps_up_to:
                logits = self._stepped(chunk.tolist(), start)
                continue
            # What else runs here is asked of the system only where it matters: that takes as long as a short chunk.
            with fair_threads() if self.chunks.spreads else nullcontext():
                logits = self.chunks.run(chunk, torch.arange(start, start + chunk.numel()))
        return logits

    def _stepped(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Run the end of a prompt through decode steps from position `start`; return the last logits, [vocab]."""
        dismiss_threads()
        logits = torch.empty(0)
        for position, token in enumerate(ids, start):
            self.memory.stand(token, position)
            logits = self.decode.again()
        return logits

    def _loop(self, request: Request, first: int) -> DecodeLoop | None:
        """Return the loop for the request's end-of-sequence ids; None where Python must choose the tokens."""
        if request.top_logprobs:  # no loop notes more than the chosen token's
            return None
        if request.eos not in self._usual and request.eos not in self._other:
            self._other = {request.eos: self.decode.decoder(request.eos, self._info.context)}
        loop = self._usual[request.eos] if request.eos in self._usual else self._other[request.eos]
        able = loop is not None and loop.begin(request.sampling, first=first, logprobs=request.logprobs)
        return loop if able else None

    def _tokens(self, ids: Sequence[int], request: Request, logits: torch.Tensor | None) -> Iterator[Piece]:
        if request.max_new_tokens <= 0:
            yield Piece(tokens=(), finish="length")
            return
        logits = self.prefill(ids) if logits is None else logits
        last = len(ids) - 1
        loop = self._loop(request, last)
        drawn = loop.draw(logits, last, more=request.max_new_tokens > 1) if loop is not None else None
        if drawn is None:
            piece = chosen(logits, request, 0)
            self.memory.stand(piece.tokens[0], len(ids))
        else:
            piece = Piece(tokens=drawn.tokens, logprobs=drawn.logprobs)
        finish = ended(self._info, piece.tokens[0], 1, len(ids), request)
        yield replace(piece, finish=finish)
        if finish is None and loop is not None:
            yield from self._native_loop(loop, len(ids), request)
        elif finish is None:
            yield from self._python_loop(len(ids), request)

    def _native_loop(self, loop: DecodeLoop, prompt: int, request: Request) -> Iterator[Piece]:
        dismiss_threads()
        chunk = made = 1
        while True:
            begin, left = time.perf_counter(), request.max_new_tokens - made
            result = loop.steps(min(chunk, left), at=prompt + made - 1, more=left > chunk)
            spent = time.perf_counter() - begin
            made += len(result.tokens)
            finish: Finish | None = "context" if result.reason == "context" else None
            if result.reason == "stop":
                finish = "eos"
            elif made >= request.max_new_tokens:
                finish = "length"
            yield Piece(tokens=result.tokens, logprobs=result.logprobs, finish=finish)
            if finish is not None:
                return
            chunk = max(1, min(2 * chunk, round(chunk * STREAM_S / max(spent, 1e-6))))

    def _python_loop(self, prompt: int, request: Request) -> Iterator[Piece]:
        made = 1
        finish: Finish | None = None
        dismiss_threads()
        while finish is None:
            logits = self.decode.again()
            with one_thread():
                piece = chosen(logits, request, made)
            token = piece.tokens[0]
            self.memory.stand(token, prompt + made)
            made += 1
            finish = ended(self._info, token, made, prompt, request)
            yield replace(piece, finish=finish)
