"""The arguments of `generate`, `stream` and `chat` beside the prompt: their names, types and defaults in one place."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, get_type_hints

from agentcompile import arguments
from agentcompile.errors import AgentCompileError

Verb = TypeVar("Verb", bound=Callable[..., Any])


class CompletionSettings(TypedDict, total=False):
    """How prompts are completed; the last three have the names of Hugging Face's `generate`. None is the default."""

    max_new_tokens: int | None
    """The most tokens that are made; the prompt does not count."""
    temperature: float | None
    """0 is greedy, 1 samples as trained."""
    top_k: int | None
    """Draw among so many of the likeliest tokens; 0 keeps the whole vocabulary."""
    top_p: float | None
    """Draw among the likeliest tokens that together have this probability; 1 keeps the whole vocabulary."""
    seed: int
    """The same seed gives the same tokens."""
    stop: str | Sequence[str]
    """Texts that end the generation; nothing from one on is given out."""
    logprobs: bool | int
    """True: the log-probability of every token; k: those of the k likeliest ids at its place as well."""
    ignore_eos: bool
    """Whether the generation goes on after an end-of-sequence token."""
    do_sample: bool | None
    """False: greedy, whatever the temperature; True: the temperature, 1 where that is 0; None: the temperature."""
    stop_strings: str | Sequence[str] | None
    """The same as `stop`."""
    eos_token_id: int | Sequence[int] | None
    """The end-of-sequence ids, in place of those of the checkpoint."""


DEFAULTS: Mapping[str, Any] = {
    "max_new_tokens": 128,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 0,
    "stop": (),
    "logprobs": False,
    "ignore_eos": False,
    "do_sample": None,
    "stop_strings": None,
    "eos_token_id": None,
}
"""Every setting with its default, in the order of `CompletionSettings`."""

_REMEDIES: Mapping[str, str] = {
    "max_length": "give max_new_tokens, which counts the new tokens alone",
    "attention_mask": "pass a list of prompts, each without padding; agentcompile.hf.wrap takes padded tensors",
    "input_ids": "pass the ids as the prompt, the first argument",
    "num_return_sequences": "give n to `generate`",
    "n": "`generate` alone makes several completions of a prompt",
    "num_beams": "only greedy decoding and sampling are there",
    "streamer": "iterate over `stream`, or use agentcompile.hf.wrap",
}


def known(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting: what is given over the defaults; None is not given, and values are not checked.

    Raises:
        AgentCompileError: there is no such setting (usage); the hint names the nearest, or what to give in its place.
    """
    for name, value in given.items():
        if name not in DEFAULTS:
            text = f"{name}: {arguments.shown(value)}: there is no such argument"
            near = difflib.get_close_matches(name, DEFAULTS, n=1, cutoff=0.5)
            every = f"the arguments are prompt, {', '.join(DEFAULTS)}"
            raise AgentCompileError(text, hint=_REMEDIES.get(name, f"did you mean {near[0]}?" if near else every))
    return {**DEFAULTS, **{name: value for name, value in given.items() if value is not None}}


def shows_settings(verb: Verb) -> Verb:
    """Give a function that takes `**settings: Unpack[Settings]` a signature that lists them, for `help` and editors."""
    own = inspect.signature(verb)
    types = get_type_hints(CompletionSettings)
    fixed = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    listed = [
        inspect.Parameter(name, keyword, default=default, annotation=types[name]) for name, default in DEFAULTS.items()
    ]
    verb.__dict__["__signature__"] = own.replace(parameters=[*fixed, *listed])
    return verb
