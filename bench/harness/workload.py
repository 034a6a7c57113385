"""The request to every arm: a checkpoint, a prompt and a number of new tokens; and the bytes that a token must read."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.checkpoint import Checkpoint
from agentcompile.options import DEFAULT_CONTEXT

PROMPT_TOKENS = {"cpu": 32, "cuda": 128}
NEW_TOKENS = {"cpu": 64, "cuda": 128}
CONTEXT = {"cpu": 128, "cuda": 256}
"""Tokens of KV cache that peers get by default: prompt and new tokens, rounded up to a power of two."""
_ROOM = 128
"""The multiple to which other lengths of the KV cache are rounded up: an attention kernel's block of tokens."""
CACHE_ITEM_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One checkpoint with its prompt, for batch 1."""

    name: str
    model: Path
    ids: tuple[int, ...]
    new: int
    context: int
    """Tokens of KV cache that the peers get."""
    token_bytes: int
    """Bytes that one decode step reads at least, at the mean context of the generation."""
    weight_bytes: int
    """Bytes of all tensors of the checkpoint."""
    cache_bytes: int
    """Bytes of our KV cache for one sequence, at a lock's default context unless a lock says otherwise."""
    parameters: int
    sampling: dict[str, float | int] | None = None
    """The sampling settings (temperature, top_p, seed); None for greedy."""


def make_workload(
    name: str,
    model: Path,
    *,
    seed: int,
    kind: str = "cpu",
    tokens: tuple[int, int] | None = None,
    sampling: dict[str, float | int] | None = None,
) -> Workload:
    """Read a checkpoint's header and choose its prompt: text where there is a tokenizer, else random ids.

    `tokens` is the number of prompt tokens and of new tokens, by default those of `PROMPT_TOKENS` and `NEW_TOKENS`.
    """
    checkpoint = Checkpoint.open(model)
    wanted, new = tokens or (PROMPT_TOKENS[kind], NEW_TOKENS[kind])
    ids = tuple(prompt(model, int(checkpoint.config["vocab_size"]), seed, wanted))
    context = CONTEXT[kind] if tokens is None else -(-(wanted + new) // _ROOM) * _ROOM
    tensors = {key: info.nbytes for key, info in checkpoint.tensors().items()}
    shapes = [info.shape for info in checkpoint.tensors().values()]
    return Workload(
        name=name,
        model=model,
        ids=ids,
        new=new,
        context=context,
        token_bytes=token_bytes(checkpoint.config, tensors, prompt=len(ids), new=new),
        weight_bytes=sum(tensors.values()),
        cache_bytes=CACHE_ITEM_BYTES * per_position(checkpoint.config) * DEFAULT_CONTEXT,
        parameters=sum(math.prod(shape) for shape in shapes),
        sampling=sampling,
    )


def token_bytes(config: Mapping[str, Any], tensors: Mapping[str, int], *, prompt: int, new: int) -> int:
    """Return the bytes that a decode step reads: every weight once, and the mean of the KV cache.

    Of an embedding that is not also the head it reads one row. The cache is read up to and with the token itself; the
    steps after the first new token are at positions prompt … prompt + new − 2.
    """
    total = sum(tensors.values())
    table = "model.embed_tokens.weight"
    if "lm_head.weight" in tensors:
        total -= tensors[table]
    total += tensors[table] // int(config["vocab_size"])
    return total + mean_cache_bytes(config, prompt=prompt, new=new)


def mean_cache_bytes(config: Mapping[str, Any], *, prompt: int, new: int) -> int:
    """Return the bytes of keys and values that a decode step of the generation reads in the mean."""
    steps = range(prompt, prompt + new - 1)
    mean_context = sum(position + 1 for position in steps) / max(len(steps), 1)
    return round(CACHE_ITEM_BYTES * per_position(config) * mean_context)


def per_position(config: Mapping[str, Any]) -> int:
    """Return the number of elements of keys and values that one position takes over all layers."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * int(config["num_hidden_layers"]) * int(config["num_key_value_heads"]) * int(head_dim)


def prompt(model: Path, vocab: int, seed: int, count: int) -> list[int]:
    """Return `count` ids: the head of one of our own sources, or random ids for a model without a tokenizer."""
    generator = random.Random(seed)
    if (model / "tokenizer.json").is_file():
        from agentcompile.runtime.text import Tokenizer

        tokenizer = Tokenizer(model)
        texts = list(own_sources())
        while texts:
            ids = tokenizer.encode(texts.pop(generator.randrange(len(texts))))
            if len(ids) >= count:
                return ids[:count]
    return [generator.randrange(vocab) for _ in range(count)]


def own_sources() -> Iterator[str]:
    """Yield the text of every module of the compiler in order of path: Python that no checkpoint was trained on."""
    import agentcompile

    root = Path(agentcompile.__file__).parent
    for path in sorted(root.rglob("*.py")):
        yield path.read_text(encoding="utf-8")
