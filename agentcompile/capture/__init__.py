"""Capture: a decoder to a decode graph and a prefill graph, normalised, with their constants.

In: a local checkpoint directory, or an `nn.Module` of the protocol (`protocol.py`) and a directory to save it to.
Out: `Captured`. No weight is read to capture a directory: shapes are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentcompile.capture.exporting import Program, export, normalise
from agentcompile.capture.layout import TOKENS
from agentcompile.checkpoint import Checkpoint, read_json
from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import Graph
from agentcompile.ir.model import ModelInfo, State
from agentcompile.reference import DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A model as every later stage sees it."""

    info: ModelInfo
    decode: Graph
    prefill: Graph
    constants: dict[str, torch.Tensor]
    """Position tables and other constants, by the name their graph values have."""
    checkpoint: Path
    """Where the weights lie; weight values are named as there."""


def capture(model: str | Path | torch.nn.Module, *, context: int, save_to: str | Path | None = None) -> Captured:
    """Capture a checkpoint directory, or a protocol decoder whose weights are saved to `save_to`.

    `context` is the number of tokens the cache holds. Raises `AgentCompileError` for what the user can fix.
    """
    if isinstance(model, torch.nn.Module):
        raise NotImplementedError
    return _directory(Path(model), context)


def _directory(path: Path, context: int) -> Captured:
    from agentcompile.capture.huggingface import HuggingFaceDecoder, build

    checkpoint = Checkpoint.open(path)
    config = dict(checkpoint.config)
    limit = config.get("max_position_embeddings")
    if context < 2 or (limit is not None and context > limit):
        raise AgentCompileError(f"context: {context} is outside 2..{limit} of {path / 'config.json'}", hint="choose a context that the model was made for")
    dtype = _dtype(checkpoint)
    model, mode = build(path, config, DTYPES[dtype])
    parsed: Any = model.config
    heads = parsed.num_attention_heads
    head_dim = getattr(parsed, "head_dim", None) or parsed.hidden_size // heads
    kv_heads = getattr(parsed, "num_key_value_heads", None) or heads
    shape = (1, kv_heads, context, head_dim)
    states = tuple(State(name=f"{kind}.{i}", shape=shape, dtype=dtype) for i in range(parsed.num_hidden_layers) for kind in "kv")
    decoder = HuggingFaceDecoder(model, context)
    program = export(decoder, states, DTYPES[dtype], context, _names(model, checkpoint), fake=mode, prefix="decoder.model")
    info = ModelInfo(
        name=path.resolve().name,
        architecture=type(model).__name__,
        vocab=parsed.vocab_size,
        hidden=parsed.hidden_size,
        layers=parsed.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        dtype=dtype,
        eos=_eos(path, config),
        states=states,
        config_digest=checkpoint.config_digest(),
        weights_digest="",
    )
    return finish(info, program, checkpoint)


def finish(info: ModelInfo, program: Program, checkpoint: Checkpoint) -> Captured:
    """Normalise both phases and check every weight they read against the checkpoint."""
    constants: dict[str, torch.Tensor] = {}
    decode = normalise(program, 1, constants)
    prefill = replace(decode, phase="prefill", outputs=decode.outputs[:1]) if program.fixed else normalise(program, TOKENS, constants)
    for graph in (decode, prefill):
        for value in graph.values:
            if value.role == "weight":
                checkpoint.expect(value.name, tuple(int(n) for n in value.shape), value.dtype)
    return Captured(info=info, decode=decode, prefill=prefill, constants=constants, checkpoint=checkpoint.path)


def _dtype(checkpoint: Checkpoint) -> Any:
    """The element type of most stored values."""
    counts: dict[str, int] = {}
    for info in checkpoint.tensors().values():
        counts[info.dtype] = counts.get(info.dtype, 0) + info.nbytes
    kind = max(counts, key=lambda k: counts[k]) if counts else "none"
    if kind not in ("bf16", "fp16", "fp32"):
        raise AgentCompileError(f"{checkpoint.path}: weights of element type {kind}", hint="save the weights as bf16, fp16 or fp32")
    return kind


def _names(model: torch.nn.Module, checkpoint: Checkpoint) -> dict[str, str]:
    """Parameter paths (below the protocol wrapper) to checkpoint names; tied parameters share the first stored one."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    out: dict[str, str] = {}
    for group in groups.values():
        stored = next((name for name in group if name in checkpoint.tensors()), group[0])
        out.update({f"model.{name}": stored for name in group})
    return out


def _eos(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Stop tokens: generation_config.json before config.json."""
    source = config
    if (path / "generation_config.json").exists():
        source = {**config, **read_json(path / "generation_config.json", "download it again, or remove it")}
    value = source.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    return tuple(sorted(i for i in ids if isinstance(i, int)))
