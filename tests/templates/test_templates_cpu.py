"""Every CPU template of a decode step: it compiles for this host and for less, and is right at edge sizes."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile_executor, find_toolchain
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Source, Template
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import hot_kinds
from agentcompile.runtime.native import Executor
from agentcompile.space import Space
from agentcompile.system.probe import probe
from agentcompile.system.store import Store
from agentcompile.worker.launch import runner
from agentcompile.worker.protocol import Implementation
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, FAMILIES, build, failed, odd

HERE = [
    t
    for t in CATALOG.templates
    if "decode" in t.phases and (t.language == "cpp" or (t.language == "library" and not t.arch))
]
CASES = [(template.id, dtype) for template in HERE for dtype in template.dtypes]
HOT = [(id, dtype) for id, dtype in CASES if CATALOG.get(id, dtype).region in hot_kinds()]
COMPILED = [(id, dtype) for id, dtype in HOT if CATALOG.get(id, dtype).language == "cpp"]
ODD = (97, 22)
"""A width and a head that no vector divides."""


class Bench:
    """This host's toolchain, executor and a store of binaries for one test session."""

    def __init__(self, root: Path) -> None:
        self.store, self.toolchain = Store(root), find_toolchain()
        self.target = probe(toolchain=self.toolchain.name, threads=2)
        self._executor_path = compile_executor(self.store, toolchain=self.toolchain)

    def source(self, template: Template, made: Region, params: Params, target: Target) -> tuple[Source, Binary]:
        return build(template, made, params, target, self.store, self.toolchain)

    def faults(self, template: Template, made: Region, params: Params, target: Target | None = None) -> list[str]:
        """Failed checks of the correctness suite, as text."""
        source, binary = self.source(template, made, params, target or self.target)
        implementation = Implementation(
            label=template.id,
            source=source,
            binary=binary,
            rounds=template.rounds,
            accumulation=template.accumulation,
            deterministic=template.deterministic,
            layouts=template.layouts,
        )
        run = runner(implementation, made, Executor(self._executor_path, 2))
        return failed(template, made, source, run)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("store"))


def plain(kind: str, dtype: DType) -> Region:
    rows = (96, 64, 32) if kind in FAMILIES else (176,)
    return region(kind, Extents(hidden=256, rows=rows, head_dim=64, context=150, dtype=dtype))


@pytest.mark.parametrize(("id", "dtype"), CASES)
def test_the_default_is_right_where_nothing_divides(bench: Bench, id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    assert bench.faults(template, odd(template.region, dtype, *ODD), template.defaults) == []


@pytest.mark.parametrize(("id", "dtype"), HOT)
def test_a_point_drawn_from_the_space_is_right(bench: Bench, id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    made = plain(template.region, dtype)
    points = list(Space(made, [template], bench.target))
    drawn = random.Random(zlib.crc32(f"{id} {dtype}".encode())).choice(points)
    assert bench.faults(template, made, drawn.params) == [], drawn.label


LESSER = [
    (id, dtype, ("avx2", "none")[(at + place) % 2])
    for at, id in enumerate(dict.fromkeys(id for id, _ in COMPILED))
    for place, dtype in enumerate(dtype for other, dtype in COMPILED if other == id)
]
"""Each template with either; the next one of them with the dtypes the other way round."""


@pytest.mark.parametrize(("id", "dtype", "isa"), LESSER)
def test_it_is_right_with_fewer_instructions_than_the_host_has(bench: Bench, id: str, dtype: DType, isa: str) -> None:
    template = CATALOG.get(id, dtype)
    fewer = {"avx2": tuple(name for name in bench.target.isa if not name.startswith(("avx512", "amx"))), "none": ()}
    lesser = Target(
        kind="cpu",
        device="less",
        arch=bench.target.arch,
        isa=fewer[isa],
        threads=2,
        cache_bytes=bench.target.cache_bytes,
    )
    made = odd(template.region, dtype, *ODD) if isa == "none" else plain(template.region, dtype)
    assert bench.faults(template, made, template.defaults, lesser) == []


ATTENTION = [id for id, dtype in CASES if "attention" in id and dtype == "bf16"]


@pytest.mark.parametrize("id", ATTENTION)
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim", "context"),
    [(8, 1, 128, 300), (4, 4, 80, 65), (2, 1, 256, 64), (6, 2, 64, 1)],
)
def test_attention_is_right_for_every_group_and_width(
    bench: Bench, id: str, q_heads: int, kv_heads: int, head_dim: int, context: int
) -> None:
    template = CATALOG.get(id, "bf16")
    extents = Extents(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, context=context)
    assert bench.faults(template, region(template.region, extents), template.defaults) == []


@pytest.mark.parametrize("id", [id for id, dtype in COMPILED if id.startswith("linear-argmax/") and dtype == "bf16"])
@pytest.mark.parametrize(
    ("values", "wanted"), [((0.0, 2.0, 2.0, 1.0), 1), ((1.0, float("nan"), 9.0), 1), ((-0.0, 0.0), 0)]
)
def test_argmax_takes_the_first_of_equals_and_a_nan_before_all(
    bench: Bench, id: str, values: tuple[float, ...], wanted: int
) -> None:
    template = CATALOG.get(id, "bf16")
    made = region("linear-argmax", Extents(hidden=2, rows=(40,)))
    source, binary = bench.source(template, made, template.defaults, bench.target)
    weights = torch.full((40, 2), -8.0)
    weights[7 : 7 + len(values), 0], weights[7 : 7 + len(values), 1] = torch.tensor(values), 0.0
    layout = LAYOUTS[template.layout("w")]
    buffers = {
        "x": torch.tensor([1.0, 1.0], dtype=torch.bfloat16),
        "w": layout.pack(weights.bfloat16()),
        "logits": torch.zeros(40, dtype=torch.bfloat16),
        "token": torch.full((1,), -1),
    }
    buffers |= {name: torch.zeros(count, dtype=torch.int64) for name, _, count, _ in source.workspaces}
    implementation = Implementation(
        label=id, source=source, binary=binary, rounds=(), accumulation="float32", deterministic=True, layouts=()
    )
    executor = Executor(compile_executor(bench.store, toolchain=bench.toolchain), 2)
    runner(implementation, made, executor)(buffers)
    assert buffers["token"].item() == 7 + wanted
