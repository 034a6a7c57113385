"""Every CUDA template over the glob, without a GPU: it compiles for every architecture it names, within its limits."""

from __future__ import annotations

import random
import zlib

import pytest

from agentcompile.build.nvrtc import Cubin, compile_cubin, nearest
from agentcompile.build.stateless import state_of_cubin
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.target import most_shared_bytes
from agentcompile.ir.template import Params, Source, Template
from agentcompile.materialize import specialise
from tests.kernels.kept import cubin
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, EARLY_ARCHS, FAMILIES, HOT, chunk_of, gpu, legal, problems, roomy

CUDA = [template for template in CATALOG.templates if template.language == "cuda"]
ARCHS = ("sm_80", "sm_90", "sm_90a", "sm_100")
MOST = "sm_90a"
"""The architecture for which every dtype is compiled, and for the most sequences too."""
CASES = [
    (t.id, arch, dtype, batch)
    for t in CUDA
    for arch in ARCHS
    for dtype in (t.dtypes if arch == MOST or MOST not in t.arch else t.dtypes[:1])
    for batch in (t.tokens[:1] if arch != MOST or dtype != t.dtypes[-1] else sorted(set(t.tokens)))
    if arch in t.arch
]
"""Every architecture, every dtype, the fewest and the most sequences."""
SPILLING = {("gateup-silu-mul/thin-rows-fma", "sm_100"), ("rmsnorm-gateup-silu-mul/thin-rows-fma", "sm_100")}
"""Defaults that spill some 100 bytes at a model's width there; nobody has timed them on such a device."""
ROOMY = {
    (template.id, arch, template.dtypes[0], template.tokens[0])
    for template in HOT
    for arch in EARLY_ARCHS
    if (template.id, arch) not in SPILLING
}
"""Those whose machine code `test_templates_early` reads: the same is compiled here, once for both."""
REGISTERS = 65_536
"""Of a multiprocessor."""


def shape(template: Template, dtype: DType, batch: int = 0) -> Region:
    """For `batch` sequences; 0: the most that the template serves."""
    rows = (128, 64, 64) if template.region in FAMILIES else (192,)
    batch = batch or template.tokens[1]
    extents = Extents(dtype=dtype, hidden=256, rows=rows, head_dim=64, batch=batch, tokens=chunk_of(template, most=300))
    return region(template.region, extents)


def built(template: Template, made: Region, params: Params, arch: str) -> tuple[Source, Cubin]:
    assert problems(made, template, params, gpu(arch)) == ()
    source = specialise(template, made, params, gpu(arch))
    assert source.text == specialise(template, made, params, gpu(arch)).text
    code = cubin(source)
    assert isinstance(code, Cubin), code
    assert state_of_cubin(code.image, source.text) == ()
    return source, code


def within_limits(source: Source, code: Cubin, arch: str) -> None:
    found = {one.entry: one for one in code.resources}
    for launch in source.launches:
        one, threads = found[launch.entry], 1
        for extent in launch.block:
            threads *= int(extent)
        assert one.registers * threads <= REGISTERS, launch.entry
        assert one.shared_bytes <= 48 << 10, launch.entry
        assert one.shared_bytes + int(launch.shared_bytes) <= most_shared_bytes(arch), launch.entry
        assert one.spill_bytes == 0, f"{launch.entry} spills {one.spill_bytes} bytes"


@pytest.mark.parametrize(("id", "arch", "dtype", "batch"), CASES)
def test_the_default_compiles_for_every_architecture(id: str, arch: str, dtype: DType, batch: int) -> None:
    template = CATALOG.get(id, dtype)
    made = roomy(template) if (id, arch, dtype, batch) in ROOMY else shape(template, dtype, batch)
    source, code = built(template, made, template.defaults, arch)
    assert code.image[:4] == b"\x7fELF"
    within_limits(source, code, arch)


@pytest.mark.parametrize(("id", "dtype"), [(template.id, template.dtypes[0]) for template in CUDA if template.params])
def test_points_drawn_from_the_space_compile_and_fit(id: str, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    made = shape(template, dtype)
    points = legal(made, template, gpu("sm_90a"))
    assert points
    for point in random.Random(zlib.crc32(id.encode())).sample(points, min(2, len(points))):
        source, code = built(template, made, point.params, "sm_90a")
        within_limits(source, code, "sm_90a")


def test_a_kernel_that_does_not_compile_is_a_value_with_a_log() -> None:
    failed = compile_cubin('extern "C" __global__ void f() { undeclared(); }', ("--gpu-architecture=sm_90",))
    assert not isinstance(failed, Cubin)
    assert "undeclared" in failed.log


def test_machine_code_is_the_same_bytes_twice() -> None:
    template = CUDA[0]
    source = specialise(template, shape(template, "bf16"), template.defaults, gpu("sm_90"))
    first, second = (compile_cubin(source.text, source.flags) for _ in range(2))
    assert isinstance(first, Cubin)
    assert first == second == cubin(source)


@pytest.mark.parametrize(
    ("arch", "supported", "expected"),
    [
        ("sm_90a", (80, 90, 100), "sm_90a"),
        ("sm_150", (80, 90, 100), "compute_100"),
        ("sm_95", (80, 90, 100), "compute_90"),
        ("sm_30", (80, 90, 100), "sm_30"),
    ],
)
def test_an_architecture_that_the_compiler_does_not_know_takes_the_newest_below_it(
    arch: str, supported: tuple[int, ...], expected: str
) -> None:
    assert nearest(arch, supported) == expected


def test_a_device_newer_than_the_compiler_gets_code_that_its_driver_compiles() -> None:
    template = CATALOG.get("silu-mul/flat")
    made = shape(template, "bf16")
    source = specialise(template, made, template.defaults, gpu("sm_999"))
    compiled = compile_cubin(source.text, source.flags)
    assert isinstance(compiled, Cubin), compiled
    assert b".target sm_" in compiled.image
    assert source.launches[0].entry.encode() in compiled.image
