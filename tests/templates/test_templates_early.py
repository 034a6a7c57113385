"""What a kernel asks for before it waits, in its machine code: the order of the text is not what an assembler keeps.

Loads through the read-only path have been seen to move behind the wait for the predecessor, all of them.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from agentcompile.build.nvrtc import Cubin
from agentcompile.ir.digest import digest_bytes
from agentcompile.ir.graph import DType
from agentcompile.ir.template import Template
from agentcompile.materialize import specialise
from agentcompile.regions.kinds import hot_kinds
from tests.kernels.kept import cubin, remembered
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, FAMILIES, gpu, problems

DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
ASKS = re.compile(r"\b(LDG\.E[.\w]*\.128|UBLKCP|LDGSTS)")
WAITS, STARTS_NEXT = re.compile(r"\bACQBULK\b"), re.compile(r"\bPREEXIT\b")
HOT = [
    template
    for template in CATALOG.templates
    if template.language == "cuda" and template.region in hot_kinds() and "sm_90" in template.arch
]


def code(template: Template, arch: str, folder: Path) -> list[str]:
    dtype: DType = "bf16" if "bf16" in template.dtypes else "fp16"
    rows = (2048, 1024, 1024) if template.region in FAMILIES else (4096,)
    extents = Extents(
        hidden=2048,
        rows=rows,
        q_heads=16,
        kv_heads=8,
        head_dim=128,
        context=1024,
        dtype=dtype,
        batch=template.tokens[0],
    )
    made = region(template.region, extents)
    assert problems(made, template, template.defaults, gpu(arch)) == ()
    source = specialise(template, made, template.defaults, gpu(arch))
    built = cubin(source)
    assert isinstance(built, Cubin), built

    def listing() -> bytes:
        file = folder / "kernel.cubin"
        file.write_bytes(built.image)
        return subprocess.run([DISASSEMBLER, "-c", "--no-dataflow", file], capture_output=True, check=True).stdout

    name = digest_bytes(f"listing/{triton.__version__}", built.image)
    return remembered(name, listing).decode().splitlines()


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize(("id", "dtype"), [(template.id, template.dtypes[0]) for template in HOT])
def test_weights_or_the_past_are_asked_for_before_the_wait(id: str, dtype: DType, arch: str, tmp_path: Path) -> None:
    lines = code(CATALOG.get(id, dtype), arch, tmp_path)
    wait = next(at for at, line in enumerate(lines) if WAITS.search(line))
    start = next(at for at, line in enumerate(lines) if STARTS_NEXT.search(line))
    first = next(at for at, line in enumerate(lines) if ASKS.search(line))
    assert start < wait
    assert first < wait, f"nothing is asked for before line {wait}, the first load stands at {first}"


def test_the_disassembler_sees_a_load_that_comes_too_late(tmp_path: Path) -> None:
    """The test above on a kernel that waits first."""
    base = CATALOG.get("linear/warp-rows")
    late = tuple(
        (name, text.replace("let_successor_start();\n", "let_successor_start();\n    wait_for_inputs();\n"))
        for name, text in base.includes
    )
    assert late != base.includes
    lines = code(replace(base, includes=late), "sm_90", tmp_path)
    wait = next(at for at, line in enumerate(lines) if WAITS.search(line))
    assert not any(ASKS.search(line) for line in lines[:wait])
