"""Tiny random checkpoints of several architectures, written by transformers itself, and how to run a capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from agentcompile.capture import Captured
from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import Graph
from agentcompile.ops.reference import DTYPES, Interpreter, Precision

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-query": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama-multi-head": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama3-rope": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen2": ("Qwen2Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": 7, "head_dim": 16}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "hunyuan": ("HunYuanDenseV1Config", {"head_dim": 16}),
}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3-longrope": (
        "Phi3Config",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [1.0 + at for at in range(8)],
                "original_max_position_embeddings": 64,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    "moshi": ("MoshiConfig", {"sliding_window": 64, "head_dim": 16, "ffn_dim": 256}),
    "roberta": ("RobertaConfig", {"is_decoder": True, "pad_token_id": 1, "eos_token_id": 2}),
    "recurrent-gemma": (
        "RecurrentGemmaConfig",
        {"num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 64, "pad_token_id": 0},
    ),
}
"""What capture takes for what it is not: factors that the length of a prompt chooses, positions that are counted from
the padding's number on, state that is no cache, a window that transformers applies with a cache alone."""


def write(name: str, directory: Path, *, dtype: torch.dtype = torch.float32, shard: str = "5GB", seed: int = 0) -> Path:
    """A checkpoint of that architecture with seeded random weights."""
    import transformers

    kind, extra = {**CONFIGS, **WRONG}[name]
    config = getattr(transformers, kind)(**{**BASE, **extra})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_((1 if "norm" in key else 0) + 0.1 * torch.randn(parameter.shape))
            else:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory, max_shard_size=shard)
    return directory


def header_only(directory: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Path:
    """A checkpoint whose tensors are a hole in the file: its headers are real, its bytes are not there."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in shapes.items():
        count = 2
        for extent in shape:
            count *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + count]}
        end += count
    raw = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
    return directory


class Stepper:
    """A captured model on the interpreter: states of its own, filled with NaN until they are written."""

    def __init__(self, captured: Captured, precision: Precision = "model") -> None:
        self.captured = captured
        wide = precision == "float64"
        self.states = {
            state.name: torch.full(state.shape, torch.nan, dtype=torch.float64 if wide else DTYPES[state.dtype])
            for state in captured.info.states
        }
        self._runs = {
            graph.phase: (Interpreter(graph, precision), self._bound(graph))
            for graph in (captured.decode, captured.prefill)
        }

    def _bound(self, graph: Graph) -> dict[str, torch.Tensor]:
        checkpoint = Checkpoint.open(self.captured.checkpoint)
        table, out = graph.table(), dict[str, torch.Tensor]()
        for name in graph.inputs:
            match table[name].role:
                case "weight":
                    out[name] = checkpoint.tensor(name)
                case "constant":
                    out[name] = self.captured.constants[name]
                case "state":
                    out[name] = self.states[name]
        return out

    def feed(self, phase: str, tokens: torch.Tensor, start: int) -> dict[str, torch.Tensor]:
        """Outputs for tokens [T] at positions start…"""
        run, bound = self._runs[phase]
        positions = torch.arange(start, start + tokens.numel())
        return run({**bound, "tokens": tokens[None], "positions": positions})

    def logits(self, tokens: torch.Tensor, chunks: tuple[int, ...]) -> dict[int, torch.Tensor]:
        """Logits by position: the prompt in chunks, the rest of `tokens` one by one."""
        out, at = dict[int, torch.Tensor](), 0
        for count in chunks:
            out[at + count - 1] = self.feed("prefill", tokens[at : at + count], at)["logits"][0, 0]
            at += count
        for position in range(at, tokens.numel()):
            out[position] = self.feed("decode", tokens[position : position + 1], position)["logits"][0, 0]
        return out
