"""The facts of a captured model apart from its graphs: extents, dtype, stop tokens, states, and digests."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.graph import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBuffer:
    """A buffer that lives from token to token: one layer's keys (`k.3`) or values (`v.3`)."""

    name: str
    shape: tuple[int, ...]
    """[1, kv_heads, context, head_dim]."""
    dtype: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts that every stage after capture may read without opening the checkpoint."""

    name: str
    """Name for people: the checkpoint directory's name, or the module's class."""
    architecture: str
    """`Qwen3ForCausalLM`, or the class of a hand-written decoder."""
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    """Tokens that the captured cache holds, prompt and completion together."""
    dtype: DType
    """Dtype of weights and activations."""
    eos: tuple[int, ...]
    """Token ids that end generation, sorted."""
    states: tuple[StateBuffer, ...]
    config_digest: str
    weights_digest: str
    """Identity of the tensor bytes; empty until the caller asks the checkpoint for it."""
