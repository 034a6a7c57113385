"""The least time to the first token that a machine's rates allow, by length of the prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcompile.ir.target import Ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWork:
    """What a decoder must compute and read for a prompt, in numbers of its checkpoint."""

    layer_weights: int
    """Numbers in the matrices of all layers; each is multiplied once for every token."""
    head_weights: int
    """Numbers in the head's matrix, which the last token alone is multiplied with."""
    weight_bytes: int
    """Bytes of both."""
    attention_width: int
    """Query heads times their dimension, of one layer."""
    windows: tuple[int, ...]
    """The tokens that a token sees, itself included, in each layer; 0: all that are before it."""

    def flops(self, tokens: int) -> int:
        """Return the operations of a prompt of `tokens`: products of matrices, and causal attention."""
        products = 2 * tokens * self.layer_weights + 2 * self.head_weights
        return products + 4 * self.attention_width * sum(_pairs(tokens, window) for window in self.windows)

    def floor_s(self, tokens: int, ceiling: Ceiling) -> float:
        """Return the roofline in seconds: all operations at the matrix rate, or all weights read once from memory."""
        return max(self.flops(tokens) / ceiling.flops_per_s, self.weight_bytes / ceiling.dram_bytes_per_s)


def work_of(model: Path) -> PromptWork | None:
    """Return the work of the checkpoint in the directory `model`, from its configuration and its tensors' shapes.

    None where these names say nothing of it: layers of another name, or experts, of which a token meets a few.
    """
    from safetensors import safe_open

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if not {"num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size"} <= config.keys():
        return None
    heads = int(config["num_attention_heads"])
    dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    layer_weights = 0
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                shape = file.get_slice(name).get_shape()
                if ".layers." in f".{name}" and len(shape) == 2:
                    layer_weights += math.prod(shape)
    if not layer_weights or "num_experts" in config or "num_local_experts" in config:
        return None
    head = int(config["vocab_size"]) * int(config["hidden_size"])
    return PromptWork(
        layer_weights=layer_weights,
        head_weights=head,
        weight_bytes=2 * (layer_weights + head),  # every arm runs in 16 bits
        attention_width=heads * dim,
        windows=_windows(config),
    )


def _pairs(tokens: int, window: int) -> int:
    """Return the pairs of a token and one that it sees, in a prompt of `tokens`."""
    seen = min(window, tokens) if window else tokens
    return seen * (seen + 1) // 2 + (tokens - seen) * seen


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return each layer's window as a configuration names it: by a list of layers, by every n-th, or for all."""
    layers = int(config["num_hidden_layers"])
    window = int(config.get("sliding_window") or 0) if config.get("use_sliding_window", True) else 0
    if kinds := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    whole = int(config.get("sliding_window_pattern") or 0)
    return tuple(0 if whole and (layer + 1) % whole == 0 else window for layer in range(layers))
