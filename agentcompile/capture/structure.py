"""Checks that a built transformers model caches keys and values alike in every layer, and nothing else.

The model runs once on fake tensors with a cache that accepts only keys and values and records their shapes. So heads
and widths are the model's own, whatever its config calls them, and a model that keeps anything else (a recurrent or
convolution state, a compressed latent, keys and values of several shapes) is detected by what it does.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from agentcompile.capture.exporting import because
from agentcompile.checkpoint.support import ATTENTION
from agentcompile.errors import AgentCompileError

DENSE = "use a model all of whose layers are attention, such as Llama, Qwen3 or Mistral"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """The extents of what every layer of a model caches for a token."""

    layers: int
    kv_heads: int
    head_dim: int


def caches_of(model: nn.Module, mode: Any, path: Path) -> Caches:
    """Return the caches of a model whose parameters live in the fake `mode`; `path` is the path of its config.

    Raises:
        AgentCompileError: the model keeps anything but keys and values of one shape; the message is one sentence.
    """
    _declared(model, path)
    who = f"{path}: {type(model).__name__}"
    given = _given(model, mode, path)
    config: Any = model.config
    layers = int(config.num_hidden_layers)
    missing = [index for index in range(layers) if index not in given]
    if missing or len(given) != layers:
        said = f"layer {missing[0]} caches no keys and values" if missing else f"{len(given)} layers keep a cache"
        raise AgentCompileError(
            f"{who}: {said} where {layers} layers are declared, which is not supported",
            hint=DENSE,
        )
    shapes = sorted({shape for pair in given.values() for shape in pair})
    if len(shapes) > 1:
        said = " and ".join(f"{heads} heads of {width}" for heads, width in shapes)
        raise AgentCompileError(
            f"{who}: keys and values of several shapes ({said}) are not supported",
            hint="use a model whose layers all cache keys and values of one width",
        )
    (kv_heads, head_dim) = shapes[0]
    heads = int(config.num_attention_heads)
    if heads % kv_heads:
        raise AgentCompileError(
            f"{who}: {kv_heads} cached heads do not divide {heads} attention heads",
            hint="every key-value head serves the same number of query heads",
        )
    return Caches(layers=layers, kv_heads=kv_heads, head_dim=head_dim)


def _declared(model: nn.Module, path: Path) -> None:
    whole: Any = model.config
    name, config = type(model).__name__, getattr(whole, "text_config", None) or whole
    if getattr(config, "is_encoder_decoder", False):
        raise AgentCompileError(f"{path}: {name}: encoder-decoder models are not supported", hint=DENSE)
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    other = next((kind for kind in kinds if kind not in ATTENTION), None)
    stateful = not kinds and getattr(model, "_is_stateful", False)
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        said = "a model whose code takes no key-value cache (past_key_values) is not supported"
        raise AgentCompileError(f"{path}: {name}: {said}", hint=DENSE)
    if other is not None or stateful:
        said = f"layers of the kind {other!r}" if other is not None else name
        raise AgentCompileError(f"{path}: {said}: a state that is no key-value cache is not supported", hint=DENSE)
    for path_of, module in model.named_modules():
        if path_of.rpartition(".")[2] == "experts" or "SparseMoe" in type(module).__name__:
            text = f"{path}: {name}: {path_of}: mixture-of-experts models are not supported"
            raise AgentCompileError(text, hint="use a dense model")


def _given(model: nn.Module, mode: Any, path: Path) -> dict[int, tuple[tuple[int, int], tuple[int, int]]]:
    given: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
    before = held(model)
    with mode, torch.no_grad():
        tokens = torch.zeros(1, 2, dtype=torch.int64)
        try:
            model(
                input_ids=tokens,
                position_ids=torch.arange(2)[None],
                past_key_values=_recorder(given, path, type(model).__name__),
                use_cache=True,
            )
        except AgentCompileError:
            raise
        except Exception as error:
            said = because(error, "cannot be run on tokens and a key-value cache")
            raise AgentCompileError(f"{path}: {type(model).__name__}: {said}", hint=DENSE) from error
    refuse_kept(model, before, path)
    return given


def held(model: nn.Module) -> dict[tuple[str, str], int]:
    """Return the ids of tensors that modules hold as plain attributes or buffers, by module path and attribute."""
    return {
        (path, key): id(value)
        for path, module in model.named_modules()
        for key, value in (*vars(module).items(), *module._buffers.items())
        if isinstance(value, torch.Tensor)
    }


def refuse_kept(model: nn.Module, before: dict[tuple[str, str], int], path: Path) -> None:
    """Check that a run left no tensor in a module that later runs could read.

    Raises:
        AgentCompileError: a module holds a new tensor other than rotary frequencies.
    """
    after = held(model)
    for (module, key), identity in after.items():
        frequencies = "inv_freq" in key  # rotary factors of a length, which the context bounds
        if not frequencies and before.get((module, key)) != identity:
            raise AgentCompileError(
                f"{path}: {type(model).__name__}: {module}.{key}: a state that is no key-value cache is not supported",
                hint=DENSE,
            )


def _recorder(given: dict[int, Any], path: Path, name: str) -> Any:
    """Return a cache that records the shapes of keys and values, and refuses any other state a layer wants to keep."""
    from transformers import cache_utils

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AgentCompileError(f"{path}: {name}: a state that is no key-value cache is not supported", hint=DENSE)

    class Recorder(cache_utils.DynamicCache):
        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            keys, values, layer = key_states, value_states, layer_idx
            if layer in given or keys.dim() != 4 or values.dim() != 4:
                raise AgentCompileError(
                    f"{path}: {name}: layer {layer} caches keys of {list(keys.shape)}, "
                    f"{'for the second time, ' if layer in given else ''}which is not supported",
                    hint=DENSE,
                )
            given[layer] = (_shape(keys.shape), _shape(values.shape))
            return super().update(keys, values, layer, *args, **kwargs)

    others = ("conv_state", "recurrent_state", "indexer", "previous_state", "ssm_state")
    for method in dir(cache_utils.Cache):
        if method.endswith(others):
            setattr(Recorder, method, refuse)
    return Recorder()


def _shape(shape: Sequence[int]) -> tuple[int, int]:
    return int(shape[1]), int(shape[3])
