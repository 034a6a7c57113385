"""Every CUDA template over the glob, run without a GPU: its text on the host, under the suite of a device."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.template import Template
from tests.templates.emulated import TARGET, faults, planted
from tests.templates.shapes import CHUNK_KINDS, Extents, region
from tests.templates.suite import CATALOG, FAMILIES, chunk_of, legal, odd, problems, serves

CUDA = [template for template in CATALOG.templates if template.language == "cuda"]
PREFILL = 0
"""Stands for a batch: the region is of a prefill's chunk."""


def extents_of(template: Template) -> list[int]:
    """The fewest and the most sequences, and a chunk where the template serves prefills."""
    batches = [] if chunk_of(template) else sorted(set(template.tokens))
    return batches + [PREFILL] * ("prefill" in template.phases)


CASES = [
    (t.id, t.dtypes[-1 if drawn else at % len(t.dtypes)], extent, drawn)
    for t in CUDA
    for at, extent in enumerate(extents_of(t))
    for drawn in ((False, True) if at == 0 and t.params else (False,))
]


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def shape(template: Template, dtype: DType, batch: int, hidden: int = 104) -> Region:
    """Tails of vectors, rows and shares; heads whose halves some kernels could not take at 24 elements have 48."""
    if batch == PREFILL and template.region not in CHUNK_KINDS:
        rows = (47, 3, 17) if template.region in FAMILIES else (47,)
        extents = Extents(hidden=hidden, rows=rows, offset=1.0, dtype=dtype, tokens=5)
        heads = [region(template.region, replace(extents, head_dim=head_dim)) for head_dim in (16, 64)]
        return next(made for made in heads if serves(template, made, TARGET))
    sizes = [odd(template.region, dtype, hidden=hidden, head_dim=head_dim, batch=batch or 1) for head_dim in (24, 48)]
    return next(made for made in sizes if serves(template, made, TARGET))


@pytest.mark.parametrize(("id", "dtype", "batch", "drawn"), CASES)
def test_a_template_is_right_on_the_host(id: str, dtype: DType, batch: int, drawn: bool, tmp_path: Path) -> None:
    template = CATALOG.get(id, dtype)
    made = shape(template, dtype, batch, hidden=600 if drawn else 104)  # several steps and parts of a row
    params = template.defaults
    if drawn or problems(made, template, params, TARGET):
        points = [point.params for point in legal(made, template, TARGET) if point.params != template.defaults]
        params = random.Random(zlib.crc32(id.encode())).choice(points) if drawn else points[0]
    assert faults(template, made, params, tmp_path) == [], params


def test_every_template_has_a_case() -> None:
    assert {id for id, *_ in CASES} == {template.id for template in CUDA}
    assert {id for id, *_, drawn in CASES if drawn} == {template.id for template in CUDA if template.params}


@pytest.mark.parametrize(
    ("id", "file", "right", "wrong"),
    [
        # A barrier too few: sums of warps are read before they are there, or a ring is filled that is being read.
        ("rmsnorm/block", "device.cuh", "__syncthreads();", ""),
        ("linear/bulk-rows", "bulk.cuh", "ring.wait()));\n                __syncwarp();", "ring.wait()));"),
        ("rope-attention-decode/tensor-kv", "attention_tiles.cuh", "__syncwarp();  // now", "// now"),
        (
            "rope-attention-decode/tensor-bulk-kv",
            "copies.cuh",
            "wait_for(full + place, parities",
            "(void)(parities",
        ),
        ("rope-attention-decode/cluster-kv", "attention_joined.cuh", "cluster_wait();\n    constexpr", "constexpr"),
        ("rope-attention-decode/cluster-kv", "attention_joined.cuh", "cluster_wait();\n}", "}"),
        # What nobody has waited for: copies, and inputs.
        ("rope-attention-decode/split-kv", "attention_block.cuh", "copies_there<DEPTH - 1>", "copies_there<DEPTH>"),
        ("linear/bulk-rows", "bulk.cuh", "slot = 0, parity ^= 1", "slot = 0"),
        ("linear/warp-rows", "gemv.cuh", "wait_for_inputs();", ""),
        # Past the end: of the matrix, of the vector in shared memory, of what a launch asks for.
        ("linear/warp-rows", "gemv.cuh", "(r < last ? r : last)", "r"),
        ("linear/warp-rows", "gemv.cuh", "if (k >= K) continue;", "if (k > K) continue;"),
        ("linear/bulk-rows", "bulk.cuh", "long(WARPS) * DEPTH * BYTES)", "long(WARPS) * (DEPTH + 2) * BYTES)"),
        ("rope-attention-decode/cluster-kv", "attention_joined.cuh", "GROUP * WARPS * R", "GROUP * (WARPS + 1) * R"),
    ],
)
def test_a_planted_fault_is_caught(id: str, file: str, right: str, wrong: str, tmp_path: Path) -> None:
    template = CATALOG.get(id)
    made = shape(template, "bf16", template.tokens[0])
    assert faults(planted(template, file, right, wrong), made, template.defaults, tmp_path) != []


WRAPPED = [
    (f"{kind}/{name}", params)
    for kind in ("qknorm-rope-attention-decode", "rope-attention-decode")
    for name, params in (
        ("split-kv", {"SPLITS": 1, "WARPS": 2, "SLOTS": 1, "DEPTH": 2}),
        ("bulk-kv", {"SPLITS": 2, "WARPS": 2, "SLOTS": 2, "DEPTH": 3}),
        ("tensor-kv", {"SPLITS": 1, "WARPS": 2, "DEPTH": 2}),
        ("tensor-bulk-kv", {"SPLITS": 1, "WARPS": 2, "DEPTH": 2}),
        ("cluster-tensor", {"SPLITS": 2, "WARPS": 2, "DEPTH": 3, "BULK": 0}),
        ("cluster-tensor", {"SPLITS": 2, "WARPS": 2, "DEPTH": 2, "BULK": 1}),
    )
]
"""Attention whose rings are filled several times over a context of `LONG`."""
LONG = 300


@pytest.mark.parametrize(("id", "params"), WRAPPED)
def test_a_ring_that_is_filled_again_and_again_is_right(id: str, params: dict[str, int], tmp_path: Path) -> None:
    template = CATALOG.get(id)
    made = region(template.region, Extents(head_dim=48, context=LONG))
    assert faults(template, made, tuple(params.items()), tmp_path) == []


@pytest.mark.parametrize("name", ["tensor-bulk-kv", "bulk-kv"])
def test_a_ring_whose_barriers_are_not_told_apart_is_caught(name: str, tmp_path: Path) -> None:
    id, params = next(one for one in WRAPPED if one[0] == f"rope-attention-decode/{name}")
    template = CATALOG.get(id)
    made = region(template.region, Extents(head_dim=48, context=LONG))
    wrong = tuple(
        (at, text.replace("parities ^= 1u << place;", "") if at == "copies.cuh" else text)
        for at, text in template.includes
    )
    assert wrong != template.includes
    assert faults(replace(template, includes=wrong), made, tuple(params.items()), tmp_path) != []


def chunk(tokens: int, hidden: int, rows: int) -> Region:
    return region("gateup-silu-mul", Extents(hidden=hidden, rows=(rows,), tokens=tokens))


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("tokens", "hidden", "rows"), [(64, 72, 296), (70, 904, 72), (200, 136, 300), (1100, 8, 40)])
def test_tiles_of_a_chunk_are_right_on_the_host(
    tokens: int, hidden: int, rows: int, cluster: int, tmp_path: Path
) -> None:
    template = CATALOG.get("gateup-silu-mul/tensor-tiles")
    assert faults(template, chunk(tokens, hidden, rows), (("CLUSTER", cluster), ("BAND", 8)), tmp_path) == []


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        # Read before it is there, overwritten before it is read, and used before it is made.
        ("tensor_tiles.cuh", "wait_for(tiles.full + at.stage, at.parity);", ""),
        ("tensor_tiles.cuh", "wait_for(tiles.empty + at.stage, at.parity ^ 1);", ""),
        ("tensor_tiles.cuh", "products_left<1>();", "products_left<2>();"),
        ("wgmma.cuh", "products_left<0>();", "products_left<1>();"),
        # Barriers that count too few, and a block that ends before its neighbour has copied and read.
        ("tensor_tiles.cuh", "GROUPS * SHARE)", "GROUPS)"),
        ("tensor_tiles.cuh", "if (SHARE > 1) __syncwarp(), cluster_meets();  // nobody", "// nobody"),
        # Another half of a tile, the next tile, the wrong words, and what lies behind the last token.
        ("tensor_tiles.cuh", "to + p * Tiles::BOX_BYTES", "to"),
        ("tensor_tiles.cuh", "* SHARE + turn) * TOKENS", "* SHARE) * TOKENS"),
        ("wgmma.cuh", "q & 2 ? word[i] : word[i + 2], 2", "q & 2 ? word[i + 2] : word[i], 2"),
        ("kernel.cu", "if (token < THERE) store<4", "if (token <= THERE) store<4"),
        ("wgmma.cuh", "Operand(1u << 30 | 64) << 32", "Operand(1u << 30 | 32) << 32"),
    ],
)
def test_a_planted_fault_of_tiles_is_caught(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    template = planted(CATALOG.get("gateup-silu-mul/tensor-tiles"), file, right, wrong)
    made = chunk(tokens=200, hidden=904, rows=72)
    assert faults(template, made, (("CLUSTER", 2), ("BAND", 8)), tmp_path) != []
