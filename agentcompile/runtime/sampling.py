"""Choice of the next token from logits: greedy, temperature, top-k and top-p, with a counter-based generator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from agentcompile.errors import AgentCompileError

_MASK = (1 << 64) - 1
_FIRST, _MORE = 256, 16
"""How many of the likeliest tokens are sorted at first, and the factor by which more are if a draw is beyond them."""
_ROW = 512  # the row length in logits for the first step of the argmax on a GPU
COLDEST = 1e-6
"""The least temperature except 0: far below it logits overflow when they are divided by it."""
_PEAKED = 0.5  # the fraction of the whole mass: where the first tokens sorted have less, all others are sorted at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling settings: `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep the whole vocabulary."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            hint = "0 is greedy, 1 samples as trained"
            raise AgentCompileError(f"temperature: {self.temperature} is outside 0 … 100", hint=hint)
        if 0.0 < self.temperature < COLDEST:
            hint = f"0 is greedy; what samples begins at {COLDEST:g}"
            raise AgentCompileError(f"temperature: {self.temperature:g} is too small to divide by", hint=hint)
        if self.top_k < 0:
            raise AgentCompileError(f"top_k: {self.top_k} is negative", hint="0 keeps the whole vocabulary")
        if not 0.0 < self.top_p <= 1.0:
            raise AgentCompileError(f"top_p: {self.top_p} is outside (0, 1]", hint="1 keeps the whole vocabulary")

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax."""
        return self.temperature == 0.0


def uniform(seed: int, counter: int) -> float:
    """Return a number in [0, 1) from (seed, counter) alone, so that any token of any run can be drawn again.

    The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) is applied
    twice, once to mix the seed and once the counter.
    """
    state = _mix((seed & _MASK) ^ 0x9E3779B97F4A7C15)
    return (_mix((state + (counter + 1) * 0x9E3779B97F4A7C15) & _MASK) >> 11) / float(1 << 53)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def probabilities(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kept tokens of logits [vocab], most likely first, and their probabilities; ties keep the lower id.

    Filters act in the usual order: temperature, then top-k, then the smallest set whose mass reaches top-p.
    """
    scores = logits.float() / sampling.temperature
    order = torch.argsort(scores, descending=True, stable=True)
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = torch.softmax(scores[order].double(), dim=0)
    if sampling.top_p < 1.0:
        mass_before = torch.cumsum(weights, dim=0) - weights
        keep = int((mass_before < sampling.top_p).sum().item())
        order, weights = order[:keep], weights[:keep]
    return order, weights / weights.sum()


def choose(logits: torch.Tensor, sampling: Sampling, counter: int) -> int:
    """Return the token id of draw number `counter` from logits [vocab] of any float dtype.

    The result follows `probabilities`, but only as many of the likeliest tokens are sorted as the draw needs: sorting a
    whole vocabulary takes longer than a small model's step.
    """
    if sampling.greedy:
        return int(greatest(logits).item())
    scores = logits.float() / sampling.temperature
    point, count = uniform(sampling.seed, counter), sampling.top_k or _FIRST
    while True:
        ids = likeliest(scores, count)[: sampling.top_k or None]
        wide = scores[ids].double()
        weights = torch.exp(wide - wide[0])
        mass = torch.cumsum(weights, dim=0)
        whole = bool(sampling.top_k) or ids.numel() == scores.numel()
        total = mass[-1] if whole else torch.exp(scores.double() - wide[0]).sum()
        if sampling.top_p < 1.0:
            kept = int(((mass - weights) / total < sampling.top_p).sum().item())
            known, target = whole or kept < ids.numel(), point * mass[kept - 1]
        else:
            kept, target = ids.numel(), point * total
            known = whole or bool(target < mass[-1])
        if known:
            index = int(torch.searchsorted(mass[:kept], target, right=True).item())
            return int(ids[min(index, kept - 1)].item())
        count = count * _MORE if mass[-1] > _PEAKED * total else scores.numel()


def greatest(logits: torch.Tensor) -> torch.Tensor:
    """Return the argmax of logits [vocab], the first of equals; a GPU reduces many short rows faster than one."""
    width = math.gcd(logits.numel(), _ROW)
    long = logits.is_cuda and width >= _ROW // 8
    return greatest_of_rows(logits, width) if long else torch.argmax(logits.float())


def greatest_of_rows(logits: torch.Tensor, width: int) -> torch.Tensor:
    """Return the argmax of logits [vocab], the first of equals, reduced over rows of `width`, which divides vocab.

    The host does not wait for the row: an index that is a tensor of no dimensions would be read back from the device.
    """
    values, ids = logits.view(-1, width).max(dim=1)
    row = values.argmax()
    return row * width + ids.take(row)


def likeliest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return at least `count` likeliest tokens, with all as likely as the last; the lower id first among equals."""
    if count >= scores.numel():
        return torch.argsort(scores, descending=True, stable=True)
    least = torch.topk(scores, count, sorted=False).values.min()
    ids = torch.nonzero(scores >= least).view(-1)
    return ids[torch.argsort(scores[ids], descending=True, stable=True)]
