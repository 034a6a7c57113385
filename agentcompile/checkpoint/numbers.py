"""Checks of the numbers in a config.json: sizes, finite factors, and how many tokens a model was made for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from agentcompile.errors import AgentCompileError

LARGEST = 10_000_000
"""A bound that no extent of a real decoder reaches; a config with a larger number is broken."""
NEEDED = {
    "vocab_size": (),
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
}
"""Config keys that must be there, each with the names that other architectures give it."""
CONTEXTS = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "max_seq_length", "seq_length"),
    *("n_ctx", "max_target_positions"),
)
"""The names that architectures give the number of positions that they were made for."""
EXTENTS = ("num_key_value_heads", "num_kv_heads", "head_dim", "n_inner", "ffn_dim", "rotary_dim", "sliding_window")
"""Further keys that must be whole and positive where they are given."""
POSITIVE = (
    *("rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "rope_base"),
    *("factor", "low_freq_factor", "high_freq_factor", "partial_rotary_factor", "rotary_pct"),
)
"""Keys that must be positive numbers at any depth: rotary bases and factors."""
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "layernorm_epsilon")
"""Keys that must be numbers from 0 to less than 1."""
FACTORS = ("short_factor", "long_factor")
DTYPE_KEYS = ("dtype", "torch_dtype")
DTYPE_NAMES = ("float32", "float16", "bfloat16", "float64", "float", "half", "double", "auto")
"""The values that `DTYPE_KEYS` may have, with or without ``torch.`` before them."""
STOPS = ("eos_token_id", "bos_token_id", "pad_token_id")


def check_numbers(path: Path, config: Mapping[str, Any]) -> None:
    """Check every number of a config for values that no decoder can have.

    Raises:
        AgentCompileError: there is one (usage); the error has the first one's key, value and the remedy.
    """  # noqa: DOC501
    for key, value in leaves(config):
        name = key.rpartition(".")[2]
        if _is_no_text(key) or (isinstance(value, str) and _is_no_text(value)):
            raise _wrong(path, ascii(key), value, "text that UTF-8 can hold is expected")
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong(path, key, value, "a finite number is expected")
        if name in POSITIVE and value is not None and not (_is_number(value) and value > 0):
            raise _wrong(path, key, value, "a positive number is expected")
        if name in EPSILONS and value is not None and not (_is_number(value) and 0 <= value < 1):
            raise _wrong(path, key, value, "a number from 0 to less than 1 is expected")
        if name.partition("[")[0] in FACTORS and not (_is_number(value) and value > 0):
            raise _wrong(path, key, value, "positive numbers are expected")
        if name.partition("[")[0] in DTYPE_KEYS and value is not None and not ("[" not in name and _is_dtype(value)):
            raise _wrong(path, key, value, f"one of {', '.join(DTYPE_NAMES[:4])} is expected")
        _check_stop(path, key, value)
    _check_sizes(path, config)


def check_stops(path: Path, config: Mapping[str, Any]) -> None:
    """Check that the tokens that begin, end or pad a text are token ids.

    Raises:
        AgentCompileError: one is not a whole number (usage).
    """
    for key in STOPS:
        value = config.get(key)
        for one in value if isinstance(value, list) else [value]:
            _check_stop(path, key, one)


def _check_stop(path: Path, key: str, value: Any) -> None:
    if key.rpartition(".")[2].partition("[")[0] in STOPS and value is not None and type(value) is not int:
        raise _wrong(path, key, value, "a token id, which is a whole number, is expected")


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and value.removeprefix("torch.") in DTYPE_NAMES


def _check_sizes(path: Path, config: Mapping[str, Any]) -> None:
    for key, others in NEEDED.items():
        spelled = [name for name in (key, *others) if config.get(name) is not None]
        if not spelled and not isinstance(config.get("text_config"), dict):
            raise _wrong(path, key, config.get(key), f"a whole number from 1 to {LARGEST} is expected")
        for name in spelled:
            _check_size(path, name, config[name])
    for key in (*EXTENTS, *CONTEXTS, "intermediate_size"):
        value = config.get(key)
        for one in value if key == "intermediate_size" and isinstance(value, list) else [value]:
            if one is not None:
                _check_size(path, key, one)
    heads, hidden = _first(config, "num_attention_heads"), _first(config, "hidden_size")
    if heads is None or hidden is None:
        return
    groups = config.get("num_key_value_heads") or heads
    if heads % groups:
        raise AgentCompileError(
            f"{path}: num_key_value_heads: {groups} does not divide num_attention_heads {heads}",
            hint="every key-value head serves the same number of query heads",
        )
    if config.get("head_dim") is None and hidden % heads:
        raise AgentCompileError(
            f"{path}: num_attention_heads: {heads} does not divide hidden_size {hidden}",
            hint="give head_dim, or sizes that divide",
        )


def context_limit(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the key that limits the context most, and its value; None for a config without such a limit.

    LongRoPE (Ding et al. 2024) has one set of factors up to the original number of positions and another beyond it,
    chosen by a sequence's length; a captured model has only the first set.
    """
    found: list[tuple[int, str]] = []
    for table, inner in (("", config), ("text_config.", config.get("text_config"))):
        if not isinstance(inner, dict):
            continue
        found += [(inner[key], f"{table}{key}") for key in CONTEXTS if type(inner.get(key)) is int]
        for name in ("rope_scaling", "rope_parameters"):
            rope = inner.get(name)
            if not isinstance(rope, dict) or (rope.get("rope_type") or rope.get("type")) not in ("longrope", "su"):
                continue
            key = "original_max_position_embeddings"
            owner, where = (rope, f"{table}{name}.{key}") if type(rope.get(key)) is int else (inner, f"{table}{key}")
            if type(owner.get(key)) is int:
                found.append((owner[key], where))
    return min(found)[::-1] if found else None


def check_context(path: Path, config: Mapping[str, Any], context: int) -> None:
    """Check that a context is at least 2 tokens, and not more than the model was made for.

    Raises:
        AgentCompileError: it is out of that range (usage).
    """
    if context < 2:
        raise AgentCompileError(f"context: {context} is less than 2", hint="the cache holds prompt and answer together")
    limit = context_limit(config)
    if limit is not None and context > limit[1]:
        key, most = limit
        raise AgentCompileError(
            f"context: {context} is more than {key} {most} of {path}", hint=f"choose a context of at most {most}"
        )


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every scalar of a config with its dotted key, however deeply it is nested."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, Mapping):
            stack += [(f"{key}.{name}" if key else str(name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            stack += [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
        else:
            yield key, value


def _check_size(path: Path, key: str, value: Any) -> None:
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise _wrong(path, key, value, f"a whole number from 1 to {LARGEST} is expected")


def _first(config: Mapping[str, Any], key: str) -> int | None:
    return next((config[name] for name in (key, *NEEDED[key]) if config.get(name) is not None), None)


def _is_no_text(value: str) -> bool:
    """Return whether `value` holds a lone surrogate, which JSON can spell and UTF-8 cannot encode."""
    return not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(path: Path, key: str, value: Any, hint: str) -> AgentCompileError:
    shown = ascii(value)
    return AgentCompileError(f"{path}: {key}: {shown if len(shown) <= 60 else shown[:60] + '…'}", hint=hint)
