"""Decoders from transformers: a model is built without weights and called through the capture protocol."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from agentcompile.capture.exporting import because, by_content
from agentcompile.checkpoint.numbers import CONTEXTS, leaves
from agentcompile.errors import AgentCompileError


class _WithoutWeights(TorchFunctionMode):
    """A mode that makes uninitialised tensors fake, as their content does not matter; computed buffers stay real."""

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.empty, torch.empty_like):
            with self.mode:
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence advice that transformers logs about configs, which capture has already checked."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class HuggingFaceDecoder(nn.Module):
    """A causal language model of transformers as a protocol decoder, with full-length caches on every layer."""

    def __init__(self, model: nn.Module, context: int) -> None:
        super().__init__()
        self.model = model
        self.context = context

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Any) -> torch.Tensor:
        """Return the logits of the last token, [1, 1, vocab]."""
        from transformers.cache_utils import Cache

        layers = [_layer_class()(keys, values, positions, self.context) for keys, values in caches]
        cache: Any = Cache(layers=layers)
        out = self.model(
            input_ids=tokens, position_ids=positions[None], past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        logits: torch.Tensor = out.logits
        return logits


def _layer_class() -> Any:
    """Return a cache layer class whose slots are the positions; sliding-window layers keep their full length too."""
    from transformers import cache_utils

    base: Any = cache_utils.CacheLayerMixin

    class Layer(base):  # type: ignore[misc]
        is_compileable = True
        is_sliding = False

        def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, context: int) -> None:
            super().__init__()
            self.keys, self.values, self.positions, self.context = keys, values, positions, context
            self.is_initialized = True

        def lazy_initialization(self, *_: Any) -> None:
            return None

        def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> Any:
            self.keys.index_copy_(2, self.positions, keys)
            self.values.index_copy_(2, self.positions, values)
            return self.keys, self.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.context, 0

        def get_seq_length(self) -> torch.Tensor:
            return self.positions[0]

        def get_max_length(self) -> int:
            return self.context

    return Layer


def _keep_first_factors(model: nn.Module) -> None:
    """Make LongRoPE always use its first factors.

    LongRoPE chooses its factors by the length of a sequence, and no sequence here is longer than the first ones serve.
    """
    for module in model.modules():
        kind: Any = getattr(module, "rope_type", None)
        if kind == "longrope":
            module.rope_type = "default"  # type: ignore[assignment]
        elif isinstance(kind, dict):
            changed = {layer: "default" if one == "longrope" else one for layer, one in kind.items()}
            module.rope_type = changed  # type: ignore[assignment]


def positions_of(config: Any) -> dict[str, int]:
    """Return the numbers of positions in a parsed config under the keys of `CONTEXTS`; its class may supply them."""
    return {key: value for key in CONTEXTS if type(value := getattr(config, key, None)) is int}


def declared_positions(path: Path) -> dict[str, int]:
    """Return `positions_of` for the config in a checkpoint directory; empty when transformers cannot parse it."""
    import transformers

    try:
        with _quiet():
            return positions_of(transformers.AutoConfig.from_pretrained(path, trust_remote_code=False))
    except Exception:  # noqa: BLE001 - capture says what is wrong with it
        return {}


def build(path: Path, config: dict[str, Any], dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """Return the model of a checkpoint directory with fake parameters, and the fake mode they live in.

    Raises:
        AgentCompileError: the installed transformers does not know the architecture or rejects its config, the model is
            no causal language model, or its code branches on the content of tensors.
    """
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    auto: Any = transformers.AutoModelForCausalLM
    first: Exception | None = None
    for attention in ("sdpa", "eager"):  # some architectures have only one of them
        try:
            with _quiet(), _WithoutWeights(mode):
                parsed = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
                if type(parsed) not in auto._model_mapping:
                    text = f"{path / 'config.json'}: model_type: {parsed.model_type}: no causal language model"
                    hint = "use a decoder-only transformer, such as Llama, Qwen3 or Mistral"
                    raise AgentCompileError(f"{text}, and no other kind is supported", hint=hint)
                parsed.return_dict = True  # a config may ask for tuples; here results are read by name
                model: nn.Module = auto.from_config(
                    parsed, dtype=dtype, attn_implementation=attention, trust_remote_code=False
                )
        except AgentCompileError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model's own code raises
            first = first or error
            continue
        _keep_first_factors(model)
        return model.eval(), mode
    if by_content(first):
        text = f"{path / 'config.json'}: model_type: {config.get('model_type')}: {because(first, '')}"
        hint = "use a decoder-only transformer, such as Llama, Qwen3 or Mistral"
        raise AgentCompileError(text, hint=hint) from first
    if isinstance(first, KeyError) and (key := _naming(config, first.args[:1])):
        text = f"{path / 'config.json'}: {key}: {str(first.args[0])[:60]!r}"
        hint = f"transformers {transformers.__version__} knows nothing of that name"
        raise AgentCompileError(text, hint=hint) from first
    reason = " ".join(line.strip() for line in str(first).strip().splitlines()[:2])[:300] or type(first).__name__
    raise AgentCompileError(
        f"{path / 'config.json'}: model_type: {config.get('model_type')!r}: {reason}",
        hint=f"transformers {transformers.__version__} must know the architecture and accept its config",
    ) from first


def _naming(config: dict[str, Any], sought: tuple[object, ...]) -> str:
    """Return the config key whose text is what was sought and not found; empty when there is none."""
    return next((key for key, value in leaves(config) if isinstance(value, str) and (value,) == sought), "")
