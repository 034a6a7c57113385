"""A compiled model: completions, streams and conversations from the plans of a lock."""

from __future__ import annotations

import copy
import functools
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from collections.abc import Generator as Pieces
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import torch

from agentcompile import arguments
from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError
from agentcompile.ir.digest import Json
from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.background import in_thread
from agentcompile.runtime.completion import BatchGenerator, Completion, Piece
from agentcompile.runtime.generator import Decode, Prefill, SequenceGenerator
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.native import CallClock
from agentcompile.runtime.record import LoadedLock, RegimePlan
from agentcompile.runtime.request import (
    Message,
    Prompt,
    Request,
    messages_of,
    positions_of,
    prompts_of,
    request_of,
    tokens_of,
)
from agentcompile.runtime.settings import CompletionSettings, shows_settings
from agentcompile.runtime.text import Tokenizer

MOST_COMPLETIONS = 1024
"""The most completions that one call makes of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """What a model needs memory for, until it is closed."""

    generator: SequenceGenerator
    beside: BatchGenerator | None


class CompiledModel:
    """Plans bound to a checkpoint, ready to generate; from one thread at a time: a second caller gets an error.

    It is a context manager: at the end of the block it is closed, and its memory is free.
    """

    def __init__(
        self,
        info: ModelInfo,
        decode: Decode,
        prefill: Prefill,
        memory: Memory,
        *,
        tokenizer: Tokenizer | None,
        checkpoint: Path,
        beside: Callable[[Callable[[Sequence[int]], torch.Tensor]], BatchGenerator] | None = None,
        record: LoadedLock | None = None,
        steps_up_to: int = 0,
    ) -> None:
        """Bind one model; `beside` makes the generator for several prompts from the function that prefills one.

        Up to `steps_up_to` tokens of a prompt, where no more are left of it, run through `decode`.
        """
        self.info, self.tokenizer, self.checkpoint = info, tokenizer, checkpoint
        self.device = memory.device
        """PyTorch's name of the device: `cpu`, or `cuda:0` for the first GPU."""
        self._busy = threading.Lock()
        self._record = LoadedLock() if record is None else record
        generator = SequenceGenerator(info, decode, prefill, memory, tokenizer, steps_up_to)
        self._bound: _Bound | None = _Bound(
            generator=generator, beside=None if beside is None else beside(generator.prefill)
        )

    def __enter__(self) -> CompiledModel:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # a stream that is still open must not hide what went wrong
            with suppress(AgentCompileError):
                self.close()

    def close(self) -> None:
        """Free the memory of weights, activations and caches; closing twice is fine.

        Whatever runs the model is an error after that; `info`, `plan` and `report` stay. Loaded kernels stay in the
        process, as shared objects do.

        Raises:
            AgentCompileError: a generation is running, or a stream is open (usage).
        """
        if self._bound is None:
            return
        with self._exclusively():
            self._bound = None
        gc.collect()
        backend_of(self.device).release_memory()

    @property
    def plan(self) -> tuple[RegimePlan, ...]:
        """The lock's plans, decode before prefill: the regions of each with choice, template and parameters."""
        return self._record.plan

    def report(self) -> dict[str, Json]:
        """Return what the lock records, as a dict for JSON.

        It holds the lock's digest, the model, the target, every choice with its times, and the whole-model check. Times
        are in nanoseconds; a speedup is PyTorch's time over the kernel's, from rounds that ran both in turn.
        """
        return copy.deepcopy(dict(self._record.report))

    @property
    def clock(self) -> CallClock | None:
        """The clock of the decode step's calls: start it, generate, stop it. None on a GPU, where launches overlap."""
        return self._open().generator.decode.clock

    @shows_settings
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, n: int | None = None, **settings: Unpack[CompletionSettings]
    ) -> Completion | list[Completion]:
        """Complete one prompt or each of a list, of any lengths.

        A prompt is a text, token ids (a list, an array or a tensor, of shape [T] or [1, T]) or a conversation (a list
        of messages with "role" and "content"). A list of prompts, or an array of shape [B, T], gives a list of
        completions. It runs side by side where the lock has plans for several sequences, else one after another.
        Kernels for several sequences sum in another order than those for one, so that a choice between near equals may
        differ.

        `n` completions of one prompt have the seeds `seed`, `seed` + 1 and so on, and are returned as a list; on a CPU
        the prompt is prefilled once. The settings are:

        - `max_new_tokens`: the most new tokens, 128 by default.
        - `temperature`, `top_k`, `top_p`, `seed`: how tokens are drawn; a temperature of 0, the default, is greedy.
        - `do_sample`: False is greedy whatever the temperature; True draws, at a temperature of 1 unless one is given.
        - `stop` or `stop_strings`: texts that end the generation; nothing from one on is given out.
        - `eos_token_id`: an id or a list that replaces the checkpoint's own end-of-sequence ids.
        - `ignore_eos`: go on after an end-of-sequence token.
        - `logprobs`: True adds the natural-log probability of every token under the unfiltered distribution; a number
          k adds those of the k likeliest ids as `top_logprobs` as well.

        Raises:
            AgentCompileError: a prompt is empty or longer than the cache, an id is outside the vocabulary, an argument
                is unknown, of a wrong type or out of range, or the model is closed (usage).
        """
        bound = self._open()
        request = request_of(self.info, self.tokenizer, settings)
        count = None if n is None else arguments.whole("n", n, 1, MOST_COMPLETIONS)
        found = prompts_of(self.info, self.tokenizer, prompt)
        if isinstance(found, list) and count is not None:
            text = f"n: {count}, for a list of {len(found)} prompts"
            raise AgentCompileError(text, hint="call it once for each prompt, or repeat prompts in the list")
        with self._exclusively():
            if not isinstance(found, list):
                if count is None:
                    return bound.generator.complete(found, request)
                return bound.generator.completions(found, [_with_seed(request, index) for index in range(count)])
            if bound.beside is None or len(found) < 2 or request.top_logprobs:
                return [bound.generator.complete(ids, request) for ids in found]
            return bound.beside.generate(found, request)

    @shows_settings
    def chat(self, messages: Sequence[Message], **settings: Unpack[CompletionSettings]) -> Completion:
        """Complete a conversation with the assistant's next turn, in the checkpoint's chat template.

        `messages` are mappings with "role" and "content", as in `[{"role": "user", "content": "hello"}]`. The turn
        ends at the template's end-of-turn token where the checkpoint names it among its end-of-sequence ids. The
        other arguments are those of `generate`, but for `n`.

        Raises:
            AgentCompileError: as in `generate`; the checkpoint has no chat template, or its template refuses the
                messages (usage).
        """
        checked = messages_of("messages", messages)
        bound = self._open()
        request = request_of(self.info, self.tokenizer, settings)
        ids = tokens_of(self.info, self.tokenizer, checked, "messages")
        with self._exclusively():
            return bound.generator.complete(ids, request)

    @shows_settings
    def stream(self, prompt: Prompt, **settings: Unpack[CompletionSettings]) -> Iterator[Piece]:
        """Generate as `generate` does for one prompt, yielding pieces as they are made; closing it ends that."""
        return self._stream(prompt, settings)

    @shows_settings
    def astream(self, prompt: Prompt, **settings: Unpack[CompletionSettings]) -> AsyncGenerator[Piece]:
        """Generate as `stream` does, as an asynchronous iterator; a thread of its own runs the model.

        The thread ends when the consumer stops: at the end of `aclose`, or after a cancelled task, the model is free
        again.
        """
        queued = backend_of(self.device).queued
        prepare = functools.partial(torch.cuda.set_device, self.device) if queued else None
        return in_thread(self._stream(prompt, settings), prepare)

    def logits(self, ids: Sequence[int], positions: Sequence[int] | None = None, *, prompt: int = 0) -> torch.Tensor:
        """Return teacher-forced float32 logits, one row for each of `positions`; `prompt` tokens are prefilled.

        Of the tokens that are prefilled only the last has logits: positions begin with it.
        """
        bound = self._open()
        with self._exclusively():
            known = tokens_of(self.info, self.tokenizer, ids)
            prefilled = arguments.whole("prompt", prompt, 0, len(known))
            first = max(prefilled - 1, 0)
            places = positions if positions is not None else range(first, len(known))
            return bound.generator.forced(known, positions_of(places, first, len(known)), prefilled)

    def prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """Fill the cache with `ids` from position 0 and return the last token's logits, [vocab], float32."""
        bound = self._open()
        with self._exclusively():
            return bound.generator.prefill(tokens_of(self.info, self.tokenizer, ids)).float().clone()

    def _stream(self, prompt: Prompt, settings: CompletionSettings) -> Pieces[Piece, None, None]:
        self._open()
        request = request_of(self.info, self.tokenizer, settings)
        return self._pieces(tokens_of(self.info, self.tokenizer, prompt), request)

    def _pieces(self, ids: Sequence[int], request: Request) -> Pieces[Piece, None, None]:
        with self._exclusively():
            yield from self._open().generator.pieces(ids, request)

    def _open(self) -> _Bound:
        """Return what the model runs with.

        Raises:
            AgentCompileError: the model is closed (usage).
        """
        bound = self._bound
        if bound is None:
            raise AgentCompileError(f"{self.info.name}: this model is closed", hint="load its lock again")
        return bound

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


def _with_seed(request: Request, index: int) -> Request:
    return replace(request, sampling=replace(request.sampling, seed=request.sampling.seed + index))
