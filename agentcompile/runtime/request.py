"""Checks of what a caller asks of a model: prompts become token ids, settings become a `Request`."""

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
"""The largest number of tokens that is accepted as an argument."""
_PER_TOKEN, _SLACK = 4, 4096
"""Of a long text, `_PER_TOKEN` characters per token of the cache plus `_SLACK` are tokenised first."""
_GROWTH = 4
_CUT = 64  # how many more tokens a cut piece of text may have at its end than the same characters of the whole text


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The settings with which a prompt is completed."""

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
    """Check the arguments of `generate` and `stream` and return them as a `Request`.

    Raises:
        AgentCompileError: an argument is of a wrong type or out of range, or stop strings are given and the model has
            no tokenizer (usage); the message names the argument and its value.
    """
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
    """Return a prompt's tokens, checked, as an array: a list of thousands takes a noticeable part of TTFT.

    Raises:
        AgentCompileError: it is not a prompt, is empty or longer than the cache, or has an id outside the vocabulary
            (usage).
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


def positions_of(positions: Sequence[int], count: int) -> set[int]:
    """Return the positions, among `count`, that are asked for.

    Raises:
        AgentCompileError: the list is empty or has a position outside 0..`count` - 1 (usage).
    """
    wanted = arguments.ids("positions", positions)
    if len(wanted) == 0:
        raise AgentCompileError("positions: is empty", hint="give at least one, or None for all")
    for one in (min(wanted), max(wanted)):
        arguments.whole("positions", one, 0, count - 1)
    return set(wanted)


def _encoded(info: ModelInfo, tokenizer: Tokenizer | None, prompt: str) -> array[int]:
    # A text far too long is refused after its beginning, as tokenising megabytes takes seconds.
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
