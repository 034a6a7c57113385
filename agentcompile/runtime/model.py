"""A compiled model: prefill in chunks, decode to the end, tokens and text as they come."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch

from agentcompile.arguments import is_batch
from agentcompile.errors import AgentCompileError
from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import Clock, Made
from agentcompile.runtime.openmp import dismiss_threads, fair_threads, one_thread
from agentcompile.runtime.request import Prompt, Request, positions_of, request_of, tokens_of
from agentcompile.runtime.sampling import Sampling, choose
from agentcompile.runtime.text import TextStream, Tokenizer, push

Finish = Literal["length", "eos", "stop", "context"]
STREAM_S = 0.02
"""The seconds of decoding per piece of a stream: far below what a reader notices, far above a piece's cost."""


class Loop(Protocol):
    """A decode loop that runs no Python between steps."""

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Set the sampling for what follows, the token at position `first + n` being draw n; False if it cannot."""

    def draw(self, logits: torch.Tensor, at: int, *, more: bool) -> Made | None:
        """Choose the token from the logits [vocab] of a prompt's last token, at `at`; None when the host must choose.

        Memory then stands behind the prompt with that token. `more`: further tokens are wanted after it.
        """

    def steps(self, count: int, *, at: int, more: bool) -> Made:
        """Make up to `count` tokens from position `at`, where memory stands.

        `more`: further tokens are wanted after these, unless one of them ends the sequence; a device may already begin.
        """


class Decode(Protocol):
    """A decode step on some device."""

    def again(self) -> torch.Tensor:
        """Run one step on memory's token and position and return the logits, [vocab]."""

    @property
    def clock(self) -> Clock | None:
        """The clock that times the step's calls; None where the host cannot time them."""

    def decoder(self, stop_ids: Sequence[int], context: int) -> Loop | None:
        """Return the loop that ends at any of `stop_ids`; None when a step needs Python."""


class Prefill(Protocol):
    """The prefill of a prompt in chunks on some device."""

    @property
    def capacity(self) -> int:
        """The number of tokens of the longest chunk."""

    def run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run a chunk, tokens and positions int64 [T] on the host; return the last token's logits, [vocab]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one poll of a stream gives: new tokens, the text that is certain by now, log-probabilities when asked."""

    tokens: tuple[int, ...]
    text: str = ""
    logprobs: tuple[float, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished generation; `tokens` holds the new ids, the last an end-of-sequence id when it ended there."""

    tokens: tuple[int, ...]
    text: str
    finish: Finish
    prompt_tokens: int
    prefill_s: float
    """The seconds until the first token was known (TTFT)."""
    decode_s: float
    """The seconds from the first token to the last."""
    logprobs: tuple[float, ...] = field(default=())

    @property
    def tokens_per_s(self) -> float:
        """The decode rate: tokens after the first over the time they took; 0 when there are none."""
        return (len(self.tokens) - 1) / self.decode_s if len(self.tokens) > 1 and self.decode_s > 0 else 0.0


class Beside(Protocol):
    """A generator for several prompts side by side."""

    def generate(self, prompts: Sequence[Sequence[int]], request: Request) -> list[Completion]:
        """Generate a completion for every prompt and return them in the order of the prompts."""


class CompiledModel:
    """Plans bound to a checkpoint, ready to generate; from one thread at a time: a second caller gets an error."""

    def __init__(
        self,
        info: ModelInfo,
        decode: Decode,
        prefill: Prefill,
        memory: Memory,
        *,
        tokenizer: Tokenizer | None,
        checkpoint: Path,
        beside: Callable[[Callable[[Sequence[int]], torch.Tensor]], Beside] | None = None,
    ) -> None:
        """Bind one model; `beside` makes the generator for several prompts from the function that prefills one."""
        self.info, self.tokenizer, self.checkpoint = info, tokenizer, checkpoint
        self._decode, self._prefill, self._memory = decode, prefill, memory
        self._busy = threading.Lock()
        self._native = decode.decoder(info.eos, info.context)
        self._unstopped = decode.decoder((), info.context)
        self._beside = None if beside is None else beside(self._run_prefill)

    @property
    def clock(self) -> Clock | None:
        """The clock of the decode step's calls: start it, generate, stop it. None on a GPU, where launches overlap."""
        return self._decode.clock

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        logprobs: bool = False,
        ignore_eos: bool = False,
    ) -> Completion | list[Completion]:
        """Complete one prompt (text or token ids) or each of a list, of any lengths.

        A list runs side by side where the lock has plans for several sequences, else one after another. Kernels for
        several sequences sum in another order than those for one, so that a choice between near equals may differ.
        `logprobs` adds the natural-log probability of every token under the unfiltered distribution.

        Raises:
            AgentCompileError: a prompt is empty or longer than the cache, an id is outside the vocabulary, or an
                argument is of a wrong type or out of range (usage).
        """
        request = request_of(
            self.info,
            self.tokenizer,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
            logprobs=logprobs,
            ignore_eos=ignore_eos,
        )
        if not is_batch(prompt):
            return self._complete(tokens_of(self.info, self.tokenizer, prompt), request)
        every = [tokens_of(self.info, self.tokenizer, one, f"prompt[{index}]") for index, one in enumerate(prompt)]
        if self._beside is None or len(every) < 2:
            return [self._complete(ids, request) for ids in every]
        with self._exclusively():
            return self._beside.generate(every, request)

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        logprobs: bool = False,
        ignore_eos: bool = False,
    ) -> Iterator[Piece]:
        """Generate as `generate` does for one prompt, yielding pieces as they are made; closing it ends that."""
        request = request_of(
            self.info,
            self.tokenizer,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
            logprobs=logprobs,
            ignore_eos=ignore_eos,
        )
        return self._pieces(tokens_of(self.info, self.tokenizer, prompt), request)

    def logits(self, ids: Sequence[int], positions: Sequence[int] | None = None, *, prompt: int = 0) -> torch.Tensor:
        """Return teacher-forced float32 logits, one row for each of `positions`; `prompt` tokens are prefilled."""
        with self._exclusively():
            ids = tokens_of(self.info, self.tokenizer, ids)
            wanted = positions_of(positions if positions is not None else range(max(prompt - 1, 0), len(ids)), len(ids))
            rows = [self._run_prefill(ids[:prompt]).float().clone()] if prompt else []
            rows = rows if prompt - 1 in wanted else []
            for position in range(prompt, len(ids)):
                self._memory.stand(ids[position], position)
                logits = self._decode.again()
                if position in wanted:
                    rows.append(logits.float().clone())
            return torch.stack(rows)

    def prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """Fill the cache with `ids` from position 0 and return the last token's logits, [vocab], float32."""
        with self._exclusively():
            return self._run_prefill(tokens_of(self.info, self.tokenizer, ids)).float().clone()

    def _complete(self, ids: Sequence[int], request: Request) -> Completion:
        begin = time.perf_counter()
        timed = [(piece, time.perf_counter()) for piece in self._pieces(ids, request)]
        pieces, first, last = [piece for piece, _ in timed], timed[0][1], timed[-1][1]
        return Completion(
            tokens=tuple(token for piece in pieces for token in piece.tokens),
            text="".join(piece.text for piece in pieces),
            finish=pieces[-1].finish or "length",
            prompt_tokens=len(ids),
            prefill_s=first - begin,
            decode_s=last - first,
            logprobs=tuple(value for piece in pieces for value in piece.logprobs),
        )

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        # A second thread is refused, instead of mixing two generations in one cache.
        if not self._busy.acquire(blocking=False):
            hint = "finish or close the first generation, or load the lock a second time"
            raise AgentCompileError("this model is already generating", hint=hint)
        try:
            yield
        finally:
            self._busy.release()

    def _pieces(self, ids: Sequence[int], request: Request) -> Iterator[Piece]:
        with self._exclusively():
            stream = TextStream(self.tokenizer, request.stop) if self.tokenizer is not None else None
            for piece in self._tokens(ids, request):
                shown = piece.tokens[:-1] if piece.finish == "eos" else piece.tokens
                text, tokens, finish = "", piece.tokens, piece.finish
                if stream is not None:
                    text, pushed = push(stream, shown, request.stop)
                    if stream.stopped:  # a chunk's length depends on timing: tokens after the stop do not count
                        tokens = piece.tokens[:pushed]
                    elif finish is not None:
                        text += stream.finish()
                    finish = "stop" if stream.stopped else finish
                yield Piece(tokens=tokens, text=text, logprobs=piece.logprobs[: len(tokens)], finish=finish)
                if finish is not None:
                    return

    def _tokens(self, ids: Sequence[int], request: Request) -> Iterator[Piece]:
        if request.max_new_tokens <= 0:
            yield Piece(tokens=(), finish="length")
            return
        logits = self._run_prefill(ids)
        last = len(ids) - 1
        loop = self._unstopped if request.ignore_eos else self._native
        if loop is not None and not loop.begin(request.sampling, first=last, logprobs=request.logprobs):
            loop = None
        first = loop.draw(logits, last, more=request.max_new_tokens > 1) if loop is not None else None
        if first is None:
            token, logprobs = chosen(logits, request, 0)
            self._memory.stand(token, len(ids))
        else:
            (token,), logprobs = first.tokens, first.logprobs
        finish = ended(self.info, token, 1, len(ids), request)
        yield Piece(tokens=(token,), logprobs=logprobs, finish=finish)
        if finish is None and loop is not None:
            yield from self._native_loop(loop, len(ids), request)
        elif finish is None:
            yield from self._python_loop(len(ids), request)

    def _native_loop(self, loop: Loop, prompt: int, request: Request) -> Iterator[Piece]:
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
            logits = self._decode.again()
            with one_thread():
                token, logprobs = chosen(logits, request, made)
            self._memory.stand(token, prompt + made)
            made += 1
            finish = ended(self.info, token, made, prompt, request)
            yield Piece(tokens=(token,), logprobs=logprobs, finish=finish)

    def _run_prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """Run the prompt in chunks at exact positions; a remainder runs at its own length, never padded."""
        size = self._prefill.capacity
        array_of = ids if isinstance(ids, array) else array("q", ids)
        tokens = torch.frombuffer(array_of, dtype=torch.int64)
        logits = torch.empty(0)
        for start in range(0, len(ids), size):
            chunk = tokens[start : start + size]
            with fair_threads():
                logits = self._prefill.run(chunk, torch.arange(start, start + chunk.numel()))
        return logits


def chosen(logits: torch.Tensor, request: Request, counter: int) -> tuple[int, tuple[float, ...]]:
    """Make draw number `counter` from logits [vocab]; return the token and, when asked for, its log-probability."""
    token = choose(logits, request.sampling, counter)
    if not request.logprobs:
        return token, ()
    return token, (float(torch.log_softmax(logits.double(), dim=0)[token].item()),)


def ended(info: ModelInfo, token: int, made: int, prompt: int, request: Request) -> Finish | None:
    """Return why a sequence of `prompt` tokens ends with `token`, its new token number `made`; None when it goes on."""
    if token in info.eos and not request.ignore_eos:
        return "eos"
    if made >= request.max_new_tokens:
        return "length"
    return "context" if prompt + made > info.context else None
