"""CUDA templates of a prefill, without a GPU: they compile for every architecture at every width, and spill nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcompile.build.nvrtc import Cubin, compile_cubin
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.template import Params, Template
from agentcompile.materialize import specialise
from tests.kernels.kept import cubin
from tests.templates.shapes import CHUNK_KINDS, Extents, region
from tests.templates.suite import CATALOG, FAMILIES, gpu, legal, problems

OURS = [t for t in CATALOG.templates if t.language == "cuda" and "prefill" in t.phases]
ARCHS = ("sm_80", "sm_90", "sm_90a", "sm_100")
CASES = [(t.id, arch, dtype) for t in OURS for arch in ARCHS for dtype in t.dtypes if arch in t.arch]
WIDTHS = [(64, 16), (72, 48), (256, 80), (4096, 128), (8192, 256)]
"""Of a row and of a head."""
HEADS = [(4096, 64), (4096, 128)]
"""The same of attention on tensor cores, which takes heads of no other width."""


def chunk(template: Template, dtype: DType, hidden: int = 1024, head_dim: int = 128, tokens: int = 128) -> Region:
    extents = Extents(
        hidden=hidden,
        rows=(2 * hidden, hidden // 2, hidden // 2) if template.region in FAMILIES else (3 * hidden,),
        q_heads=6,
        kv_heads=2,
        head_dim=head_dim,
        context=2 * tokens,
        dtype=dtype,
        tokens=tokens,
    )
    return region(template.region, extents)


def compiled(template: Template, made: Region, params: Params, arch: str = "sm_90a") -> Cubin:
    """The machine code of a legal point; nothing of it spills."""
    assert problems(made, template, params, gpu(arch)) == ()
    source = specialise(template, made, params, gpu(arch))
    code = cubin(source)
    assert isinstance(code, Cubin), code
    threads = {launch.entry: int(launch.block[0]) for launch in source.launches}
    for one in code.resources:
        assert one.spill_bytes == 0, f"{one.entry} spills {one.spill_bytes} bytes"
        assert one.registers * threads[one.entry] <= 65_536, one.entry
        assert one.shared_bytes <= 48 << 10, one.entry
    return code


def test_every_kind_that_only_a_prefill_has_is_served_on_cuda() -> None:
    assert {template.region for template in OURS} >= {*CHUNK_KINDS, "add"}


@pytest.mark.parametrize(("id", "arch", "dtype"), CASES)
def test_the_default_compiles_for_every_architecture(id: str, arch: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    compiled(template, chunk(template, dtype), template.defaults, arch)


@pytest.mark.parametrize(
    ("id", "hidden", "head_dim"),
    [(template.id, *width) for template in OURS for width in (HEADS if "attention" in template.region else WIDTHS)],
)
def test_the_default_compiles_at_every_width(id: str, hidden: int, head_dim: int) -> None:
    template = CATALOG.get(id)
    for dtype in template.dtypes[:1] + template.dtypes[2:]:
        compiled(template, chunk(template, dtype, hidden, head_dim), template.defaults)


@pytest.mark.parametrize("id", [template.id for template in OURS if template.params])
def test_every_point_compiles_at_the_widest_rows_it_takes(id: str) -> None:
    template = CATALOG.get(id)
    points = [
        (made, point.params)
        for hidden in (1024, 2048, 4096, 8192, 16384, 32768)
        for made in [chunk(template, "bf16", hidden, 256)]
        for point in legal(made, template, gpu("sm_90a"))
    ]
    widest = {params: made for made, params in points}
    assert len(widest) == len({params for _, params in points})
    for params, made in widest.items():
        compiled(template, made, params)


@pytest.mark.parametrize("tokens", [1, 8, 128, 2048])
def test_a_launch_covers_every_token_of_a_chunk(tokens: int) -> None:
    grids = {}
    for template in OURS:
        made = chunk(template, "bf16", tokens=tokens)
        grids[template.id] = specialise(template, made, template.defaults, gpu("sm_90a")).launches[0].grid
    appends = {grid for id, grid in grids.items() if "rope" in id}  # on its own, or before the attention
    assert appends == {(str(tokens), "1")}
    assert grids["add-rmsnorm/block"] == (str(tokens),)
    assert grids["add/flat"] == (str(-(-tokens * 3 * 1024 // 2048)),)


def test_operands_that_broadcast_do_not_compile() -> None:
    template = CATALOG.get("add/flat")
    made = chunk(template, "bf16")
    row = replace(made.port("b"), shape=(1, 1, 3072))
    short = replace(made, ports=tuple(row if port.name == "b" else port for port in made.ports))
    source = specialise(template, short, template.defaults, gpu("sm_90a"))
    failed = compile_cubin(source.text, source.flags)
    assert not isinstance(failed, Cubin)
    assert "an operand is broadcast" in failed.log
