"""The configuration and the weights of a GGUF file as Hugging Face has them.

Keys, names of tensors, and the order of Llama's query and key rows are transformers' mapping of GGUF. What that mapping
leaves out (the width of a head, scaled rotary frequencies, sliding windows) is read here; what would change the model
and has no place in it is refused.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch

from agentcompile.checkpoint.gguf_file import GgufFile
from agentcompile.checkpoint.gguf_parts import package
from agentcompile.errors import AgentCompileError

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXT = 8192
"""The numbers of Llama 3's rotary frequencies, which GGUF files do not state; the table must agree with them."""
ROPE_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are no weights, but factors of the rotary frequencies."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what transformers logs about metadata keys that it leaves out: they are read here."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def config_of(file: GgufFile) -> Any:
    """Return the transformers config of a GGUF file, in bfloat16.

    Raises:
        AgentCompileError: its metadata say something that has no place in the config (usage).
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    load: Any = load_gguf_checkpoint
    with _quiet():
        parsed: dict[str, Any] = dict(load(str(file.path))["config"])
    for name in ("_model_name_or_path", "rope_theta"):
        parsed.pop(name, None)
    kind = parsed.pop("model_type")
    if odd := next((key for key, value in parsed.items() if isinstance(value, list)), ""):
        text = f"{file.path}: {odd}: differs by layer, which is not supported"
        raise AgentCompileError(text, hint="use a model whose layers are alike")
    parsed |= {
        "vocab_size": int(file.tensor("token_embd.weight").shape[1]),
        "tie_word_embeddings": "output.weight" not in file.names(),
        "rope_parameters": _rope(file),
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
        "sliding_window": file.get("ARCH.attention.sliding_window"),
        "dtype": "bfloat16",
    }
    if file.architecture == "phi3":
        # Its attention has no width of its own; its scaled frequencies need the length that they were trained for.
        parsed.pop("head_dim", None)
        length = file.get("ARCH.rope.scaling.original_context_length")
        parsed["original_max_position_embeddings"] = length or parsed["max_position_embeddings"]
    else:
        parsed["head_dim"] = _head_dim(file)
    auto: Any = AutoConfig
    causal: Any = AutoModelForCausalLM
    with _quiet():
        config = auto.for_model(kind, **parsed)
    config.architectures = [causal._model_mapping[type(config)].__name__]
    return config


def _head_dim(file: GgufFile) -> int:
    """Return the width of an attention head.

    Raises:
        AgentCompileError: keys, values and rotary embeddings have different widths (usage).
    """
    narrow = file.get("ARCH.embedding_length") // file.get("ARCH.attention.head_count")
    found = int(file.get("ARCH.attention.key_length", narrow))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := file.get(f"ARCH.{key}", found)) != found:
            text = f"{file.path}: {file.architecture}.{key}: {other}, and a head is {found} wide: not supported"
            raise AgentCompileError(text, hint="use a model with heads of one width that are rotated whole")
    return found


def _rope(file: GgufFile) -> dict[str, Any]:
    """Return the rotary frequencies as transformers writes them.

    Raises:
        AgentCompileError: they are scaled in a way that it has no words for (usage).
    """
    base = {"rope_type": "default", "rope_theta": float(file.get("ARCH.rope.freq_base", 10000.0))}
    length = file.get("ARCH.rope.scaling.original_context_length")
    names = file.names()
    if "rope_freqs.weight" in names:
        return _llama3(file, base, int(length or LLAMA3_CONTEXT))
    if "rope_factors_long.weight" in names:
        _head_dim(file)  # a head that is rotated in part has no place here
        factors = {
            f"{kind}_factor": _values(file, f"rope_factors_{kind}.weight").tolist() for kind in ("short", "long")
        }
        original = length or file.get("ARCH.context_length")
        return {**base, **factors, "rope_type": "longrope", "original_max_position_embeddings": original}
    scaling = file.get("ARCH.rope.scaling.type", "none")
    if scaling == "none":
        return base
    factor = file.get("ARCH.rope.scaling.factor")
    if scaling == "linear" and factor:
        return {**base, "rope_type": "linear", "factor": float(factor)}
    if scaling == "yarn" and factor and length:
        return {**base, "rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": int(length)}
    text = f"{file.path}: {file.architecture}.rope.scaling.type: {scaling} by {factor}: not supported"
    raise AgentCompileError(
        text, hint="use a model whose rotary frequencies are plain, linear, yarn, llama3 or longrope"
    )


def _llama3(file: GgufFile, base: dict[str, Any], original: int) -> dict[str, Any]:
    """Return the parameters that give the table of factors in the file, which has the table alone.

    Raises:
        AgentCompileError: none give it (usage).
    """
    table = _values(file, "rope_freqs.weight").double()
    if bool((table == 1).all()):
        return base
    found = {**base, **LLAMA3, "rope_type": "llama3", "factor": float(table.max())}
    found["original_max_position_embeddings"] = original
    low, high, factor = original / LLAMA3["low_freq_factor"], original / LLAMA3["high_freq_factor"], found["factor"]
    for at, told in enumerate(table.tolist()):
        wavelength = 2 * math.pi * base["rope_theta"] ** (at / len(table))
        smooth = (original / wavelength - 1.0) / (4.0 - 1.0)
        between = 1 / ((1 - smooth) / factor + smooth) if high <= wavelength <= low else factor
        if abs(told / (1.0 if wavelength < high else between) - 1) > 1e-3:
            text = f"{file.path}: rope_freqs.weight[{at}]: {told:.4g}: rotary factors of no kind that is supported"
            raise AgentCompileError(text, hint="use the Hugging Face checkpoint of this model")
    return found


def stops_of(file: GgufFile) -> list[int]:
    """Return the tokens that end a text or a turn, in order and once each."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return list(dict.fromkeys(int(id) for key in keys if (id := file.get(key)) is not None))


def _values(file: GgufFile, name: str) -> torch.Tensor:
    tensor = file.tensor(name)
    values: Any = package().dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(values.copy())


def write_weights(file: GgufFile, config: Any, out: Path, say: Callable[[str], None]) -> None:
    """Write all weights in bfloat16 to the safetensors file `out`, one tensor in memory at a time.

    `say` is told how far it is.

    Raises:
        AgentCompileError: a tensor has no place in the model, or is missing, or has another shape (usage).
        OSError: the file cannot be written.
    """
    places = _places(file, config)
    header, start = {"__metadata__": {"format": "pt"}}, 0
    for tensor in file.tensors:
        if tensor.name in places:
            name, shape = places[tensor.name]
            end = start + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}  # type: ignore[dict-item]
            start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with out.open("wb") as target:
        target.write(len(text).to_bytes(8, "little") + text)
        for tensor in file.tensors:
            if tensor.name not in places:
                continue
            name, shape = places[tensor.name]
            value = _ordered(file, config, tensor).to(torch.bfloat16).contiguous()
            if tuple(value.shape) != shape:
                why = f"{tensor.name}: shape {list(value.shape)}, but the metadata ask for {list(shape)}"
                raise AgentCompileError(f"{file.files[tensor.name]}: {why}", hint="download the file again")
            raw: Any = value.view(torch.uint8).numpy()
            target.write(raw.data.cast("B"))
            done += value.nbytes
            say(f"{file.path.name}: {done / 1e6:.0f} of {start / 1e6:.0f} MB as bfloat16")


def _places(file: GgufFile, config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the name and shape in the Hugging Face model of each tensor of the file.

    Raises:
        AgentCompileError: a tensor of the one has no counterpart in the other (usage).
    """
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    auto: Any = AutoModelForCausalLM
    with torch.device("meta"), _quiet():
        model = auto.from_config(config)
    named, plain = cast(Any, get_gguf_hf_weights_map), cast(Any, TensorProcessor)
    names = named(model, plain(), file.architecture, config.num_hidden_layers)
    state = model.state_dict()
    places = {one: (names[one], tuple(state[names[one]].shape)) for one in sorted(file.names() & set(names))}
    hint = "use the Hugging Face checkpoint of this model"
    if extra := sorted(file.names() - set(places) - set(ROPE_TABLES)):
        text = f"{file.files[extra[0]]}: {extra[0]}: {config.model_type} has no such tensor"
        raise AgentCompileError(text, hint=hint)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if missing := sorted(set(state) - {name for name, _ in places.values()} - tied):
        text = f"{file.path}: no tensor for {missing[0]}, which {config.model_type} needs"
        raise AgentCompileError(text, hint="download the file again")
    return places


def _ordered(file: GgufFile, config: Any, tensor: Any) -> torch.Tensor:
    """Return the float32 values of a tensor with its rows in the order of Hugging Face's model."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    processor: Any = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
    heads = {"num_attention_heads": config.num_attention_heads, "num_key_value_heads": config.num_key_value_heads}
    values = package().dequantize(tensor.data, tensor.tensor_type)
    made: Any = processor(config=heads).process(weights=values, name=tensor.name)
    array = made.weights
    return torch.from_numpy(array if array.flags.writeable else array.copy())
