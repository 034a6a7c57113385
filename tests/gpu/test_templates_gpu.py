"""Every CUDA template on a device: right at edge sizes by the same suite that judges the CPU's."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile
from agentcompile.build.toolchain import Toolchain
from agentcompile.catalog import load
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Template
from agentcompile.layouts import LAYOUTS
from agentcompile.materialize import specialise
from agentcompile.regions.kinds import facts
from agentcompile.space import Space
from agentcompile.store import Store
from agentcompile.validate import Facts, validate
from agentcompile.worker.device import device_runner
from tests.templates.shapes import Extents, region

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2] / "templates"
CATALOG = load([ROOT], kinds=facts(), layouts=tuple(LAYOUTS))
CUDA = [template for template in CATALOG.templates if template.language == "cuda"]
CASES = [(template.id, dtype) for template in CUDA for dtype in template.dtypes]
FAMILIES = ("linear-merged", "rmsnorm-linear")
BIASED = ("linear", "linear-merged", "rmsnorm-linear", "linear-residual", "linear-argmax", "rmsnorm-linear-argmax")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def target() -> Target:
    found = torch.cuda.get_device_properties(0)
    arch = f"sm_{found.major}{found.minor}" + ("a" if found.major >= 9 else "")
    return Target(
        kind="cuda",
        device=found.name,
        arch=arch,
        isa=(),
        threads=found.multi_processor_count,
        cache_bytes=(228 << 10, found.L2_cache_size),
        line_bytes=128,
    )


def defaults(template: Template) -> Params:
    return tuple((param.name, param.default) for param in template.params)


def faults(template: Template, made: Region, params: Params, target: Target, store: Store) -> list[str]:
    source = specialise(template, made, params, target)
    toolchain = Toolchain(compiler="nvrtc", name="nvrtc")
    binary = compile(source, store, toolchain=toolchain, limit_s=60)
    assert isinstance(binary, Binary), binary
    declared = Facts(
        rounds=template.rounds,
        accumulation=template.accumulation,
        deterministic=template.deterministic,
        layouts=template.layouts,
        workspaces=source.workspaces,
    )
    run = device_runner(source, Path(binary.path), target.arch)
    report = validate(made, declared, run, seed=7, repeats=3, depth="search", fences=False)
    return [f"{c.name}: {c.measured:.3g} > {c.allowed:.3g} {c.detail}" for c in report.checks if not c.ok]


def odd(kind: str, dtype: DType) -> Region:
    """Tails of loads, of units and of blocks, a window, a bias, an offset."""
    rows = (47, 3, 17) if kind in FAMILIES else (47,)
    extents = Extents(
        hidden=104,
        rows=rows,
        bias=kind in BIASED,
        q_heads=3,
        kv_heads=1,
        head_dim=24,
        context=37,
        window=19,
        offset=1.0,
        dtype=dtype,
    )
    return region(kind, extents)


def plain(kind: str, dtype: DType) -> Region:
    rows = (2048, 1024, 1024) if kind in FAMILIES else (3072,)
    return region(kind, Extents(hidden=2048, rows=rows, q_heads=16, kv_heads=8, head_dim=128, context=700, dtype=dtype))


@pytest.mark.parametrize(("id", "dtype"), CASES)
def test_the_default_is_right_at_odd_sizes(id: str, dtype: DType, target: Target, store: Store) -> None:
    template = CATALOG.get(id)
    assert faults(template, odd(template.region, dtype), defaults(template), target, store) == []


@pytest.mark.parametrize(("id", "dtype"), [(id, dtype) for id, dtype in CASES if CATALOG.get(id).params])
def test_points_drawn_from_the_space_are_right(id: str, dtype: DType, target: Target, store: Store) -> None:
    template = CATALOG.get(id)
    made = plain(template.region, dtype)
    points = list(Space(made, [template], target))
    for drawn in random.Random(zlib.crc32(f"{id} {dtype}".encode())).sample(points, min(3, len(points))):
        assert faults(template, made, drawn.params, target, store) == [], drawn.label


@pytest.mark.parametrize("id", [template.id for template in CUDA if "attention" in template.id])
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
    points = list(Space(made, [template], target))
    for drawn in random.Random(context).sample(points, min(3, len(points))):
        assert faults(template, made, drawn.params, target, store) == [], drawn.label
