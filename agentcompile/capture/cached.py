"""Captured models in the store: a checkpoint configuration is exported once and then read in milliseconds.

In: a checkpoint directory and a context. Out: `Captured` with the digest of its weights, which are known to be finite.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

import agentcompile
from agentcompile.checkpoint import Checkpoint
from agentcompile.checkpoint.convert import name_of
from agentcompile.checkpoint.finite import unfit
from agentcompile.checkpoint.hashes import remembered
from agentcompile.checkpoint.numbers import context_limit
from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, canonical, digest
from agentcompile.ir.graph import Graph
from agentcompile.ir.model import ModelInfo
from agentcompile.options import DEFAULT_CONTEXT
from agentcompile.system.store import Store

if TYPE_CHECKING:
    import torch

    from agentcompile.capture import Captured

GRAPHS = "agentcompile.graphs.json"
"""The file of a saved module's graphs, beside its weights."""
CONSTANTS = "agentcompile.constants.safetensors"
_VERSION = 3
"""The version of capture; it is raised when capture makes other graphs of the same program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The part of a captured model that the store holds as JSON; the constants lie beside it as safetensors."""

    info: ModelInfo
    decode: Graph
    prefill: Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A captured model and the file in which workers find its constants."""

    captured: Captured
    constants: Path


def load_model(path: Path, context: int, store: Store, hashes: Path) -> Model:
    """Capture the checkpoint at `path`, or read the result of an earlier capture from `store`.

    A `context` of 0 means the smaller of `DEFAULT_CONTEXT` and the model's own limit; for a saved module, the context
    that it was captured for. `hashes` is the file that caches digests of weight files by size and modification time.
    Either way every weight is checked against the checkpoint's headers and for NaN and infinity.

    Raises:
        AgentCompileError: the model cannot be captured, or a weight is missing, differs or is not finite.
    """
    from agentcompile.capture import Captured, capture

    checkpoint = Checkpoint.open(path)
    context = context or _own_context(checkpoint)
    key = _key(checkpoint, context)
    found = _read(store, key)
    if found is None and (path / GRAPHS).exists():
        made = _beside(path, context)
        _write(store, key, made)
    elif found is None:
        made = capture(path, context=context)
        _write(store, key, made)
    else:
        kept, constants = found
        info = replace(kept.info, name=name_of(path))
        made = Captured(info=info, decode=kept.decode, prefill=kept.prefill, constants=constants, checkpoint=path)
        for value in kept.decode.values:
            if value.role == "weight":
                checkpoint.expect(value.name, tuple(int(n) for n in value.shape), value.dtype)
    weights = {value.name for graph in (made.decode, made.prefill) for value in graph.values if value.role == "weight"}
    made = replace(made, info=replace(made.info, weights_digest=_weights(checkpoint, weights, hashes)))
    constants_path = store.get(key, ".safetensors")
    assert constants_path is not None, "written above"
    return Model(captured=made, constants=constants_path)


def save_module(model: torch.nn.Module, directory: Path, context: int) -> None:
    """Capture a module of the decoder protocol and save weights, graphs and constants to `directory`.

    The directory then works as a checkpoint: compiling or running it does not need the module's code.
    """
    from safetensors.torch import save

    from agentcompile.capture import capture

    made = capture(model, context=context, save_to=directory)
    tensors = {name: tensor.contiguous() for name, tensor in made.constants.items()}
    (directory / CONSTANTS).write_bytes(save(tensors))
    kept = _Kept(info=made.info, decode=made.decode, prefill=made.prefill)
    (directory / GRAPHS).write_bytes(canonical(encode(kept)))


def _beside(path: Path, context: int) -> Captured:
    from safetensors.torch import load_file

    from agentcompile.capture import Captured

    kept = _saved(path)
    try:
        constants = dict(load_file(str(path / CONSTANTS)))
    except (ValueError, OSError, SafetensorError) as error:
        raise AgentCompileError(f"{path / CONSTANTS}: damaged ({error})", hint="save the module again") from error
    if kept.info.context != context:
        text = f"{path / GRAPHS}: captured for a context of {kept.info.context}, not {context}"
        raise AgentCompileError(text, hint=f"use --context {kept.info.context}, or save the module again")
    return Captured(info=kept.info, decode=kept.decode, prefill=kept.prefill, constants=constants, checkpoint=path)


def _own_context(checkpoint: Checkpoint) -> int:
    if (checkpoint.path / GRAPHS).exists():
        return _saved(checkpoint.path).info.context
    limit = context_limit(checkpoint.config)
    if limit is None:  # then the architecture's default holds, which transformers knows
        from agentcompile.capture.huggingface import declared_positions

        limit = context_limit(declared_positions(checkpoint.path))
    return DEFAULT_CONTEXT if limit is None else min(DEFAULT_CONTEXT, limit[1])


def _saved(path: Path) -> _Kept:
    try:
        kept: _Kept = decode(_Kept, json.loads((path / GRAPHS).read_bytes()))
    except (CodecError, ValueError, OSError) as error:
        raise AgentCompileError(f"{path / GRAPHS}: damaged ({error})", hint="save the module again") from error
    return kept


def _key(checkpoint: Checkpoint, context: int) -> str:
    """Return the key of all that the graphs depend on: config, tensors' names, shapes and dtypes, and versions."""
    tensors: Json = [[name, list(info.shape), info.dtype] for name, info in sorted(checkpoint.tensors().items())]
    generation = checkpoint.path / "generation_config.json"
    stops = generation.read_text(encoding="utf-8", errors="replace") if generation.is_file() else ""
    saved = checkpoint.path / GRAPHS  # only the graphs tell the code of a saved module
    graphs = hashlib.sha256(saved.read_bytes()).hexdigest() if saved.exists() else ""
    versions: Json = [agentcompile.__version__, *(metadata.version(name) for name in ("torch", "transformers"))]
    return digest(f"captured/{_VERSION}", checkpoint.config_digest(), stops, graphs, tensors, context, versions)


def _read(store: Store, key: str) -> tuple[_Kept, dict[str, torch.Tensor]] | None:
    from safetensors.torch import load_file

    graphs, constants = store.get(key, ".json"), store.get(key, ".safetensors")
    if graphs is None or constants is None:
        return None
    try:
        kept: _Kept = decode(_Kept, json.loads(graphs.read_bytes()))
        return kept, dict(load_file(str(constants)))
    except (CodecError, ValueError, OSError, SafetensorError):  # damaged: the caller captures again and overwrites it
        graphs.unlink(missing_ok=True)
        constants.unlink(missing_ok=True)
        return None


def _write(store: Store, key: str, made: Captured) -> None:
    from safetensors.torch import save

    tensors = {name: tensor.contiguous() for name, tensor in made.constants.items()}
    store.write(key, save(tensors), ".safetensors")
    kept = _Kept(info=made.info, decode=made.decode, prefill=made.prefill)
    store.write(key, canonical(encode(kept)), ".json")


def _weights(checkpoint: Checkpoint, used: Collection[str], hashes: Path) -> str:
    """Return the digest of the weights; the same reading looks for NaN and infinity.

    File hashes are cached, because hashing gigabytes takes seconds.
    """  # noqa: DOC501
    with remembered(hashes) as known:
        weights = checkpoint.digest(known)
        broken = sorted(unfit(checkpoint, known) & set(used))
    if broken:
        text = f"{checkpoint.info(broken[0]).file}: {broken[0]}: holds NaN or infinity"
        more = f", as do {len(broken) - 1} other tensors" if len(broken) > 1 else ""
        raise AgentCompileError(text + more, hint="download the weights again, or save them in a wider type")
    return weights
