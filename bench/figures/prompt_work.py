"""The least time to the first token that a machine's rates allow, by length of the prompt."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

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
    """Query heads times their dimension, summed over layers."""

    def flops(self, tokens: int) -> int:
        """Return the operations of a prompt of `tokens`: products of matrices, and causal attention."""
        products = 2 * tokens * self.layer_weights + 2 * self.head_weights
        return products + 2 * tokens * (tokens + 1) * self.attention_width

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
        attention_width=int(config["num_hidden_layers"]) * heads * dim,
    )
