"""A compiled model as Hugging Face's libraries expect one, so that a pipeline for text generation runs it.

In: token ids as tensors, and the arguments of transformers' `generate`. Out: sequences as tensors. What a compiled
model cannot do is refused by name, never left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from agentcompile import arguments
from agentcompile.errors import AgentCompileError
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.completion import Completion
from agentcompile.runtime.model import MOST_COMPLETIONS, CompiledModel

TOP_K = 50
"""The `top_k` with which transformers draws where neither caller nor checkpoint gives one."""
_DRAWN = ("temperature", "top_k", "top_p")
_SUPPORTED = (
    *("max_new_tokens", "max_length", "stop_strings", "eos_token_id", "pad_token_id", "num_return_sequences"),
    *("do_sample", *_DRAWN, "seed"),
)
_IGNORED = ("bos_token_id", "tokenizer", "transformers_version", "_from_model_config", "use_cache", "disable_compile")
"""Arguments that change no token here: stop strings are found in the checkpoint's own tokenizer."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "repetition_penalty", "length_penalty", "typical_p"), (1,)),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_p", "epsilon_cutoff", "eta_cutoff"), (0,)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "diversity_penalty"), (0,)),
}
"""The values at which an argument that is not supported has no effect, beside None, False and an empty list."""


def wrap(model: CompiledModel) -> CompiledForCausalLM:
    """Return `model` as an object with the `generate`, `config` and `device` that pipelines use.

    The object's class has the name of the checkpoint's architecture, by which pipelines tell what a model can do.

    Raises:
        AgentCompileError: it is no compiled model (usage).
    """  # noqa: DOC501
    if not isinstance(model, CompiledModel):
        raise arguments.wrong("model", model, "a model that agentcompile.load returned")
    own: type[CompiledForCausalLM] = type(model.info.architecture, (CompiledForCausalLM,), {"__module__": __name__})
    return own(model)


class CompiledForCausalLM:
    """A compiled model with the interface of a transformers model for generation; `wrap` makes it."""

    main_input_name = "input_ids"

    def __init__(self, model: CompiledModel) -> None:
        self.compiled = model
        self.name_or_path = str(model.checkpoint)
        self.device = torch.device(model.device)
        self.dtype = DTYPES[model.info.dtype]

    @functools.cached_property
    def config(self) -> Any:
        """The checkpoint's configuration, as transformers reads it.

        Raises:
            AgentCompileError: transformers cannot read it, for example because it is a saved module (usage).
        """
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.name_or_path, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            text = f"{self.name_or_path}: transformers cannot read this configuration: {reason}"
            raise AgentCompileError(text, hint="only a checkpoint of transformers can be wrapped") from error

    @functools.cached_property
    def generation_config(self) -> Any:
        """The checkpoint's defaults for `generate`: generation_config.json, or config.json's where that is missing."""
        from transformers import GenerationConfig

        try:
            return GenerationConfig.from_pretrained(self.name_or_path, local_files_only=True)
        except OSError:
            return GenerationConfig.from_model_config(self.config)

    def can_generate(self) -> bool:
        """Return True."""
        return True

    def eval(self) -> CompiledForCausalLM:
        """Return the model: it is never in training."""
        return self

    def to(self, device: object) -> CompiledForCausalLM:
        """Return the model, which stays where it was compiled for.

        Raises:
            AgentCompileError: that is another device (usage).
        """
        if device in (self.device, str(self.device)):
            return self
        text = f"device: {arguments.shown(device)}: this model was compiled for {self.device}"
        raise AgentCompileError(text, hint=f"pass device={str(self.device)!r}, or compile with that target")

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: Any = None,
        *,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        streamer: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Complete every row of `inputs` [B, T], or `input_ids`; return int64 [B · n, T + new], padded on the right.

        `attention_mask` [B, T] marks padding on the left with 0. Arguments count before `generation_config`, and that
        before the checkpoint's own generation_config.json, as in transformers; what draws is seeded by PyTorch's
        generator (`torch.manual_seed`) unless `seed` is given. n is `num_return_sequences`. A `streamer` gets the
        prompt and then every token, for one row.

        Raises:
            AgentCompileError: an argument is not supported, which it names, or wrong (usage).
        """
        if inputs is not None and input_ids is not None:
            text = f"inputs: {arguments.shown(inputs)}, and input_ids: {arguments.shown(input_ids)}"
            raise AgentCompileError(text, hint="they are the same: give one of them")
        ids, rows = _rows(input_ids if inputs is None else inputs, attention_mask)
        asked = self._asked(generation_config, kwargs)
        copies = arguments.whole("num_return_sequences", asked.pop("num_return_sequences", 1), 1, MOST_COMPLETIONS)
        pad = arguments.whole(
            "pad_token_id", asked.pop("pad_token_id", min(self.compiled.info.eos, default=0)), 0, 2**31
        )
        settings = _settings(asked, ids.shape[1])
        if streamer is None:
            made = [list(one.tokens) for row in self._completions(rows, copies, settings) for one in row]
        elif len(rows) * copies == 1:
            made = [self._streamed(ids, rows[0], streamer, settings)]
        else:
            text = f"streamer: {arguments.shown(streamer)}, for {len(rows) * copies} sequences"
            raise AgentCompileError(text, hint="stream one prompt at a time")
        longest = max(len(tokens) for tokens in made)
        new = [[*tokens, *[pad] * (longest - len(tokens))] for tokens in made]
        prompts = ids.repeat_interleave(copies, dim=0)
        made_ids = torch.tensor(new, dtype=torch.int64).view(len(new), longest)
        return torch.cat([prompts, made_ids], dim=1).to(self.device)

    def _asked(self, config: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the supported arguments: the call's over its configuration's over the checkpoint's.

        Raises:
            AgentCompileError: an argument that is not supported would change the result (usage).
        """
        own = self.generation_config.to_diff_dict()
        own.pop("eos_token_id", None)  # the model has them already
        given = {} if config is None else config.to_diff_dict()
        asked = {name: value for name, value in {**own, **given, **kwargs}.items() if value is not None}
        for name, value in asked.items():
            if name not in (*_SUPPORTED, *_IGNORED) and not _neutral(name, value):
                text = f"{name}: {arguments.shown(value)}: a compiled model does not support it"
                neutral = _NEUTRAL.get(name, (None,))[0]
                raise AgentCompileError(
                    text, hint=f"leave it out; where the checkpoint asks for it, give {name}={neutral}"
                )
        return {name: value for name, value in asked.items() if name in _SUPPORTED}

    def _completions(
        self, rows: Sequence[list[int]], copies: int, settings: Mapping[str, Any]
    ) -> list[Sequence[Completion]]:
        """Return the completions of every row."""
        made: Any
        if copies == 1:
            made = self.compiled.generate(rows, **settings)
            return [[one] for one in made]
        made = [self.compiled.generate(row, n=copies, **settings) for row in rows]
        return list(made)

    def _streamed(self, ids: torch.Tensor, row: list[int], streamer: Any, settings: Mapping[str, Any]) -> list[int]:
        streamer.put(ids)
        tokens: list[int] = []
        for piece in self.compiled.stream(row, **settings):
            for token in piece.tokens:
                streamer.put(torch.tensor([token]))
            tokens += piece.tokens
        streamer.end()
        return tokens


def _rows(input_ids: Any, mask: Any) -> tuple[torch.Tensor, list[list[int]]]:
    """Return prompts as int64 [B, T] on the host, and every prompt's tokens without its padding.

    Raises:
        AgentCompileError: these are no prompts, or one is padded elsewhere than on the left (usage).
    """  # noqa: DOC501
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
        raise arguments.wrong("input_ids", input_ids, "a tensor of token ids, [B, T]; one prompt has B = 1")
    ids = input_ids.to("cpu", torch.int64)
    if mask is None:
        return ids, ids.tolist()
    if not isinstance(mask, torch.Tensor) or mask.shape != ids.shape:
        raise arguments.wrong("attention_mask", mask, f"a tensor of 0 and 1 of the prompts' shape, {list(ids.shape)}")
    kept = mask.to("cpu") != 0
    for index, row in enumerate(kept.tolist()):
        if not row or row != sorted(row) or not row[-1]:
            text = f"attention_mask[{index}]: {arguments.shown([int(one) for one in row])}: padded elsewhere than left"
            raise AgentCompileError(text, hint='set tokenizer.padding_side = "left"')
    return ids, [row[keep].tolist() for row, keep in zip(ids, kept, strict=True)]


def _settings(asked: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the settings of `CompiledModel.generate` for prompts of `length` tokens, padding counted."""
    settings = {name: asked[name] for name in ("max_new_tokens", "stop_strings", "eos_token_id") if name in asked}
    if "max_length" in asked and "max_new_tokens" not in asked:
        most = arguments.whole("max_length", asked["max_length"], length, 2**31, f"above the prompt's {length} tokens")
        settings["max_new_tokens"] = most - length
    if not asked.get("do_sample", False):
        return {**settings, "do_sample": asked.get("do_sample", False)}
    drawn = {"temperature": 1.0, "top_k": TOP_K, "top_p": 1.0, **{k: asked[k] for k in _DRAWN if k in asked}}
    seed = asked["seed"] if "seed" in asked else int(torch.randint(2**63 - 1, (1,)).item())
    return {**settings, **drawn, "do_sample": asked["do_sample"], "seed": seed}


def _neutral(name: str, value: Any) -> bool:
    """Return whether an argument that is not supported has no effect at this value."""
    if isinstance(value, str) or hasattr(value, "shape"):  # an array, which has no truth value of its own
        return False
    return value is False or (isinstance(value, (list, tuple, dict)) and not value) or value in _NEUTRAL.get(name, ())
