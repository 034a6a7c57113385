"""Capture of a decoder as a normalised decode graph and prefill graph with their constants.

In: a local checkpoint directory, or an `nn.Module` that follows the protocol (`protocol.py`) and a directory to save it
to. Out: `Captured`. Capturing a directory reads no weights, because shapes are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor

from agentcompile.capture import module as in_memory
from agentcompile.capture.exporting import ExportedDecoder, export, normalise
from agentcompile.capture.layout import TOKENS
from agentcompile.capture.naming import stored_names
from agentcompile.capture.structure import caches_of
from agentcompile.checkpoint import Checkpoint, read_json
from agentcompile.checkpoint.convert import name_of
from agentcompile.checkpoint.numbers import check_context, check_stops
from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import DType, Graph
from agentcompile.ir.model import ModelInfo, StateBuffer
from agentcompile.ops.reference import DTYPES, Interpreter

LENGTHS = (2, 13)
"""Prompt lengths, in tokens, at which a prefill graph is checked; the graph was traced with other lengths."""
FLOATS: tuple[DType, ...] = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A captured model, as every later stage uses it."""

    info: ModelInfo
    decode: Graph
    prefill: Graph
    """The graph for T tokens at a time, any T; T is 1 when the decoder could not be traced for a symbolic T."""
    constants: dict[str, torch.Tensor]
    """Position tables and other constants, by the name of their graph values."""
    checkpoint: Path
    """The directory of the weights; graph values have the names of the stored weights."""


def capture(model: str | Path | torch.nn.Module, *, context: int, save_to: str | Path | None = None) -> Captured:
    """Capture a checkpoint directory, or a protocol decoder whose weights are saved to `save_to`.

    `context` is the number of tokens that the cache holds.

    Raises:
        AgentCompileError: the model cannot be captured for a reason the user can fix, such as a module without
            `save_to`.
    """
    if not isinstance(model, torch.nn.Module):
        return _directory(Path(model), context)
    if save_to is None:
        raise AgentCompileError(
            f"{type(model).__name__}: nowhere to save its weights", hint="give save_to, a directory"
        )
    return _module(model, Path(save_to), context)


def _directory(path: Path, context: int) -> Captured:
    from agentcompile.capture.huggingface import HuggingFaceDecoder, build, positions_of

    checkpoint = Checkpoint.open(path)
    config = dict(checkpoint.config)
    if config["model_type"] == in_memory.MODEL_TYPE:
        raise AgentCompileError(
            f"{path / 'config.json'}: model_type: {in_memory.MODEL_TYPE}: saved from a module, without its code",
            hint="give the nn.Module itself",
        )
    stored, layers = len(checkpoint.tensors()), config.get("num_hidden_layers") or config.get("n_layer") or 0
    if layers > stored:
        raise AgentCompileError(
            f"{path / 'config.json'}: num_hidden_layers: {layers}, but only {stored} tensors are stored",
            hint="use the config.json that the weights were saved with",
        )
    check_context(path / "config.json", config, context)
    dtype = _dtype(checkpoint)
    model, mode = build(path, config, DTYPES[dtype])
    parsed: Any = model.config
    check_context(path / "config.json", positions_of(parsed), context)
    names = stored_names(model, checkpoint.tensors())
    caches = caches_of(model, mode, path / "config.json")
    heads = int(parsed.num_attention_heads)
    info = _info(
        name=name_of(path),
        architecture=type(model).__name__,
        vocab=int(parsed.vocab_size),
        hidden=int(parsed.hidden_size),
        layers=caches.layers,
        heads=heads,
        kv_heads=caches.kv_heads,
        head_dim=caches.head_dim,
        context=context,
        dtype=dtype,
        eos=_eos(path, config, parsed),
        checkpoint=checkpoint,
    )
    decoder = HuggingFaceDecoder(model, context)
    program = export(
        decoder,
        info.states,
        DTYPES[dtype],
        context,
        {f"model.{name}": stored for name, stored in names.items()},
        fake=mode,
        prefix="decoder.model",
    )
    return _finish(info, program, checkpoint)


def _module(model: torch.nn.Module, path: Path, context: int) -> Captured:
    spec = in_memory.spec_of(model)
    check_context(path, {}, context)
    in_memory.save(model, spec, path)
    checkpoint = Checkpoint.open(path)
    info = _info(
        name=type(model).__name__,
        architecture=type(model).__name__,
        vocab=spec.vocab,
        hidden=spec.hidden,
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        context=context,
        dtype=_dtype(checkpoint),
        eos=tuple(sorted(spec.eos)),
        checkpoint=checkpoint,
    )
    training = [part for part in model.modules() if part.training]
    try:
        program = export(model, info.states, DTYPES[info.dtype], context, in_memory.names(model))
    finally:
        for part in training:
            part.training = True
    return _finish(info, program, checkpoint)


def _info(
    *, checkpoint: Checkpoint, kv_heads: int, context: int, head_dim: int, layers: int, dtype: DType, **rest: Any
) -> ModelInfo:
    shape = (1, kv_heads, context, head_dim)
    return ModelInfo(
        kv_heads=kv_heads,
        context=context,
        head_dim=head_dim,
        layers=layers,
        dtype=dtype,
        states=tuple(StateBuffer(name=f"{kind}.{i}", shape=shape, dtype=dtype) for i in range(layers) for kind in "kv"),
        config_digest=checkpoint.config_digest(),
        weights_digest="",
        **rest,
    )


def _finish(info: ModelInfo, program: ExportedDecoder, checkpoint: Checkpoint) -> Captured:
    constants: dict[str, torch.Tensor] = {}
    decode = normalise(program, 1, constants)
    if why := _fault(decode, 1):
        text = f"{info.architecture}: cannot be captured: its graph does not run on one token: {why}"
        raise AgentCompileError(text, hint="use a decoder-only transformer, such as Llama, Qwen3 or Mistral")
    prefill = decode if program.fixed else normalise(program, TOKENS, constants)
    if program.fixed or any(_fault(prefill, min(tokens, info.context)) for tokens in LENGTHS):
        note = "prefill takes one token at a time: the decoder cannot be traced for a symbolic number of tokens"
        prefill = replace(decode, phase="prefill", outputs=decode.outputs[:1], notes=(*decode.notes, note))
    for graph in (decode, prefill):
        for value in graph.values:
            if value.role == "weight":
                checkpoint.expect(value.name, tuple(int(n) for n in value.shape), value.dtype)
    return Captured(info=info, decode=decode, prefill=prefill, constants=constants, checkpoint=checkpoint.path)


def _fault(graph: Graph, tokens: int) -> str:
    """Return why `graph` cannot run on `tokens` tokens; empty when it can, or when shapes alone cannot tell."""
    table = graph.table()
    positions = torch.arange(tokens)  # real, because an operator may read the positions
    try:
        with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
            bound = {
                name: torch.zeros(
                    [tokens if isinstance(extent, str) else extent for extent in table[name].shape],
                    dtype=DTYPES[table[name].dtype],
                )
                for name in graph.inputs
            }
            bound["positions"] = positions
            logits = Interpreter(graph)(bound)["logits"]
    except (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
    ):
        return ""
    except Exception as error:  # noqa: BLE001 - whatever an operator raises on shapes that do not fit
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return "" if logits.numel() == logits.shape[-1] else f"logits of {list(logits.shape)} for the last token"


def _dtype(checkpoint: Checkpoint) -> DType:
    kind = checkpoint.element_type()
    if kind not in FLOATS:
        raise AgentCompileError(
            f"{checkpoint.path}: weights of element type {kind}", hint="save the weights as bf16, fp16 or fp32"
        )
    return kind


def _eos(path: Path, config: dict[str, Any], parsed: Any) -> tuple[int, ...]:
    """Return the stop tokens, sorted.

    generation_config.json comes before config.json; the default of the config class counts where both are silent.
    """
    source, file = config, path / "generation_config.json"
    if file.exists():
        said = read_json(file, "download it again, or remove it")
        check_stops(file, said)
        source = {**config, **said}
    value = source.get("eos_token_id", getattr(parsed, "eos_token_id", None))
    ids = value if isinstance(value, list) else [value]
    return tuple(sorted({i for i in ids if isinstance(i, int)}))
