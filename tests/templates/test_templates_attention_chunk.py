"""Attention of a chunk on a CPU: against float64, bit for bit in every chunking; planted faults are seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from agentcompile.ir.graph import DType
from agentcompile.ops.reference import DTYPES
from tests.templates.chunked import TOKENS, WIDE, Built, Workshop
from tests.templates.shapes import Extents
from tests.templates.suite import CATALOG, legal

CONTEXT = 350
COUNTS = (1, 2, 15, 17, 33, TOKENS - 1, TOKENS)
LOUD = 24.0
"""The factor on queries with which an exponential overflows unless the largest score is subtracted."""
CASES: dict[str, tuple[str, Extents]] = {
    "rope fp32 group 7": (
        "rope-attention-prefill/blocks",
        Extents(q_heads=7, kv_heads=1, head_dim=64, context=CONTEXT, dtype="fp32"),
    ),
    "rope bf16 window": (
        "rope-attention-prefill/blocks",
        Extents(q_heads=4, kv_heads=2, head_dim=80, context=CONTEXT, dtype="bf16", window=70),
    ),
    "qknorm fp32 window": (
        "qknorm-rope-attention-prefill/blocks",
        Extents(q_heads=2, kv_heads=2, head_dim=128, context=CONTEXT, dtype="fp32", window=19, offset=1.0),
    ),
    "qknorm bf16 group 2": (
        "qknorm-rope-attention-prefill/blocks",
        Extents(q_heads=4, kv_heads=2, head_dim=22, context=CONTEXT, dtype="bf16"),
    ),
}


@dataclass(frozen=True)
class Prompt:
    """What a model would hand to attention for every position of the context, and the caches before."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor

    @staticmethod
    def of(at: Extents, loud: float = 1.0) -> Prompt:
        made, d = torch.Generator().manual_seed(11), at.head_dim
        kind = DTYPES[at.dtype]

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(*shape, generator=made) * scale).to(kind)

        angles = torch.arange(at.context)[:, None] * 1000.0 ** (-torch.arange(d // 2) / (d // 2))
        turns = angles.repeat(1, 2)
        return Prompt(
            q=normal(at.context, at.q_heads, d, scale=loud),
            k=normal(at.context, at.kv_heads, d),
            v=normal(at.context, at.kv_heads, d),
            cos=turns.cos().to(kind),
            sin=turns.sin().to(kind),
            q_norm=normal(d, scale=0.5),
            k_norm=normal(d, scale=0.5),
        )


@dataclass
class Caches:
    """Keys and values: slots before `start` hold what was appended there, the others NaN."""

    keys: torch.Tensor
    values: torch.Tensor

    @staticmethod
    def before(start: int, at: Extents, prompt: Prompt, norms: bool) -> Caches:
        shape = (at.kv_heads, at.context, at.head_dim)
        keys, values = (torch.full(shape, float("nan"), dtype=DTYPES[at.dtype]) for _ in range(2))
        turned = _turned(prompt.k, prompt, prompt.k_norm if norms else None, at.offset)
        keys[:, :start] = turned.to(keys.dtype).transpose(0, 1)[:, :start]
        values[:, :start] = prompt.v.transpose(0, 1)[:, :start]
        return Caches(keys, values)


def _turned(x: torch.Tensor, prompt: Prompt, norm: torch.Tensor | None, offset: float) -> torch.Tensor:
    """Heads [T, H, D] in float64, normalised and rotated as the operators say."""
    x = x.double()
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (norm.double() + offset)
    half = x.shape[-1] // 2
    other = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * prompt.cos.double()[:, None] + other * prompt.sin.double()[:, None]


def wanted(at: Extents, prompt: Prompt, norms: bool) -> torch.Tensor:
    """Attention of every position in float64, [q_heads, context, D]; keys are those that a cache holds."""
    q = _turned(prompt.q, prompt, prompt.q_norm if norms else None, at.offset).transpose(0, 1)
    full = Caches.before(at.context, at, prompt, norms)
    group = at.q_heads // at.kv_heads
    keys, values = (t.double().repeat_interleave(group, 0) for t in (full.keys, full.values))
    scores = q @ keys.transpose(1, 2) * at.head_dim**-0.5
    place = torch.arange(at.context)
    seen = place[None, :] <= place[:, None]
    if at.window:
        seen &= place[None, :] > place[:, None] - at.window
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1) @ values


def attend(
    workshop: Workshop, built: Built, prompt: Prompt, caches: Caches, start: int, n: int, threads: int = 2
) -> torch.Tensor:
    """Run one chunk; return y [q_heads, n, D]. The memory of y and of the inputs is that of n tokens alone."""
    heads, d = prompt.q.shape[1:]
    here = slice(start, start + n)
    room = torch.full((heads * n * d + 64,), 7.0, dtype=caches.keys.dtype)
    every = {
        "q": prompt.q[here].contiguous(),
        "k": prompt.k[here].contiguous(),
        "v": prompt.v[here].contiguous(),
        "cos": prompt.cos[here].contiguous(),
        "sin": prompt.sin[here].contiguous(),
        "q_norm": prompt.q_norm,
        "k_norm": prompt.k_norm,
        "positions": torch.arange(start, start + n),
        "k_cache": caches.keys,
        "v_cache": caches.values,
        "y": room,
    }
    workshop.run(built, every, n, threads)
    assert (room[heads * n * d :] == 7.0).all(), "it wrote behind its output"
    return room[: heads * n * d].view(heads, n, d)


def error(made: torch.Tensor, exact: torch.Tensor, dtype: DType, loud: float = 1.0) -> float:
    """The largest error in parts of what is allowed; more than 1, or NaN, is wrong."""
    within = (3e-6 if dtype == "fp32" else 2.0**-7) * loud
    return float(((made.double() - exact).abs() / (within * (1 + exact.abs()))).max())


def built_of(workshop: Workshop, name: str, isa: tuple[str, ...] | None = None) -> tuple[Built, Extents, bool]:
    id, at = CASES[name]
    target = None if isa is None else workshop.having(*isa)
    return workshop.build(CATALOG.get(id, at.dtype), at, target=target), at, id.startswith("qknorm")


@pytest.mark.parametrize("name", CASES)
def test_every_length_at_every_place_is_right(workshop: Workshop, name: str) -> None:
    built, at, norms = built_of(workshop, name)
    prompt = Prompt.of(at)
    exact, full = wanted(at, prompt, norms), Caches.before(CONTEXT, at, prompt, norms)
    for n in COUNTS:
        for start in sorted({0, 1, 63, 64, CONTEXT - n}):
            caches = Caches.before(start, at, prompt, norms)
            made = attend(workshop, built, prompt, caches, start, n)
            assert error(made, exact[:, start : start + n], at.dtype) <= 1, (n, start)
            assert error(caches.keys[:, : start + n], full.keys[:, : start + n].double(), at.dtype) <= 1, (n, start)
            assert torch.equal(caches.values[:, : start + n], full.values[:, : start + n])
            assert caches.keys[:, start + n :].isnan().all()
            assert caches.values[:, start + n :].isnan().all()


@pytest.mark.parametrize("name", CASES)
def test_a_token_has_the_same_bits_in_every_chunk_and_for_every_number_of_threads(
    workshop: Workshop, name: str
) -> None:
    same_bits_in_every_chunk(workshop, *built_of(workshop, name))


def same_bits_in_every_chunk(workshop: Workshop, built: Built, at: Extents, norms: bool) -> None:
    prompt = Prompt.of(at)
    start, whole = 45, Caches.before(45, at, prompt, norms)
    once = attend(workshop, built, prompt, whole, start, TOKENS, threads=1)
    for threads, pieces in ((3, (TOKENS,)), (1, (100, 1, 2, 64, 17, 72)), (3, (33, 15, 80, 128))):
        caches, begin, parts = Caches.before(start, at, prompt, norms), start, []
        for n in pieces:
            parts.append(attend(workshop, built, prompt, caches, begin, n, threads))
            begin += n
        assert begin == start + TOKENS
        assert torch.equal(torch.cat(parts, dim=1), once), (threads, pieces)
        assert torch.equal(caches.keys[:, :begin], whole.keys[:, :begin])


def test_later_tokens_and_old_slots_that_are_nan_reach_no_result(workshop: Workshop) -> None:
    nan_stays_away(workshop, *built_of(workshop, "rope bf16 window"))


def nan_stays_away(workshop: Workshop, built: Built, at: Extents, norms: bool) -> None:
    prompt, start, n = Prompt.of(at), 90, 50
    clean = attend(workshop, built, prompt, Caches.before(start, at, prompt, norms), start, n)
    prompt.k[start + n - 1], prompt.v[start + n - 1] = float("nan"), float("nan")
    caches = Caches.before(start, at, prompt, norms)
    caches.keys[:, : start - at.window + 1], caches.values[:, : start - at.window + 1] = float("nan"), float("nan")
    made = attend(workshop, built, prompt, caches, start, n)
    assert torch.equal(made[:, :-1], clean[:, :-1])
    assert made[:, -1].isnan().all()


@pytest.mark.parametrize("id", sorted({id for id, _ in CASES.values()}))
def test_every_point_is_right(workshop: Workshop, id: str) -> None:
    template, at = CATALOG.get(id, "bf16"), Extents(q_heads=2, kv_heads=1, head_dim=8, context=300)
    prompt, norms, start, n = Prompt.of(at), id.startswith("qknorm"), 30, 200
    exact = wanted(at, prompt, norms)[:, start : start + n]
    points = legal(workshop.build(template, at).region, template, workshop.target)
    assert 2 <= len(points) <= 12
    for point in points[:: len(points) - 1]:
        built = workshop.build(template, at, params=point.params)
        made = attend(workshop, built, prompt, Caches.before(start, at, prompt, norms), start, n)
        assert error(made, exact, "bf16") <= 1, point.label


@pytest.mark.parametrize(
    ("name", "isa"),
    [("rope bf16 window", WIDE), ("qknorm fp32 window", WIDE), ("rope bf16 window", ())],
    ids=["avx512 bf16", "avx512 fp32", "none bf16"],
)
def test_with_more_or_fewer_instructions_it_is_right(workshop: Workshop, name: str, isa: tuple[str, ...]) -> None:
    built, at, norms = built_of(workshop, name, isa)
    prompt, start = Prompt.of(at), 63
    exact, whole = wanted(at, prompt, norms), Caches.before(start, at, prompt, norms)
    once = attend(workshop, built, prompt, whole, start, TOKENS)
    assert error(once, exact[:, start : start + TOKENS], at.dtype) <= 1
    caches = Caches.before(start, at, prompt, norms)
    first, rest = (attend(workshop, built, prompt, caches, *part) for part in ((start, 37), (start + 37, 219)))
    assert torch.equal(torch.cat((first, rest), dim=1), once)


PLANTED = {
    "a query misses its own slot": ("position(row + r) + 1 - slot", "position(row + r) - slot"),
    "the window is one slot too long": ("position(r) - window + 1", "position(r) - window"),
    "the last block is missing": ("slot < stop; slot += BLOCK", "slot + BLOCK < stop; slot += BLOCK"),
    "no maximum is subtracted": ("next == -INFINITY ? 0.0f : next;", "0.0f;"),
    "sums keep their old scale": ("next == top ? 1.0f : std::exp(top - shift)", "1.0f"),
    "heads are mixed up": ("(head * GROUP + r % GROUP) * n", "(head + r % GROUP * kv_heads) * n"),
    "the next token's key is read": ("const long stop = position(count - 1) + 1", "const long stop = position(0) + 1"),
}


@pytest.mark.parametrize("fault", ["", *PLANTED])
def test_a_planted_fault_is_seen(workshop: Workshop, fault: str) -> None:
    template = CATALOG.get("rope-attention-prefill/blocks", "fp32")
    at = Extents(q_heads=4, kv_heads=2, head_dim=8, context=CONTEXT, dtype="fp32", window=200)
    built = workshop.build(template, at, change=PLANTED.get(fault))
    prompt, start, n = Prompt.of(at, LOUD), 45, 201
    made = attend(workshop, built, prompt, Caches.before(start, at, prompt, False), start, n)
    right = error(made, wanted(at, prompt, False)[:, start : start + n], "fp32", LOUD) <= 1
    assert right == (fault == "")
