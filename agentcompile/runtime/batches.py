"""Generation for several prompts side by side (continuous batching).

Each row of the batch has its own KV cache; it is given to the next waiting prompt when its sequence ends. A prompt is
prefilled in the first row, to which the prefill's graphs are bound, and its cache is then copied to the row that it was
given; meanwhile the cache of the sequence in the first row is kept in a copy. When few sequences are left, they move to
a step with fewer rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.completion import Completion, Finish, chosen, ended
from agentcompile.runtime.generator import STREAM_S
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.request import Request
from agentcompile.runtime.sampling import Sampling
from agentcompile.runtime.text import TextStream, Tokenizer, push


class BatchSteps(Protocol):
    """Decode steps of several sequences, which use the first `rows` rows of a memory."""

    @property
    def rows(self) -> int:
        """The number of sequences that a step has room for."""

    def add(self, row: int, token: int, position: int, sampling: Sampling, *, first: int, logprobs: bool) -> None:
        """Put a sequence into `row`: `token` is read at `position`; the token at position `first + n` is draw n."""

    def remove(self, row: int) -> None:
        """Free a row for another sequence."""

    def steps(self, count: int, firsts: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[float]]]:
        """Make `count` tokens in every row; return for each (row, position) its tokens and log-probabilities."""


@dataclass(slots=True, kw_only=True)
class _BatchedSequence:
    """One prompt and what has been generated for it so far."""

    index: int
    ids: Sequence[int]
    begun: float
    stream: TextStream | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    first_s: float = 0.0
    finish: Finish | None = None

    @property
    def position(self) -> int:
        """The position where its last token will be read."""
        return len(self.ids) + len(self.tokens) - 1


class Batches:
    """A batched generator: prefills prompts, decodes them together and collects their completions.

    `steps` are decode steps of 2 and more rows, in any order. `prefill` runs a prompt in the first row and returns
    the logits of its last token.
    """

    def __init__(
        self,
        info: ModelInfo,
        steps: Sequence[BatchSteps],
        prefill: Callable[[Sequence[int]], torch.Tensor],
        memory: Memory,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._info, self._prefill, self._memory, self._tokenizer = info, prefill, memory, tokenizer
        self._steps = sorted(steps, key=lambda step: step.rows)
        self._running: dict[int, _BatchedSequence] = {}

    def generate(self, prompts: Sequence[Sequence[int]], request: Request) -> list[Completion]:
        """Generate a completion for every prompt and return them in the order of the prompts."""
        waiting = deque(enumerate(prompts))
        done: dict[int, Completion] = {}
        steps, chunk = self._fitting(len(waiting)), 1
        self._running = {}
        try:
            while waiting or self._running:
                while waiting and len(self._running) < steps.rows:
                    self._start(*waiting.popleft(), steps, request, done)
                if not self._running:
                    continue
                if not waiting and (fewer := self._fitting(len(self._running))).rows < steps.rows:
                    self._move(steps, fewer, request)
                    steps = fewer
                chunk = self._advance(steps, chunk, request, done)
        finally:
            for row in range(steps.rows):
                steps.remove(row)
        return [done[index] for index in range(len(prompts))]

    def _fitting(self, count: int) -> BatchSteps:
        return next((step for step in self._steps if step.rows >= count), self._steps[-1])

    def _start(
        self, index: int, ids: Sequence[int], steps: BatchSteps, request: Request, done: dict[int, Completion]
    ) -> None:
        """Prefill a prompt into the highest free row: while the first is taken, prefills copy its cache away."""
        stream = TextStream(self._tokenizer, request.stop) if self._tokenizer is not None else None
        made = _BatchedSequence(index=index, ids=ids, begun=time.perf_counter(), stream=stream)
        row = max(set(range(steps.rows)) - set(self._running))
        if request.max_new_tokens <= 0:
            made.finish = "length"
            done[index] = _completion(made, made.begun)
            return
        aside = self._put_aside() if 0 in self._running else []
        first = chosen(self._prefill(ids), request, 0)
        if row:
            for state in self._memory.states():
                state[row, :, : len(ids)].copy_(state[0, :, : len(ids)])
        if aside:
            self._put_back(aside)
        made.first_s = time.perf_counter() - made.begun
        self._take(made, first.tokens, first.logprobs, request)
        if made.finish is not None:
            done[index] = _completion(made, time.perf_counter())
            if 0 not in self._running:
                steps.remove(0)
            return
        self._running[row] = made
        self._add(row, made, steps, request)
        if 0 not in self._running:
            steps.remove(0)

    def _add(self, row: int, made: _BatchedSequence, steps: BatchSteps, request: Request) -> None:
        token, first = made.tokens[-1], len(made.ids) - 1
        steps.add(row, token, made.position, request.sampling, first=first, logprobs=request.logprobs)

    def _put_aside(self) -> list[torch.Tensor]:
        used = self._running[0].position
        states = [state[0, :, :used].clone() for state in self._memory.states()]
        return [*states, self._memory.token.clone(), self._memory.position.clone()]

    def _put_back(self, aside: Sequence[torch.Tensor]) -> None:
        *states, token, position = aside
        for state, kept in zip(self._memory.states(), states, strict=True):
            state[0, :, : kept.shape[1]].copy_(kept)
        self._memory.token.copy_(token)
        self._memory.position.copy_(position)

    def _move(self, steps: BatchSteps, fewer: BatchSteps, request: Request) -> None:
        """Move all sequences into the first rows of `fewer`, which then runs the decode steps."""
        free = [row for row in range(fewer.rows) if row not in self._running]
        for row in sorted(row for row in self._running if row >= fewer.rows):
            made, to = self._running.pop(row), free.pop()
            for state in self._memory.states():
                state[to, :, : made.position].copy_(state[row, :, : made.position])
            self._running[to] = made
        for row in range(steps.rows):
            steps.remove(row)
        for row in range(fewer.rows):
            if row in self._running:
                self._add(row, self._running[row], fewer, request)
            else:
                fewer.remove(row)

    def _advance(self, steps: BatchSteps, chunk: int, request: Request, done: dict[int, Completion]) -> int:
        """Run a chunk of decode steps for all sequences; return how many steps the next chunk may have."""
        most = request.max_new_tokens  # a sequence has room for one token at least, since it would have ended otherwise
        room = (min(most - len(one.tokens), self._info.context - one.position) for one in self._running.values())
        count = min(chunk, *room)
        begin = time.perf_counter()
        firsts = [(row, made.position) for row, made in self._running.items()]
        found = steps.steps(count, firsts)
        now = time.perf_counter()
        for (row, _), (tokens, logprobs) in zip(firsts, found, strict=True):
            made = self._running[row]
            self._take(made, tokens, logprobs if request.logprobs else [], request)
            if made.finish is not None:
                done[made.index] = _completion(made, now)
                del self._running[row]
                steps.remove(row)
        return max(1, min(2 * chunk, round(count * STREAM_S / max(now - begin, 1e-6))))

    def _take(self, made: _BatchedSequence, tokens: Sequence[int], logprobs: Sequence[float], request: Request) -> None:
        for at, token in enumerate(tokens):
            made.tokens.append(token)
            made.logprobs += logprobs[at : at + 1]
            made.finish = ended(self._info, token, len(made.tokens), len(made.ids), request)
            if made.stream is not None:
                shown = () if made.finish == "eos" else (token,)
                made.text += push(made.stream, shown, request.stop)[0]
                if made.stream.stopped:
                    made.finish = "stop"
                elif made.finish is not None:
                    made.text += made.stream.finish()
            if made.finish is not None:
                return


def _completion(made: _BatchedSequence, now: float) -> Completion:
    assert made.finish is not None
    return Completion(
        tokens=tuple(made.tokens),
        text=made.text,
        finish=made.finish,
        prompt_tokens=len(made.ids),
        prefill_s=made.first_s,
        decode_s=now - made.begun - made.first_s,
        logprobs=tuple(made.logprobs),
    )
