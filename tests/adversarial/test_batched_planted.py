"""Planted kernels for several sequences that mix them up: each reads, writes or answers for another than it should."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.ir.region import Region
from agentcompile.ir.template import Depth
from agentcompile.ops import reference
from agentcompile.validate import DeclaredArithmetic, validate
from tests.kernels.float32 import Run, eager
from tests.kernels.remembered import Remembered
from tests.templates.shapes import Extents, region

LIBRARY = DeclaredArithmetic(accumulation="library")
DEPTHS: tuple[Depth, ...] = ("search", "accept")
REMEMBERED = Remembered()


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def failed(made: Region, run: Run, *, depth: Depth = "accept", seed: int = 0) -> dict[str, str]:
    """The checks that a kernel of PyTorch's arithmetic fails, with their details."""
    tools = REMEMBERED.tools(made, LIBRARY, seed)
    report = validate(made, LIBRARY, run, seed=seed, repeats=3, depth=depth, tools=tools)
    return {check.name: check.detail for check in report.checks if not check.ok}


def overriding(made: Region, **operators: Callable[..., Tensor]) -> Run:
    """A kernel that is PyTorch's but for some operators."""
    interpreter = reference.Interpreter(made.body, operators=operators)

    def run(buffers: Mapping[str, Tensor]) -> None:
        for name, tensor in interpreter(buffers).items():
            buffers[name].copy_(tensor)

    return run


def _attends(change: Callable[..., tuple[Tensor, ...]]) -> Callable[[Region], Run]:
    """Attention with its operands (q, keys, values, positions) changed."""

    def attention(*operands: Tensor, **told: float) -> Tensor:
        return reference.attention(*change(*operands), **told)  # type: ignore[arg-type]

    return lambda made: overriding(made, attention=attention)


def _appends(write: Callable[[Tensor, Tensor, Tensor], object]) -> Callable[[Region], Run]:
    """Appends in another way."""

    def cache_append(cache: Tensor, new: Tensor, positions: Tensor) -> Tensor:
        write(cache, new, positions)
        return cache

    return lambda made: overriding(made, cache_append=cache_append)


def _given(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Region], Run]:
    """Right for other buffers than it was given."""

    def make(made: Region) -> Run:
        run = eager(made)
        return lambda buffers: run({**buffers, **change(dict(buffers))})

    return make


def _afterwards(spoil: Callable[[Mapping[str, Tensor]], object]) -> Callable[[Region], Run]:
    """Right, and then spoiled."""

    def make(made: Region) -> Run:
        run = eager(made)

        def spoiled(buffers: Mapping[str, Tensor]) -> None:
            run(buffers)
            spoil(buffers)

        return spoiled

    return make


def _first(positions: Tensor) -> Tensor:
    return positions[:1].expand_as(positions).contiguous()


def _more(positions: Tensor, sequence: int, slots: int, context: int) -> Tensor:
    moved = positions.clone()
    moved[sequence] += slots
    return moved.clamp(0, context - 1)


def _swap(tensor: Tensor) -> object:
    return tensor.copy_(tensor[[1, 0, *range(2, tensor.shape[0])]].clone())


def _everyone(cache: Tensor, new: Tensor, positions: Tensor) -> None:
    """Each new entry goes to its slot of every cache: what overlaps is right for the last sequence alone."""
    for b, at in enumerate(positions.tolist()):
        cache[:, :, at] = new[b, :, 0]


def _beside(cache: Tensor, new: Tensor, positions: Tensor) -> None:
    """Right, and one number of the first cache is written at the slot of the second sequence."""
    reference.cache_append(cache, new, positions)
    cache[0, 0, int(positions[1]), 0] = new[1, 0, 0, 0]


WRONG_ATTENTION: dict[str, Callable[[Region], Run]] = {
    "one position for all": _given(lambda b: {"positions": _first(b["positions"])}),
    "attends by the first position": _attends(lambda q, k, v, at: (q, k, v, _first(at))),
    "attends no further than the first sequence": _attends(lambda q, k, v, at: (q, k, v, at.clamp(max=int(at[0])))),
    "attends as far as the longest": _attends(lambda q, k, v, at: (q, k, v, at.max().expand_as(at))),
    "one slot too many in sequence 1": _attends(lambda q, k, v, at: (q, k, v, _more(at, 1, 1, k.shape[2]))),
    "one slot too few in sequence 1": _attends(lambda q, k, v, at: (q, k, v, _more(at, 1, -1, k.shape[2]))),
    "reads a neighbour's caches": _attends(lambda q, k, v, at: (q, k.roll(1, 0), v.roll(1, 0), at)),
    "reads a neighbour's keys": _attends(lambda q, k, v, at: (q, k.roll(1, 0), v, at)),
    "reads a neighbour's values": _attends(lambda q, k, v, at: (q, k, v.roll(1, 0), at)),
    "reads the first cache for all": _attends(lambda q, k, v, at: (q, k[:1].expand_as(k), v[:1].expand_as(v), at)),
    "swaps the queries": _attends(lambda q, k, v, at: (q.flip(0), k, v, at)),
    "writes a neighbour's cache": _appends(lambda c, new, at: reference.cache_append(c, new.roll(1, 0), at.roll(1, 0))),
    "writes all caches": _appends(_everyone),
    "writes beside": _appends(_beside),
    "appends at the first position": _appends(lambda c, new, at: reference.cache_append(c, new, _first(at))),
    "never writes the last cache": _appends(lambda c, new, at: reference.cache_append(c[:2], new[:2], at[:2])),
    "one angle for all": _given(lambda b: {name: b[name][:1].expand_as(b[name]) for name in ("cos", "sin")}),
    "swaps two results": _afterwards(lambda b: _swap(b["y"])),
    "clears a neighbour's past": _afterwards(lambda b: b["k_cache"][2, :, 0].zero_()),
    "clears a neighbour's future": _afterwards(lambda b: b["v_cache"][0, :, -1].zero_()),
}


ATTENTION = ("rope-attention-decode", "qknorm-rope-attention-decode")


@pytest.mark.parametrize("at", [Extents(batch=3), Extents(batch=3, window=19)], ids=["all", "window"])
@pytest.mark.parametrize("fault", WRONG_ATTENTION)
@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_that_mixes_sequences_up_is_caught(kind: str, fault: str, at: Extents) -> None:
    made = region(kind, at)
    for seed, depth in enumerate(DEPTHS):
        assert failed(made, WRONG_ATTENTION[fault](made), depth=depth, seed=seed)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("writes beside", "state"),
        ("clears a neighbour's past", "state"),
        ("clears a neighbour's future", "state"),
        ("never writes the last cache", "poison"),
        ("attends as far as the longest", "poison"),
        ("swaps two results", "element"),
    ],
)
def test_a_fault_is_told_by_the_check_meant_for_it(fault: str, check: str) -> None:
    made = region("rope-attention-decode", Extents(batch=3))
    assert check in failed(made, WRONG_ATTENTION[fault](made))


def test_a_cache_that_changed_is_named_by_its_sequence() -> None:
    made = region("rope-attention-decode", Extents(batch=3))
    found = failed(made, WRONG_ATTENTION["clears a neighbour's past"](made))
    assert "slots of k_cache[2] beside" in found["state"]


def _shared_scale(x: Tensor, weight: Tensor, *, eps: float, offset: float = 0.0) -> Tensor:
    """Every sequence divided by the first one's root mean square."""
    wide = x.float()
    scale = torch.rsqrt(wide[:1].square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (offset + weight.float())).to(x.dtype)


WRONG: dict[str, tuple[str, Callable[[Region], Run]]] = {
    "the first x for all": ("linear", _given(lambda b: {"x": b["x"][:1].expand_as(b["x"])})),
    "two results swapped": ("linear", _afterwards(lambda b: _swap(b["y"]))),
    "the last sequence left out": ("linear", _given(lambda b: {"y": torch.empty_like(b["y"])})),
    "one matrix's results swapped": ("linear-merged", _afterwards(lambda b: _swap(b["y.1"]))),
    "the first residual for all": ("linear-residual", _given(lambda b: {"r": b["r"][:1].expand_as(b["r"])})),
    "one scale for all": ("rmsnorm", lambda made: overriding(made, rms_norm=_shared_scale)),
    "one scale for all, fused": ("rmsnorm-linear", lambda made: overriding(made, rms_norm=_shared_scale)),
    "the first gate for all": ("silu-mul", _given(lambda b: {"g": b["g"][:1].expand_as(b["g"])})),
    "the first position's row for all": ("position-tables", _given(lambda b: {"positions": _first(b["positions"])})),
    "the first token's row for all": ("embedding", _given(lambda b: {"ids": b["ids"][:1].expand_as(b["ids"])})),
    "rows of two sequences swapped": ("embedding", _afterwards(lambda b: _swap(b["y"]))),
    "the first choice for all": ("linear-argmax", _afterwards(lambda b: b["token"].copy_(b["token"][:1].clone()))),
    "two choices swapped": ("rmsnorm-linear-argmax", _afterwards(lambda b: _swap(b["token"]))),
    "logits of two sequences swapped": ("linear-argmax", _afterwards(lambda b: _swap(b["logits"]))),
    "the best of all for all": (
        "linear-argmax",
        lambda made: overriding(made, argmax=lambda x: (x.argmax() % x.shape[-1]).expand(x.shape[:-1])),
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_kernel_that_mixes_sequences_up_is_caught(fault: str) -> None:
    kind, make = WRONG[fault]
    made = region(kind, Extents(batch=3, rows=(48, 16) if kind == "linear-merged" else (48,)))
    for seed in range(3):
        for depth in DEPTHS:
            assert failed(made, make(made), depth=depth, seed=seed)
