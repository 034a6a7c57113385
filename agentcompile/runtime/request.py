"""Checks of what a caller asks of a model: prompts become token ids, settings become a `Request`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from agentcompile import arguments
from agentcompile.errors import AgentCompileError
from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.sampling import Sampling
from agentcompile.runtime.settings import known
from agentcompile.runtime.text import Tokenizer


class Ids(Protocol):
    """An array or a tensor of token ids, of any library: of shape [T] or [1, T] a prompt, of [B, T] a batch."""

    def tolist(self) -> Any:
        """Return the numbers as a list, or as a list of lists."""


Message = Mapping[str, str]
"""One turn of a conversation: its "role" and its "content"."""
Prompt = str | Sequence[int] | Sequence[Message] | Ids
ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that a message may have; a checkpoint's template may know fewer."""
MOST = 2**31 - 1
"""The largest number of tokens that is accepted as an argument."""
_MESSAGES = 'a list of messages {"role": …, "content": …}'
_PER_TOKEN, _SLACK = 4, 4096
"""Of a long text, `_PER_TOKEN` characters per token of the cache plus `_SLACK` are tokenised first."""
_GROWTH = 4
_FEW = 512
"""The number of ids up to which Python is faster than PyTorch."""
_CUT = 64  # how many more tokens a cut piece of text may have at its end than the same characters of the whole text


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The settings with which a prompt is completed."""

    max_new_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    logprobs: bool
    top_logprobs: int
    """The number of likeliest ids that are given for each token; 0 for none."""
    eos: tuple[int, ...]
    """Token ids that end the generation, sorted."""


def request_of(info: ModelInfo, tokenizer: Tokenizer | None, given: Mapping[str, Any]) -> Request:
    """Check the settings that `generate` and `stream` were given and return them as a `Request`.

    Raises:
        AgentCompileError: a setting is unknown, of a wrong type or out of range, two contradict each other, or stop
            strings are given and the model has no tokenizer (usage); the message names the argument and its value.
    """
    settings = known(given)
    count = arguments.whole("max_new_tokens", settings["max_new_tokens"], 0, MOST)
    stop = _stop(settings)
    if any(stop) and tokenizer is None:
        raise AgentCompileError(f"stop: {info.name} has no tokenizer", hint="stop at token ids: give eos_token_id")
    logprobs = settings["logprobs"]
    top = 0
    if not isinstance(logprobs, bool):
        top = arguments.whole("logprobs", logprobs, 1, info.vocab, "or True or False")
    return Request(
        max_new_tokens=count,
        sampling=_sampling(settings),
        stop=stop,
        logprobs=bool(logprobs) if top == 0 else True,
        top_logprobs=top,
        eos=_eos(info, settings),
    )


def _sampling(settings: Mapping[str, Any]) -> Sampling:
    temperature = arguments.real(
        "temperature", settings["temperature"], 0.0, 100.0, "0 is greedy, 1 samples as trained"
    )
    if settings["do_sample"] is not None:
        samples = arguments.switch("do_sample", settings["do_sample"])
        temperature = (temperature or 1.0) if samples else 0.0
    return Sampling(
        temperature=temperature,
        top_k=arguments.whole("top_k", settings["top_k"], 0, MOST),
        top_p=arguments.real("top_p", settings["top_p"], 0.0, 1.0, "1 keeps the whole vocabulary"),
        seed=arguments.whole("seed", settings["seed"], -(2**63), 2**64 - 1),
    )


def _stop(settings: Mapping[str, Any]) -> tuple[str, ...]:
    stop = arguments.texts("stop", settings["stop"])
    if settings["stop_strings"] is None:
        return stop
    others = arguments.texts("stop_strings", settings["stop_strings"])
    if stop:
        text = f"stop: {arguments.shown(stop)}, and stop_strings: {arguments.shown(others)}"
        raise AgentCompileError(text, hint="they are the same: give one of them")
    return others


def _eos(info: ModelInfo, settings: Mapping[str, Any]) -> tuple[int, ...]:
    ignored, own = arguments.switch("ignore_eos", settings["ignore_eos"]), settings["eos_token_id"]
    if own is None:
        return () if ignored else info.eos
    ids = arguments.one_or_more("eos_token_id", own, 0, info.vocab - 1)
    if ignored:
        text = f"ignore_eos: True, and eos_token_id: {arguments.shown(own)}"
        raise AgentCompileError(text, hint="give one of them: each says what ends the generation")
    return tuple(sorted(set(ids)))


def prompts_of(info: ModelInfo, tokenizer: Tokenizer | None, prompt: object) -> array[int] | list[array[int]]:
    """Return the tokens of one prompt as an array, or of each prompt of a batch as a list of arrays.

    A batch is a list or tuple of prompts, or an array of shape [B, T] with B above 1.

    Raises:
        AgentCompileError: as in `tokens_of`; `prompt[2]` is the third of a batch (usage).
    """
    rows = arguments.rows(prompt)
    every = rows if rows is not None and len(rows) > 1 else prompt
    if not isinstance(every, (list, tuple)) or is_chat(every) or not arguments.is_batch(every):
        return tokens_of(info, tokenizer, every)
    return [tokens_of(info, tokenizer, one, f"prompt[{index}]") for index, one in enumerate(every)]


def is_chat(prompt: object) -> bool:
    """Return whether `prompt` is a list of messages: whether its first item is a mapping."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], Mapping)


def messages_of(name: str, messages: object) -> list[dict[str, str]]:
    """Return a conversation as a list of messages with plain texts.

    Raises:
        AgentCompileError: it is no list of messages, or one has an unknown role, no text, or other keys (usage).
    """  # noqa: DOC501
    if not isinstance(messages, (list, tuple)) or not messages:
        raise arguments.wrong(name, messages, _MESSAGES)
    made = []
    for index, message in enumerate(messages):
        here = f"{name}[{index}]"
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise arguments.wrong(here, message, 'a message {"role": …, "content": …} without other keys')
        role = arguments.text(f"{here}.role", message["role"])
        if role not in ROLES:
            raise arguments.wrong(f"{here}.role", role, ", ".join(ROLES))
        made.append({"role": role, "content": arguments.text(f"{here}.content", message["content"])})
    return made


def tokens_of(info: ModelInfo, tokenizer: Tokenizer | None, prompt: object, name: str = "prompt") -> array[int]:
    """Return a prompt's tokens, checked, as an array: a list of thousands takes a noticeable part of TTFT.

    Raises:
        AgentCompileError: it is not a prompt, is empty or longer than the cache, or has an id outside the vocabulary
            (usage).
    """  # noqa: DOC501
    if isinstance(prompt, str):
        ids = _encoded(info, tokenizer, arguments.text(name, prompt))
    elif is_chat(prompt):
        ids = _rendered(info, tokenizer, messages_of(name, prompt))
    elif isinstance(prompt, Mapping):
        hint = f"a text, token ids, or {_MESSAGES}; of a tokenizer's output pass the input_ids"
        raise arguments.wrong(name, prompt, hint)
    else:
        rows = arguments.rows(prompt)
        listed = arguments.listed(name, rows[0] if rows is not None and len(rows) == 1 else prompt)
        _fits(info, name, len(listed))
        ids = arguments.ids(name, listed)
    if len(ids) == 0:
        raise AgentCompileError(f"the {name} is empty", hint="give at least one token")
    _fits(info, name, len(ids))
    least, most = _ends(ids)
    if least < 0 or most >= info.vocab:
        text = f"token id {least if least < 0 else most} is outside the vocabulary of {info.vocab}"
        raise AgentCompileError(text, hint="use the tokenizer that belongs to this checkpoint")
    return ids


def _ends(ids: array[int]) -> tuple[int, int]:
    """Return the least and the largest id; a tensor's operator takes longer to begin than to look at hundreds."""
    if len(ids) <= _FEW:
        return min(ids), max(ids)
    least, most = torch.frombuffer(ids, dtype=torch.int64).aminmax()
    return int(least), int(most)


def _fits(info: ModelInfo, name: str, count: int) -> None:
    if count > info.context:
        text = f"a {name} of {count} tokens is longer than the cache of {info.context}"
        raise AgentCompileError(text, hint=f"shorten it, or compile with --context {count} or more")


def positions_of(positions: Sequence[int], first: int, count: int) -> set[int]:
    """Return the positions that are asked for, among `count` of which those from `first` on have logits.

    Raises:
        AgentCompileError: the list is empty or has a position outside `first`..`count` - 1 (usage).
    """
    wanted = arguments.ids("positions", positions)
    if len(wanted) == 0:
        raise AgentCompileError("positions: is empty", hint="give at least one, or None for all")
    for one in (min(wanted), max(wanted)):
        arguments.whole("positions", one, first, count - 1)
    return set(wanted)


def _rendered(info: ModelInfo, tokenizer: Tokenizer | None, messages: Sequence[dict[str, str]]) -> array[int]:
    if tokenizer is None:
        raise AgentCompileError(f"{info.name}: there is no tokenizer", hint="pass token ids")
    _refuse_long(info, tokenizer, "".join(message["content"] for message in messages), "chat")
    return array("q", tokenizer.template(messages))


def _encoded(info: ModelInfo, tokenizer: Tokenizer | None, prompt: str) -> array[int]:
    if tokenizer is None:
        raise AgentCompileError(f"{info.name}: there is no tokenizer", hint="pass token ids")
    _refuse_long(info, tokenizer, prompt, "prompt")
    return array("q", tokenizer.encode(prompt))


def _refuse_long(info: ModelInfo, tokenizer: Tokenizer, prompt: str, name: str) -> None:
    """Refuse a text that is far too long after its beginning, as tokenising megabytes takes seconds.

    Raises:
        AgentCompileError: the text does not fit in the cache (usage).
    """
    size = _PER_TOKEN * info.context + _SLACK
    while size < len(prompt):
        made = len(tokenizer.encode(prompt[:size]))
        if made > info.context + _CUT:
            text = f"a {name} of {len(prompt)} characters is longer than the cache of {info.context} tokens"
            raise AgentCompileError(text, hint=f"shorten it: its first {size} characters are {made} tokens")
        size *= _GROWTH
