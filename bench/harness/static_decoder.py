"""A decoder as a specialist writes it for `torch.compile`: static KV cache, merged projections, no host sync.

It runs Qwen3 and Llama checkpoints. The decode step is one compiled graph, on a GPU with CUDA graphs under it, whose
next token and position are its next inputs; prefill has a compiled graph for each length of the prompt. On a CPU the
weights are frozen, so that oneDNN packs them once. This is the strongest PyTorch peer.

It is also the arm of gpt-fast's protocol (pytorch-labs/gpt-fast, generate.py): the same decoder with that project's
settings, one token at a time on the device, and one graph of dynamic shapes for prompts of any length.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentcompile.checkpoint import Checkpoint

from .channel import Generation
from .drawing import Choose, chooser


class Layer(nn.Module):
    """One decoder layer; its KV cache is [1, kv_heads, context, head_dim] for keys and for values."""

    def __init__(
        self, at: Checkpoint, number: int, shape: Mapping[str, int], eps: float, context: int, device: str
    ) -> None:
        super().__init__()
        prefix = f"model.layers.{number}."

        def read(name: str) -> Tensor:
            return at.tensor(f"{prefix}{name}.weight").to(device)

        self.heads, self.kv_heads, self.head_dim = shape["heads"], shape["kv_heads"], shape["head_dim"]
        self.eps = eps
        weights = {
            "qkv": torch.cat([read(f"self_attn.{name}_proj") for name in "qkv"]),
            "o": read("self_attn.o_proj"),
            "gateup": torch.cat([read("mlp.gate_proj"), read("mlp.up_proj")]),
            "down": read("mlp.down_proj"),
            "before": read("input_layernorm"),
            "between": read("post_attention_layernorm"),
        }
        self.normed = f"{prefix}self_attn.q_norm.weight" in at.tensors()
        if self.normed:
            weights |= {"q_norm": read("self_attn.q_norm"), "k_norm": read("self_attn.k_norm")}
        cache = torch.zeros(1, self.kv_heads, context, self.head_dim, dtype=weights["o"].dtype, device=device)
        for name, tensor in (weights | {"keys": cache, "values": cache.clone()}).items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """Map `x` [1, T, hidden] at `positions` [T] with `mask` [1, 1, T, context] to [1, T, hidden]."""
        w = dict(self.named_buffers(remove_duplicate=False))
        sizes = [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim]
        merged = F.linear(F.rms_norm(x, x.shape[-1:], w["before"], self.eps), w["qkv"])
        y = attended(self, w, torch.split(merged, sizes, dim=-1), cos, sin, mask, positions)
        x = x + F.linear(y, w["o"])
        gate, up = F.linear(F.rms_norm(x, x.shape[-1:], w["between"], self.eps), w["gateup"]).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, w["down"])


def attended(
    layer: Layer, w: Mapping[str, Tensor], qkv: Sequence[Tensor], cos: Tensor, sin: Tensor, mask: Tensor, at: Tensor
) -> Tensor:
    """Return attention's output [1, T, heads × head_dim], and write k and v to the KV cache.

    q, k and v are [1, T, number of their heads × head_dim] each, at positions `at` [T].
    """
    tokens = qkv[0].shape[1]
    q, k, v = (t.view(1, tokens, -1, layer.head_dim) for t in qkv)
    if layer.normed:
        q = F.rms_norm(q, (layer.head_dim,), w["q_norm"], layer.eps)
        k = F.rms_norm(k, (layer.head_dim,), w["k_norm"], layer.eps)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    q, k = _turned(q, cos, sin), _turned(k, cos, sin)
    w["keys"].index_copy_(2, at, k)
    w["values"].index_copy_(2, at, v)
    grouped = layer.heads != layer.kv_heads
    if tokens > 1:  # prefill begins the cache: causal attention needs no mask, and fused kernels want none
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    else:
        y = F.scaled_dot_product_attention(q, w["keys"], w["values"], mask, enable_gqa=grouped)
    return y.transpose(1, 2).reshape(1, tokens, -1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    near, far = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-far, near), dim=-1) * sin


class Decoder(nn.Module):
    """The whole model, from tokens to logits."""

    def __init__(self, path: Path, context: int, device: str) -> None:
        super().__init__()
        from transformers import AutoConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        at, config = Checkpoint.open(path), AutoConfig.from_pretrained(str(path))
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = {"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads, "head_dim": head_dim}
        self.eps = float(config.rms_norm_eps)
        self.layers = nn.ModuleList(
            Layer(at, n, shape, self.eps, context, device) for n in range(config.num_hidden_layers)
        )
        kind = (config.rope_parameters or {}).get("rope_type", "default")
        if kind == "default":
            theta = float(config.rope_parameters["rope_theta"])
            inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        else:
            inverse, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        angles = torch.arange(context)[:, None].float() * inverse
        both = torch.cat((angles, angles), dim=-1).to(device)
        table = at.tensor("model.embed_tokens.weight").to(device)
        head = at.tensor("lm_head.weight").to(device) if "lm_head.weight" in at.tensors() else table
        for name, tensor in {
            "table": table,
            "head": head,
            "last": at.tensor("model.norm.weight").to(device),
            "cos": both.cos().to(table.dtype),
            "sin": both.sin().to(table.dtype),
            "causal": torch.ones(context, context, dtype=torch.bool, device=device).tril(),
        }.items():
            self.register_buffer(name, tensor)

    def forward(self, token: Tensor, positions: Tensor) -> Tensor:
        """Map tokens [1, T] at `positions` [T] to the last one's logits [1, vocab]."""
        w = dict(self.named_buffers(recurse=False, remove_duplicate=False))
        x = F.embedding(token, w["table"])
        mask, cos, sin = w["causal"][None, None, positions], w["cos"][positions], w["sin"][positions]
        for layer in self.layers:
            x = layer(x, cos, sin, mask, positions)
        return F.linear(F.rms_norm(x[:, -1], x.shape[-1:], w["last"], self.eps), w["head"])


class Looped(ABC):
    """A plain loop around an arm's own step, without the overhead of HF `generate`."""

    @abstractmethod
    def _steps(self, ids: Sequence[int], new: int, **drawn: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an iterator over each new token [1, 1], which stays as it is, and the logits [1, vocab] behind it."""

    def generate(self, ids: Sequence[int], new: int, **drawn: Any) -> Generation:
        """Generate in the loop, greedily or with sampling within the step."""
        if drawn:
            torch.manual_seed(drawn.pop("seed"))
        steps = self._steps(ids, new, **drawn)
        with torch.inference_mode():
            begin = time.perf_counter()
            tokens = [next(steps)[0]]
            int(tokens[0])
            first = time.perf_counter()
            tokens += [token for token, _ in steps]
            made = torch.cat(tokens, dim=1)[0].tolist()
            return Generation(made, first - begin, time.perf_counter() - first)

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return the greedy tokens and the `count` likeliest tokens of each step, by the step's own logits."""
        tokens, tops = list[int](), list[list[int]]()
        with torch.inference_mode():
            for token, logits in self._steps(ids, new):
                tokens.append(int(token))
                tops.append(logits[0].float().topk(count).indices.tolist())
        return tokens, tops


class Compiled(Looped):
    """The decode step over a static KV cache under `torch.compile` with frozen weights; the prefill runs eagerly."""

    def __init__(self, request: Mapping[str, Any], mode: str | None) -> None:
        import torch._inductor.config as inductor
        import transformers

        torch.set_num_threads(request["threads"])
        self._device = request.get("device", "cpu")
        inductor.freezing = self._device == "cpu"
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            request["model"], dtype=torch.bfloat16, attn_implementation="sdpa"
        ).to(self._device)
        self._cache: Any = transformers.StaticCache(config=self._model.config, max_cache_len=request["context"])
        self._mode = mode
        self._compiled: dict[str, tuple[Choose, Callable[[Tensor], tuple[Tensor, Tensor]]]] = {}
        self.facts = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "mode": mode or "default",
            "freezing": inductor.freezing,
            "cache_tokens": request["context"],
            "threads": torch.get_num_threads(),
        }
        for length in request.get("prompts", (3,)):
            self.generate([1] * length, 8)
            if drawn := request.get("sampling"):
                self.generate([1] * length, 8, **drawn)

    def _forward(self, token: Tensor) -> Tensor:
        """Map tokens [1, T] to the last one's logits [1, vocab]."""
        out = self._model(input_ids=token, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        logits: Tensor = out.logits[:, -1]
        return logits

    def _steps(self, ids: Sequence[int], new: int, **drawn: Any) -> Iterator[tuple[Tensor, Tensor]]:
        key = json.dumps(drawn, sort_keys=True)
        if key not in self._compiled:
            choose = chooser(drawn)

            def step(token: Tensor) -> tuple[Tensor, Tensor]:
                logits = self._forward(token)
                return choose(logits), logits

            how: dict[str, Any] = {"mode": self._mode, "fullgraph": True, "dynamic": False}
            first = torch.compile(choose, **how) if drawn else choose
            self._compiled[key] = (first, torch.compile(step, **how))
        return self._loop(ids, new, *self._compiled[key])

    def _loop(
        self, ids: Sequence[int], new: int, choose: Choose, step: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        self._cache.reset()
        logits = self._forward(torch.tensor([ids], device=self._device))
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        # A clone, since the layout of the step's first input must not change from one call to the next.
        token = choose(logits).clone()
        yield token.cpu(), logits
        for _ in range(new - 1):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            token, logits = step(token.clone())
            yield token.cpu(), logits  # as a plain loop does, it waits for every token


_Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""A function from a token [1, 1] and its position [1] to the next token, the next position and logits [1, vocab]."""
GPT_FAST = "gpt-fast: decode reduce-overhead fullgraph, prompt dynamic, coordinate descent; its rate is of the whole"
"""The protocol that the gpt-fast arm reports: gpt-fast's rate is new tokens over the time with the prompt included."""


class Static(Looped):
    """The arm; `mode` is one of `torch.compile`, and `gpt_fast` selects that project's settings instead of our own."""

    def __init__(self, request: Mapping[str, Any], mode: str, *, gpt_fast: bool = False) -> None:
        import torch._inductor.config as inductor

        inductor.coordinate_descent_tuning = gpt_fast or mode == "max-autotune"
        torch.set_float32_matmul_precision("high")
        with torch.inference_mode():
            self._device = request["device"]
            if self._device == "cpu":
                torch.set_num_threads(request["threads"])
                inductor.freezing = True
            self._model = Decoder(Path(request["model"]), request["context"], self._device)
        self._mode, self._gpt_fast = mode, gpt_fast
        self._compiled: dict[str, tuple[Choose, _Step]] = {}
        self._prompts: dict[int, Callable[[Tensor, Tensor], Tensor]] = {}
        self.facts = {
            "torch": torch.__version__,
            "mode": mode,
            "coordinate_descent_tuning": inductor.coordinate_descent_tuning,
            "freezing": inductor.freezing,
            "cache_tokens": request["context"],
            **({"protocol": GPT_FAST} if gpt_fast else {}),
        }
        for length in request["prompts"]:
            for _ in range(3):
                self.generate([1] * length, 4)
                if drawn := request.get("sampling"):
                    self.generate([1] * length, 4, **drawn)
        if self._device != "cpu":
            self.facts["memory_bytes"] = torch.cuda.max_memory_allocated()

    def _steps(self, ids: Sequence[int], new: int, **drawn: Any) -> Iterator[tuple[Tensor, Tensor]]:
        key = json.dumps(drawn, sort_keys=True)
        if key not in self._compiled:
            choose = chooser(drawn)

            def step(token: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                logits = self._model(token, position)
                return choose(logits), position + 1, logits

            first = torch.compile(choose, mode=self._mode, fullgraph=True)
            self._compiled[key] = (first, torch.compile(step, mode=self._mode, fullgraph=True))
        return self._loop(ids, new, *self._compiled[key])

    def _loop(self, ids: Sequence[int], new: int, choose: Choose, step: _Step) -> Iterator[tuple[Tensor, Tensor]]:
        token, position, logits = self._prompt(ids, choose)
        yield token, logits
        with self._attention():
            for _ in range(new - 1):
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                token, position, logits = step(token.clone(), position.clone())
                yield token.clone(), logits

    def _attention(self) -> AbstractContextManager[object]:
        """Return the context of a decode step that selects its attention.

        With gpt-fast's settings the compiler writes the attention of a decode step, instead of calling one of PyTorch's
        kernels as prefill does.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(SDPBackend.MATH) if self._gpt_fast else nullcontext()

    def _prompt(self, ids: Sequence[int], choose: Choose) -> tuple[Tensor, Tensor, Tensor]:
        """Run prefill and return the first new token, its position and the logits.

        Each length, which is to be warmed up before, has a graph of its own; gpt-fast's graph takes any length.
        """
        length = 0 if self._gpt_fast else len(ids)
        if length not in self._prompts:
            how: dict[str, Any] = {"dynamic": True} if self._gpt_fast else {"mode": self._mode, "dynamic": False}
            self._prompts[length] = torch.compile(self._model, fullgraph=True, **how)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        positions = torch.arange(len(ids), device=self._device)
        logits = self._prompts[length](torch.tensor([list(ids)], device=self._device), positions)
        return choose(logits).clone(), positions[-1:] + 1, logits.clone()
