"""Every CUDA and Triton template on a device: right at edge sizes by the same suite that evaluates the CPU's."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.build.toolchain import Toolchain
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Depth, Params, Template
from agentcompile.runtime.driver import Module
from agentcompile.system.probe import probe_cuda
from agentcompile.system.store import Store
from agentcompile.worker.gpu_launch import device_runner
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, FAMILIES, build, chunk_of, failed, legal, odd, problems

pytestmark = pytest.mark.gpu

CUDA = [template for template in CATALOG.templates if template.language in ("cuda", "triton")]
CASES = [(t.id, dtype, batch) for t in CUDA for dtype in t.dtypes for batch in sorted(set(t.tokens))]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def target() -> Target:
    return probe_cuda("cuda:0", toolchain="nvrtc")


def faults(
    template: Template, made: Region, params: Params, target: Target, store: Store, depth: Depth = "search"
) -> list[str]:
    source, binary = build(template, made, params, target, store, Toolchain(compiler="nvrtc", name="nvrtc"))
    run = device_runner(source, made, Module(Path(binary.path)), target.arch)
    with torch.device("cuda"):
        return failed(template, made, source, run, depth=depth)


def plain(template: Template, dtype: DType, batch: int, tokens: int = 0) -> Region:
    kind, rows = template.region, (2048, 1024, 1024) if template.region in FAMILIES else (3072,)
    tokens = tokens or chunk_of(template, most=300)
    heads = Extents(q_heads=16, kv_heads=8, head_dim=128, context=700 + tokens, tokens=tokens)
    return region(kind, replace(heads, hidden=2048, rows=rows, dtype=dtype, batch=batch))


@pytest.mark.parametrize(("id", "dtype", "batch"), CASES)
def test_the_default_is_right_at_odd_sizes(id: str, dtype: DType, batch: int, target: Target, store: Store) -> None:
    template = CATALOG.get(id, dtype)
    sizes = {"hidden": 104, "batch": batch, "tokens": chunk_of(template)}
    regions = [odd(template.region, dtype, head_dim=head_dim, **sizes) for head_dim in (24, 48, 64)]
    made = next(made for made in regions if not problems(made, template, template.defaults, target))
    assert faults(template, made, template.defaults, target, store) == []


@pytest.mark.parametrize(("id", "dtype", "batch"), [case for case in CASES if CATALOG.get(*case[:2]).params])
def test_points_drawn_from_the_space_are_right(id: str, dtype: DType, batch: int, target: Target, store: Store) -> None:
    template = CATALOG.get(id, dtype)
    made = plain(template, dtype, batch)
    points = legal(made, template, target)
    for drawn in random.Random(zlib.crc32(f"{id} {dtype}".encode())).sample(points, min(3, len(points))):
        assert faults(template, made, drawn.params, target, store) == [], drawn.label


@pytest.mark.parametrize("id", [template.id for template in CUDA if "attention-decode" in template.id])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "context"),
    [(8, 1, 128, 300), (4, 4, 80, 65), (2, 1, 256, 64), (6, 2, 64, 1), (12, 2, 96, 1000)],
)
def test_attention_is_right_for_every_group_and_width(
    id: str, q_heads: int, kv_heads: int, head_dim: int, context: int, target: Target, store: Store
) -> None:
    template = CATALOG.get(id)
    extents = Extents(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, context=context)
    made = region(template.region, extents)
    points = legal(made, template, target)
    for drawn in random.Random(context).sample(points, min(3, len(points))):
        assert faults(template, made, drawn.params, target, store) == [], drawn.label


@pytest.mark.parametrize("tokens", [1, 64, 65, 129, 1000, 2049])
@pytest.mark.parametrize("id", [t.id for t in CUDA if t.phases == ("prefill",) and any(one.maps for one in t.launches)])
def test_tiles_of_a_chunk_are_right_at_every_length(id: str, tokens: int, target: Target, store: Store) -> None:
    template = CATALOG.get(id)
    made = plain(template, "bf16", 1, tokens)
    for point in random.Random(tokens).sample(legal(made, template, target), 2):
        assert faults(template, made, point.params, target, store) == [], point.label


@pytest.mark.parametrize("tokens", [1, 63, 130, 1000])
@pytest.mark.parametrize("window", [0, 77])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("id", [t.id for t in CUDA if t.region.endswith("attention-prefill")])
def test_attention_of_a_chunk_is_right_at_every_point(
    id: str, head_dim: int, window: int, tokens: int, target: Target, store: Store
) -> None:
    template = CATALOG.get(id)
    extents = Extents(
        q_heads=24, kv_heads=8, head_dim=head_dim, context=tokens + 200, window=window, offset=1.0, tokens=tokens
    )
    made = region(template.region, extents)
    for point in random.Random(tokens + window).sample(legal(made, template, target), 3):
        assert faults(template, made, point.params, target, store) == [], point.label


@pytest.mark.parametrize(
    ("id", "dtype"), [(t.id, dtype) for t in CUDA if chunk_of(t) and t.arch == ("sm_90a",) for dtype in t.dtypes]
)
def test_a_prompt_s_kernel_on_tensor_cores_is_accepted(id: str, dtype: DType, target: Target, store: Store) -> None:
    """All cases that a kernel must pass before it is in a lock, some of which only right rounding passes."""
    template = CATALOG.get(id, dtype)
    assert faults(template, plain(template, dtype, 1), template.defaults, target, store, depth="accept") == []
