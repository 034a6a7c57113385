"""The small operators of a prefill chunk on a CPU: right at every length, and bit for bit in every chunking."""

from __future__ import annotations

import pytest
import torch

from agentcompile.evaluation.chunk import at_length
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Port
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.ops.reference import DTYPES
from agentcompile.worker.launch import runner
from tests.templates.chunked import TOKENS, Built, Workshop
from tests.templates.shapes import Extents
from tests.templates.suite import BIASED, CATALOG, failed

SMALL = (
    "embedding/chunk",
    "embedding/chunk-packed",
    "position-table/chunk",
    "position-tables/chunk",
    "rmsnorm/chunk",
    "add/chunk",
    "silu-mul/chunk",
    "add-rmsnorm/chunk",
)
LAST = ("last-rmsnorm-linear/rows", "last-rmsnorm-linear/packed")
ATTENTION = ("rope-attention-prefill/blocks", "qknorm-rope-attention-prefill/blocks")
DTYPE: tuple[DType, ...] = ("bf16", "fp32")
CASES = [(id, dtype) for id in (*SMALL, *LAST) for dtype in DTYPE]
PIECES = ((TOKENS - 1, 1), (1, 2, 15, 33, 17, 100, 88))


def built_of(workshop: Workshop, id: str, dtype: DType) -> Built:
    """A template at a width that no vector divides, with rows beyond the last tile, an offset and a bias."""
    template = CATALOG.get(id, dtype)
    bias = template.region in (*BIASED, "last-rmsnorm-linear")
    at = Extents(
        hidden=97,
        rows=(149,),
        bias=bias,
        q_heads=3,
        kv_heads=1,
        head_dim=22,
        context=TOKENS + 30,
        window=19,
        offset=1.0,
        dtype=dtype,
    )
    return workshop.build(template, at)


@pytest.mark.parametrize(("id", "dtype"), [*CASES, *((id, dtype) for id in ATTENTION for dtype in DTYPE)])
def test_one_binary_passes_the_suite_at_several_lengths(workshop: Workshop, id: str, dtype: DType) -> None:
    built = built_of(workshop, id, dtype)
    implementation = built.implementation
    for n in (1, 33) if id in ATTENTION else (1, TOKENS):  # the reference of attention takes long
        here = at_length(built.region, n)
        run = runner(implementation, here, workshop.executor(2))
        assert failed(built.template, here, built.source, run) == [], n


def drawn(port: Port, built: Built) -> torch.Tensor:
    """The contents of a port for `TOKENS` tokens; a weight in the template's layout."""
    made = torch.Generator().manual_seed(len(port.name) + 3)
    shape = [TOKENS if isinstance(dim, str) else dim for dim in port.shape]
    if port.dtype == "int64":
        return torch.arange(TOKENS).view(shape) + 7 if port.family == "positions" else torch.arange(TOKENS) * 31 % 149
    values = torch.randn(shape, generator=made).to(DTYPES[port.dtype])
    return LAYOUTS[built.template.layout(port.family)].pack(values) if len(shape) == 2 else values


def part(port: Port, whole: torch.Tensor, begin: int, n: int) -> torch.Tensor:
    """What tokens [begin, begin + n) are of a port, dense."""
    if not any(isinstance(dim, str) for dim in port.shape):
        return whole
    return whole.reshape(TOKENS, -1)[begin : begin + n].contiguous()


def chunk(workshop: Workshop, built: Built, begin: int, n: int, threads: int) -> dict[str, torch.Tensor]:
    """The outputs of one chunk, a row a token; of the last token alone, one row."""
    buffers = {port.name: part(port, drawn(port, built), begin, n) for port in built.region.ports}
    outputs = [port for port in built.region.ports if port.role == "output"]
    buffers |= {port.name: torch.full_like(buffers[port.name], float("nan")) for port in outputs}
    workshop.run(built, buffers, n, threads)
    return {port.name: buffers[port.name].reshape(-1, buffers[port.name].shape[-1]) for port in outputs}


@pytest.mark.parametrize(("id", "dtype"), CASES)
def test_a_token_has_the_same_bits_in_every_chunk_and_for_every_number_of_threads(
    workshop: Workshop, id: str, dtype: DType
) -> None:
    built = built_of(workshop, id, dtype)
    whole = chunk(workshop, built, 0, TOKENS, 1)
    assert not any(rows.isnan().any() for rows in whole.values())
    for threads, pieces in zip((1, 3), PIECES, strict=True):
        begin = 0
        for n in pieces:
            made = chunk(workshop, built, begin, n, threads)
            begin += n
            for name, rows in made.items():
                if id in LAST:
                    assert begin < TOKENS or torch.equal(rows, whole[name])
                else:
                    assert torch.equal(rows, whole[name][begin - n : begin]), (name, threads, n)
        assert begin == TOKENS
