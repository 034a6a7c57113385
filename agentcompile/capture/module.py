"""Decoders that are modules in memory; their weights are saved first, so that every later stage reads a path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from agentcompile.capture.protocol import Decoder, DecoderSpec
from agentcompile.checkpoint import SINGLE
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.system.plain_files import write_atomically

MODEL_TYPE = "agentcompile-module"
"""The `model_type` of a directory saved from a module; the directory does not contain the module's code."""


def spec_of(model: torch.nn.Module) -> DecoderSpec:
    """Return the module's spec.

    Raises:
        AgentCompileError: the module is no protocol decoder on the CPU, or its spec is invalid.
    """
    if not isinstance(model, Decoder) or not isinstance(model.spec, DecoderSpec):
        raise AgentCompileError(
            f"{type(model).__name__}: spec: missing, or no DecoderSpec", hint="see agentcompile/capture/protocol.py"
        )
    for name, parameter in model.named_parameters():
        if parameter.device != torch.device("cpu"):
            raise AgentCompileError(
                f"{type(model).__name__}: {name}: is on {parameter.device}", hint="move the module to the CPU"
            )
    spec: DecoderSpec = model.spec
    for key, value in asdict(spec).items():
        if key != "eos" and not 1 <= value <= 10_000_000:
            raise AgentCompileError(
                f"{type(model).__name__}: spec.{key}: {value}", hint="a positive extent is expected"
            )
    if spec.heads % spec.kv_heads:
        raise AgentCompileError(
            f"{type(model).__name__}: spec.kv_heads: {spec.kv_heads} does not divide heads {spec.heads}",
            hint="give every key-value head the same number of query heads",
        )
    return spec


def save(model: torch.nn.Module, spec: DecoderSpec, directory: Path) -> None:
    """Write config.json and model.safetensors, each whole or not at all; tied parameters are written once.

    Raises:
        AgentCompileError: the directory cannot be written (environment).
    """
    from safetensors.torch import save as serialise

    tensors = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    heads: Mapping[str, Any] = {
        "model_type": MODEL_TYPE,
        "architectures": [type(model).__name__],
        "vocab_size": spec.vocab,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "eos_token_id": list(spec.eos),
        "buffers": _buffers(model),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / SINGLE, serialise(tensors, metadata={"format": "pt"}))
        write_atomically(directory / "config.json", (json.dumps(heads, indent=2, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise AgentCompileError(
            f"{directory}: {error.strerror}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="choose a directory that can be written and has room",
        ) from None


def _buffers(model: torch.nn.Module) -> str:
    """Return a digest of the buffers' bytes; they are constants of the graphs, so the saved config contains it."""
    h = hashlib.sha256()
    for name, buffer in sorted(model.named_buffers()):
        flat = buffer.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
        h.update(f"{name} {buffer.dtype} {list(buffer.shape)}\n".encode() + flat.view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def names(model: torch.nn.Module) -> dict[str, str]:
    """Return the saved name of every parameter path; a tied parameter has the name of its first path."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}
