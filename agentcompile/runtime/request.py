"""What a caller asks of a model, checked first: prompts become token ids, settings become a `Request`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentcompile import arguments
from agentcompile.errors import AgentCompileError
from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.sampling import Sampling
from agentcompile.runtime.text import Tokenizer

Prompt = str | Sequence[int]
MOST = 2**31 - 1
"""The largest count that is taken for a number of tokens."""
_PER_TOKEN, _SLACK = 4, 4096
"""Of a text that may be far too long, so many characters a token of the cache are tokenised first, and so many more."""
_GROWTH = 4
_CUT = 64
"""Tokens that the end of a piece of text may have more than the same characters of the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How a prompt is to be completed."""

    max_new_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    logprobs: bool
    ignore_eos: bool


def request_of(
    info: ModelInfo,
    tokenizer: Tokenizer | None,
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop: str | Sequence[str],
    logprobs: bool,
    ignore_eos: bool,
) -> Request:
    """The arguments of `generate` and `stream`. Raises AgentCompileError (usage) naming the argument and its value."""
    sampling = Sampling(
        temperature=arguments.real("temperature", temperature, 0.0, 100.0, "0 is greedy, 1 samples as trained"),
        top_k=arguments.whole("top_k", top_k, 0, MOST),
        top_p=arguments.real("top_p", top_p, 0.0, 1.0, "1 keeps the whole vocabulary"),
        seed=arguments.whole("seed", seed, -(2**63), 2**64 - 1),
    )
    count = arguments.whole("max_new_tokens", max_new_tokens, 0, MOST)
    stops = arguments.texts("stop", stop)
    if any(stops) and tokenizer is None:
        raise AgentCompileError(f"stop: {info.name} has no tokenizer", hint="stop at token ids in a stream")
    return Request(
        max_new_tokens=count,
        sampling=sampling,
        stop=stops,
        logprobs=arguments.switch("logprobs", logprobs),
        ignore_eos=arguments.switch("ignore_eos", ignore_eos),
    )


def tokens_of(info: ModelInfo, tokenizer: Tokenizer | None, prompt: object, name: str = "prompt") -> array[int]:
    """A prompt's tokens, checked; as an array, since a list of thousands takes a part of a first token's time.

    Raises AgentCompileError (usage) for what is no prompt, an empty one, one longer than the cache, or an id that is
    not in the vocabulary.
    """
    if isinstance(prompt, str):
        ids = _encoded(info, tokenizer, arguments.text(name, prompt))
    else:
        listed = arguments.listed(name, prompt)
        _fits(info, name, len(listed))
        ids = arguments.ids(name, listed)
    if len(ids) == 0:
        raise AgentCompileError(f"the {name} is empty", hint="give at least one token")
    _fits(info, name, len(ids))
    least, most = (int(end) for end in torch.frombuffer(ids, dtype=torch.int64).aminmax())
    if least < 0 or most >= info.vocab:
        text = f"token id {least if least < 0 else most} is outside the vocabulary of {info.vocab}"
        raise AgentCompileError(text, hint="use the tokenizer that belongs to this checkpoint")
    return ids


def _fits(info: ModelInfo, name: str, count: int) -> None:
    if count > info.context:
        text = f"a {name} of {count} tokens is longer than the cache of {info.context}"
        raise AgentCompileError(text, hint=f"shorten it, or compile with --context {count} or more")


def positions_of(positions: Sequence[int] | None, count: int) -> set[int]:
    """The positions among `count` that are asked for. Raises AgentCompileError (usage) for one that is not there."""
    if positions is None:
        return set(range(count))
    wanted = arguments.ids("positions", positions)
    if len(wanted) == 0:
        raise AgentCompileError("positions: is empty", hint="give at least one, or None for all")
    for one in (min(wanted), max(wanted)):
        arguments.whole("positions", one, 0, count - 1)
    return set(wanted)


def _encoded(info: ModelInfo, tokenizer: Tokenizer | None, prompt: str) -> array[int]:
    """A text's tokens. One that is far too long is told by its beginning: tokenising megabytes takes seconds."""
    if tokenizer is None:
        raise AgentCompileError(f"{info.name}: there is no tokenizer", hint="pass token ids")
    size = _PER_TOKEN * info.context + _SLACK
    while size < len(prompt):
        made = len(tokenizer.encode(prompt[:size]))
        if made > info.context + _CUT:
            text = f"a prompt of {len(prompt)} characters is longer than the cache of {info.context} tokens"
            raise AgentCompileError(text, hint=f"shorten it: its first {size} characters are {made} tokens")
        size *= _GROWTH
    return array("q", tokenizer.encode(prompt))
