"""A Llama-shaped decoder written by hand, outside transformers, in every spelling that capture must see through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from agentcompile.capture.protocol import DecoderSpec

Caches = Sequence[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Shape:
    vocab: int = 96
    hidden: int = 64
    inner: int = 112
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    theta: float = 10000.0
    eps: float = 1e-5
    window: int = 0
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How each part is written; every combination means the same program."""

    norm: Literal["builtin", "pow", "times", "divide", "sum", "wide"] = "builtin"
    attention: Literal["gqa", "repeat", "interleave", "softmax", "masked", "where", "einsum"] = "gqa"
    rotate: Literal["slice", "chunk", "halves", "before"] = "slice"
    cache: Literal["index_copy", "assign", "scatter", "functional"] = "index_copy"
    linear: Literal["module", "matmul", "einsum", "transposed"] = "module"
    silu: Literal["builtin", "sigmoid"] = "builtin"
    mask: Literal["compare", "additive", "tril", "where"] = "compare"
    sums: Literal["residual-first", "branch-first"] = "residual-first"
    flat: bool = False
    """Hidden states as [T, hidden] instead of [1, T, hidden]."""
    packed: bool = False
    """q, k and v are made before q is shaped, in another order."""


class Norm(nn.Module):
    def __init__(self, width: int, eps: float, spelling: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.spelling = eps, spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        match self.spelling:
            case "builtin":
                return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
            case "pow":
                scaled = wide * (wide.pow(2).mean(-1, keepdim=True) + self.eps).pow(-0.5)
                return self.weight * scaled.to(x.dtype)
            case "times":
                scaled = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + self.eps)
                return scaled.type_as(x) * self.weight
            case "divide":
                return self.weight * (wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)
            case "sum":
                total = torch.sum(wide**2, dim=-1, keepdim=True) / x.shape[-1]
                return (wide * (1.0 / torch.sqrt(total + self.eps))).to(x.dtype) * self.weight
            case _:
                scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
                return (wide * (scale * self.weight.float())).to(x.dtype)


class Matrix(nn.Linear):
    spelling = "module"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spelling == "module" or (self.bias is not None and self.spelling == "einsum"):
            return super().forward(x)
        if self.spelling == "einsum":
            return torch.einsum(
                "...i,oi->...o" if False else ("bti,oi->bto" if x.dim() == 3 else "ti,oi->to"), x, self.weight
            )
        y = x @ self.weight.T if self.spelling == "matmul" else torch.matmul(x, self.weight.transpose(0, 1))
        return y if self.bias is None else y + self.bias


class Layer(nn.Module):
    def __init__(self, shape: Shape, spelling: Spelling) -> None:
        super().__init__()
        self.shape, self.spelling = shape, spelling
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.input_layernorm = Norm(shape.hidden, shape.eps, spelling.norm)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps, spelling.norm)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": Matrix(shape.hidden, q, bias=shape.bias),
                "k_proj": Matrix(shape.hidden, kv, bias=shape.bias),
                "v_proj": Matrix(shape.hidden, kv, bias=shape.bias),
                "o_proj": Matrix(q, shape.hidden, bias=shape.bias),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": Matrix(shape.hidden, shape.inner, bias=False),
                "up_proj": Matrix(shape.hidden, shape.inner, bias=False),
                "down_proj": Matrix(shape.inner, shape.hidden, bias=False),
            }
        )

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        rows: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        branch = self.attend(self.input_layernorm(x), positions, cache, rows, mask)
        x = self.plus(x, branch)
        return self.plus(x, self.feed(self.post_attention_layernorm(x)))

    def plus(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        return x + branch if self.spelling.sums == "residual-first" else branch + x

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.mlp["gate_proj"](x), self.mlp["up_proj"](x)
        if self.spelling.silu == "builtin":
            return self.mlp["down_proj"](F.silu(gate) * up)
        return self.mlp["down_proj"](up * (gate * torch.sigmoid(gate)))

    def attend(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        rows: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        shape, count, part = self.shape, positions.shape[0], self.self_attn
        if self.spelling.packed:
            v, k, q = part["v_proj"](x), part["k_proj"](x), part["q_proj"](x)
        else:
            q, k, v = part["q_proj"](x), part["k_proj"](x), part["v_proj"](x)
        heads = [t.view(1, count, -1, shape.head_dim) for t in (q, k, v)]
        if self.spelling.rotate == "before":
            q, k = (rotate(t, rows, "slice", 2) for t in heads[:2])
            q, k, v = (t.transpose(1, 2) for t in (q, k, heads[2]))
        else:
            q, k, v = (t.permute(0, 2, 1, 3) for t in heads)
            q, k = (rotate(t, rows, self.spelling.rotate, 1) for t in (q, k))
        keys, values = self.append(cache[0], k, positions), self.append(cache[1], v, positions)
        y = attention(q, keys, values, mask, shape, self.spelling.attention)
        y = y.transpose(1, 2).reshape(1, count, shape.heads * shape.head_dim)
        return part["o_proj"](y.reshape(x.shape[:-1] + y.shape[-1:]))

    def append(self, cache: torch.Tensor, new: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        match self.spelling.cache:
            case "index_copy":
                cache.index_copy_(2, positions, new)
            case "assign":
                cache[:, :, positions] = new
            case "scatter":
                cache.scatter_(2, positions[None, None, :, None].expand_as(new), new)
            case "functional":
                cache.copy_(cache.index_copy(2, positions, new))
        return cache


def rotate(x: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor], spelling: str, heads_axis: int) -> torch.Tensor:
    cos, sin = (row.unsqueeze(0).unsqueeze(heads_axis) for row in rows)
    half = x.shape[-1] // 2
    if spelling == "chunk":
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-high, low], dim=-1) * sin
    if spelling == "halves":
        low, high = x[..., :half], x[..., half:]
        cos, sin = cos[..., :half], sin[..., :half]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin + x * cos


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, shape: Shape, spelling: str
) -> torch.Tensor:
    if spelling == "gqa":
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    group = shape.heads // shape.kv_heads
    if spelling == "interleave":
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    else:
        k, v = (t[:, :, None].expand(-1, -1, group, -1, -1).reshape(1, shape.heads, -1, shape.head_dim) for t in (k, v))
    if spelling in ("repeat", "interleave"):
        return F.scaled_dot_product_attention(q, k, v, mask)
    if spelling == "einsum":
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) * shape.head_dim**-0.5
    elif spelling == "masked":
        scores = (q / math.sqrt(shape.head_dim)) @ k.transpose(2, 3)
    else:
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(shape.head_dim)
    if mask.dtype != torch.bool:
        scores = scores + mask
    elif spelling == "masked":
        scores = scores.masked_fill(~mask, float("-inf"))
    else:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.einsum("bhts,bhsd->bhtd", weights, v) if spelling == "einsum" else weights @ v


class Handwritten(nn.Module):
    """A protocol decoder; parameter names are those of Hugging Face's Llama."""

    def __init__(self, shape: Shape | None = None, spelling: Spelling | None = None, seed: int = 0) -> None:
        super().__init__()
        self.shape, self.spelling = shape or Shape(), spelling or Spelling()
        s = self.shape
        self.spec = DecoderSpec(
            vocab=s.vocab,
            hidden=s.hidden,
            layers=s.layers,
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            eos=(1,),
        )
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(s.vocab, s.hidden),
                "layers": nn.ModuleList(Layer(s, self.spelling) for _ in range(s.layers)),
                "norm": Norm(s.hidden, s.eps, self.spelling.norm),
            }
        )
        self.lm_head = Matrix(s.hidden, s.vocab, bias=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(
                    1 + 0.1 * noise
                    if "norm" in name
                    else noise * (0.1 if name.endswith("bias") else parameter.shape[-1] ** -0.5)
                )
        for module in self.modules():
            if isinstance(module, Matrix):
                module.spelling = self.spelling.linear

    def respelled(self, **changes: object) -> Handwritten:
        """The same weights, other words."""
        other = Handwritten(self.shape, replace(self.spelling, **changes))  # type: ignore[arg-type]
        other.load_state_dict(self.state_dict())
        return other.to(self.lm_head.weight.dtype)

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = torch.arange(0, self.shape.head_dim, 2, dtype=torch.float32) / self.shape.head_dim
        angles = positions[:, None].float() * (1.0 / self.shape.theta**half)
        angles = torch.cat([angles, angles], dim=-1)
        dtype = self.lm_head.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def mask(self, positions: torch.Tensor, context: int) -> torch.Tensor:
        slots = torch.arange(context)
        dtype = self.lm_head.weight.dtype
        keep = slots[None, :] <= positions[:, None]
        if self.spelling.mask == "tril":
            keep = torch.ones(context, context, dtype=torch.bool).tril()[positions]
        if self.shape.window:
            keep = keep & (slots[None, :] > positions[:, None] - self.shape.window)
        if self.spelling.mask == "additive":
            return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, float("-inf"))[None, None]
        if self.spelling.mask == "where":
            mask = torch.full(keep.shape, torch.finfo(dtype).min, dtype=dtype)
            mask.masked_fill_(keep, 0.0)
            return mask[None, None]
        return keep[None, None]

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Caches) -> torch.Tensor:
        x = self.model["embed_tokens"](tokens[0] if self.spelling.flat else tokens)
        rows, mask = self.rows(positions), self.mask(positions, caches[0][0].shape[2])
        for layer, cache in zip(self.model["layers"], caches, strict=True):  # type: ignore[call-overload]
            x = layer(x, positions, cache, rows, mask)
        return self.model["norm"](x)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Caches) -> torch.Tensor:
        logits = self.lm_head(self.hidden(tokens, positions, caches))
        return logits.unsqueeze(0) if self.spelling.flat else logits

    def fresh(self, context: int, fill: float = 0.0) -> list[tuple[torch.Tensor, torch.Tensor]]:
        s, dtype = self.shape, self.lm_head.weight.dtype
        return [
            tuple(torch.full((1, s.kv_heads, context, s.head_dim), fill, dtype=dtype) for _ in "kv")
            for _ in range(s.layers)
        ]  # type: ignore[misc]


class Odd(Handwritten):
    """A decoder with operators that capture has no name for."""

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Caches) -> torch.Tensor:
        x = super().hidden(tokens, positions, caches)
        values, order = torch.sort(x, dim=-1)
        return x + 0.1 * torch.special.erf(values.cumsum(-1) / 8) + 0.01 * order.to(x.dtype)


class Leaky(Handwritten):
    """A decoder whose cache write is no append: old rows fade."""

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Caches) -> torch.Tensor:
        for keys, _ in caches:
            keys.mul_(0.5)
        return super().hidden(tokens, positions, caches)


class Stubborn(Handwritten):
    """A decoder that can be traced for one token alone."""

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Caches) -> torch.Tensor:
        if tokens.shape[1] != 1:
            raise ValueError("one token at a time")
        return super().hidden(tokens, positions, caches)
