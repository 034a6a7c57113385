"""What sample.cu computes, operation by operation, on the host; and the inputs that its tests share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentcompile.runtime.sampling import Sampling, uniform

UNIT = 1 << 36
_LOG2E, _LOG2E_REST, _ROUND = 1.442695, 1.925963e-8, 12582912.0
_POWER = ("0x1.444004p-13", "-0x1.5f0896p-10", "0x1.3b2a1cp-7", "-0x1.c6af6cp-5", "0x1.ebfbe0p-3", "-0x1.62e430p-1")


def single(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c of float32 rounded once: the float64 sum is rounded to odd, so rounding it again is harmless."""
    product, addend = a.double() * b.double(), c.double().expand_as(a)
    total = product + addend
    part = total - product
    rest = (product - (total - part)) + (addend - part)
    even = (total.view(torch.int64) & 1) == 0
    toward = torch.where(rest > 0, math.inf, -math.inf).double()
    return torch.where((rest != 0) & even, torch.nextafter(total, toward), total).float()


def scores(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32 [vocab]; the two zeros are one."""
    x = logits.float() + 0.0
    return x if temperature == 0.0 else x / single(temperature)


def order(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Ids, the greatest key first, equal keys by id; the keys of 16-bit logits are the logits'."""
    by = logits.float() if logits.dtype != torch.float32 else scores(logits, temperature)
    by, nan = by + 0.0, by.isnan()
    numbers = torch.argsort(by[~nan], descending=True, stable=True)
    return torch.cat([torch.nonzero(~nan).flatten()[numbers], torch.nonzero(nan).flatten()])


def masses(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """The mass of every logit, int64 [vocab]; equals of the largest have `UNIT`."""
    first = int(order(logits, temperature)[0])
    s = scores(logits, temperature)
    keys = logits.float() if logits.dtype != torch.float32 else s
    top_key, top = keys[first], s[first]
    d = top - s
    counted = d < 26.0
    x = torch.where(counted, s, top)
    d = top - x
    near = top - d
    rest = (top - (d + near)) + (near - x)
    log2e, log2e_rest = single(_LOG2E), single(_LOG2E_REST)
    y = d * log2e
    y_rest = fma(rest, log2e, fma(d, log2e_rest, fma(d, log2e, -y)))
    shifted = y + single(_ROUND)
    whole = shifted - single(_ROUND)
    f = (y - whole) + y_rest
    p = torch.full_like(f, float.fromhex(_POWER[0]))
    for coefficient in (*(float.fromhex(c) for c in _POWER[1:]), 1.0):
        p = fma(f, p, single(coefficient))
    v = p * ((127 + 18 - whole.int()) << 23).view(torch.float32)
    high = v.floor()
    found = (high.long() << 18) + torch.round((v - high) * (1 << 18)).long()
    found = torch.where(counted, found, 0)
    equal = keys.isnan() if bool(top_key.isnan()) else keys == top_key
    return torch.where(equal, UNIT, found)


def chosen(logits: torch.Tensor, sampling: Sampling, counters: Sequence[int]) -> list[int]:
    """The tokens that the kernel chooses. `logits` is [vocab], of the dtype that the kernel reads."""
    temperature = float(single(sampling.temperature))
    ids = order(logits, temperature)
    if temperature == 0.0:
        return [int(ids[0])] * len(counters)
    if 0 < sampling.top_k < logits.numel():
        ids = ids[: sampling.top_k]
    upto = masses(logits, temperature)[ids].cumsum(0)
    kept = int(upto[-1])
    if sampling.top_p < 1.0:
        last = -(-math.ceil(sampling.top_p * 2**63) * kept // 2**63) - 1
        kept = int(upto[int(torch.searchsorted(upto, last, right=True))])
    points = [int(uniform(sampling.seed, counter) * 2**53) * kept >> 53 for counter in counters]
    return [int(i) for i in ids[torch.searchsorted(upto, torch.tensor(points), right=True)]]


def logprob(logits: torch.Tensor, token: int) -> float:
    """Natural log of the token's probability under the unfiltered distribution, as the kernel finds it."""
    first = int(order(logits, 1.0)[0])
    total = math.log(int(masses(logits, 1.0).sum()) / UNIT)
    x = logits.double()
    alike = bool(x[token] == x[first]) or bool(x[first].isnan())
    return (0.0 if alike else float(x[token] - x[first])) - total


def margin(vocab: int) -> float:
    """How near to an edge a cumulative probability must be for the kernel to be free, as device_sampling.py says."""
    return 2.0**-23 + vocab * 2.0**-37


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Logits and settings under a name for messages."""

    name: str
    logits: torch.Tensor
    sampling: Sampling


SETTINGS = (
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_k=40, top_p=0.9, seed=2),
    Sampling(temperature=0.8, top_p=0.95, seed=3),
    Sampling(temperature=1.3, top_k=1, seed=4),
    Sampling(temperature=1.0, top_k=10**9, top_p=0.5, seed=5),
    Sampling(temperature=0.6, top_p=1e-12, seed=6),
    Sampling(temperature=0.01, seed=7),
    Sampling(temperature=100.0, seed=8),
    Sampling(temperature=100.0, top_k=300, top_p=0.999, seed=2**64 - 1),
    Sampling(temperature=0.0, seed=9),
)


def inputs(vocab: int, seed: int) -> dict[str, torch.Tensor]:
    """Logits that are like a model's, and logits that are like none, float32 [vocab]."""
    generator = torch.Generator().manual_seed(seed)
    bell = torch.randn(vocab, generator=generator)
    tail = bell * 2.5 - 1.0
    tail[torch.randint(vocab, (min(vocab, 12),), generator=generator)] += 14.0
    gaps = torch.where(bell > 0.3, bell, -math.inf)
    gaps[vocab // 2] = 0.5
    huge = bell.clone()
    huge[vocab // 3] = 30000.0
    nan = bell.clone()
    nan[::3] = math.nan
    return {
        "a model's": tail,
        "near zero": bell * 1e-3,
        "ties everywhere": torch.randint(-2, 3, (vocab,), generator=generator).float(),
        "all equal": torch.full((vocab,), 3.25),
        "zeros of both signs": torch.where(bell > 0, 0.0, -0.0),
        "one huge": huge,
        "mostly -inf": gaps,
        "all -inf": torch.full((vocab,), -math.inf),
        "some NaN": nan,
        "all NaN": torch.full((vocab,), math.nan),
        "+inf twice": torch.cat([bell[2:], torch.full((2,), math.inf)])
        if vocab > 2
        else torch.full((vocab,), math.inf),
        "all negative, wide": -bell.abs() * 40.0,
    }


def cases(vocab: int, dtype: torch.dtype, seed: int = 0) -> list[Case]:
    """Every input under every setting."""
    return [
        Case(name=f"{name} · {sampling}", logits=logits.to(dtype), sampling=sampling)
        for name, logits in inputs(vocab, seed).items()
        for sampling in SETTINGS
    ]
