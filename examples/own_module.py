"""Compile a decoder of your own: any module with a `spec` and a `forward(tokens, positions, caches)`.

    python examples/own_module.py mine                 # writes mine/ (weights and graphs) and mine.lock.toml

The model is a small Llama with random weights. Its compiled form is compared with the module itself at the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import agentcompile
from agentcompile.capture.protocol import DecoderSpec

Cache = tuple[torch.Tensor, torch.Tensor]
VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 96, 64, 128, 2, 4, 2, 16, 48


class Layer(nn.Module):
    """Grouped attention and a gated feed-forward network, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN, eps=1e-5) for _ in range(2))
        self.q = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, cache: Cache, turn: Cache) -> torch.Tensor:
        """Return the next hidden states, [1, T, HIDDEN]; the new keys and values go into `cache`."""
        count, keys, values = positions.shape[0], *cache
        normed = self.norms[0](x)
        q, k, v = (w(normed).view(1, count, -1, HEAD_DIM).transpose(1, 2) for w in (self.q, self.k, self.v))
        keys.index_copy_(2, positions, rotated(k, turn))
        values.index_copy_(2, positions, v)
        seen = torch.arange(keys.shape[2])[None, :] <= positions[:, None]  # slots that were never written are hidden
        y = F.scaled_dot_product_attention(rotated(q, turn), keys, values, seen[None, None], enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(1, count, -1))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def rotated(x: torch.Tensor, turn: Cache) -> torch.Tensor:
    """Return `x` with rotary position embedding, as Llama has it."""
    low, high = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-high, low], dim=-1) * turn[1]


class Decoder(nn.Module):
    """The protocol: `spec` names the extents, `forward` writes the caches at `positions` and returns logits."""

    spec = DecoderSpec(
        vocab=VOCAB, hidden=HIDDEN, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, eos=(1,)
    )

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Sequence[Cache]) -> torch.Tensor:
        """Return logits, [1, T, VOCAB], of new `tokens` [1, T] at `positions` [T]."""
        steps = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM
        angles = positions[:, None].float() / 10_000.0**steps
        angles = torch.cat([angles, angles], dim=-1)
        x = self.embed(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, positions, cache, (angles.cos(), angles.sin()))
        return self.head(self.norm(x))

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return `count` greedy tokens in plain PyTorch."""
        caches = [tuple(torch.zeros(1, KV_HEADS, CONTEXT, HEAD_DIM) for _ in "kv") for _ in range(LAYERS)]
        tokens, made, at = list(prompt), list[int](), 0
        with torch.inference_mode():
            while len(made) < count:
                logits = self(torch.tensor([tokens]), torch.arange(at, at + len(tokens)), caches)
                at += len(tokens)
                tokens = [int(logits[0, -1].argmax())]
                made += tokens
        return made


def main() -> None:
    """Compile the module, load the lock, and compare both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where its weights and graphs go; the lock is written beside it")
    parser.add_argument("--seconds", type=int, default=30, help="seconds for search and step tuning")
    asked = parser.parse_args()
    lock = asked.folder.with_name(f"{asked.folder.name}.lock.toml")

    torch.manual_seed(0)
    module = Decoder()
    agentcompile.compile(module, save_to=asked.folder, out=lock, context=CONTEXT, seconds=asked.seconds)

    # The lock and the folder are enough from here on: this part needs no code of the module.
    with agentcompile.load(lock, model=asked.folder) as model:
        compiled = list(model.generate([5, 2, 9], max_new_tokens=16, ignore_eos=True).tokens)
        kernels = sum(bool(choice.template) for plan in model.plan for choice in plan.choices)

    plain = module.greedy([5, 2, 9], 16)
    same = sum(a == b for a, b in zip(compiled, plain, strict=True))
    print(f"{lock}: {kernels} choices are kernels; {same} of {len(plain)} greedy tokens are PyTorch's")


if __name__ == "__main__":
    try:
        main()
    except agentcompile.AgentCompileError as error:
        sys.exit(f"{error.message}\n{error.hint}")
