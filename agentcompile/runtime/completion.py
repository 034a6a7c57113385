"""What a generation gives: pieces while it runs, a completion at its end; and the choice that makes each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.request import Request
from agentcompile.runtime.sampling import choose, likeliest

Finish = Literal["length", "eos", "stop", "context"]
Top = tuple[tuple[int, float], ...]
"""The most likely ids of one position with their natural-log probabilities, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one poll of a stream gives: new tokens, the text that is certain by now, log-probabilities when asked."""

    tokens: tuple[int, ...]
    text: str = ""
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[Top, ...] = ()
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
    logprobs: tuple[float, ...] = ()
    """With `logprobs`, the natural-log probability of each of `tokens` under the unfiltered distribution."""
    top_logprobs: tuple[Top, ...] = ()
    """With `logprobs=k`, the k most likely ids for each of `tokens`, as pairs of id and log-probability."""

    @property
    def tokens_per_s(self) -> float:
        """The decode rate: tokens after the first over the time they took; 0 when there are none."""
        return (len(self.tokens) - 1) / self.decode_s if len(self.tokens) > 1 and self.decode_s > 0 else 0.0


class BatchGenerator(Protocol):
    """A generator for several prompts side by side."""

    def generate(self, prompts: Sequence[Sequence[int]], request: Request) -> list[Completion]:
        """Generate a completion for every prompt and return them in the order of the prompts."""


def chosen(logits: torch.Tensor, request: Request, counter: int) -> Piece:
    """Make draw number `counter` from logits [vocab]; the piece has the token and what `request` asks of it."""
    token = choose(logits, request.sampling, counter)
    if not request.logprobs:
        return Piece(tokens=(token,))
    values = torch.log_softmax(logits.double(), dim=0)
    top: tuple[Top, ...] = ()
    if request.top_logprobs:
        ids = likeliest(logits.float(), request.top_logprobs)[: request.top_logprobs]
        top = (tuple(zip(ids.tolist(), values[ids].tolist(), strict=True)),)
    return Piece(tokens=(token,), logprobs=(float(values[token].item()),), top_logprobs=top)


def ended(info: ModelInfo, token: int, made: int, prompt: int, request: Request) -> Finish | None:
    """Return why a sequence of `prompt` tokens ends with `token`, its new token number `made`; None when it goes on."""
    if token in request.eos:
        return "eos"
    if made >= request.max_new_tokens:
        return "length"
    return "context" if prompt + made > info.context else None
