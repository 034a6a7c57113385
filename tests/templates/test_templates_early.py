"""What a kernel asks for before it waits, in its machine code: the order of the text is not what an assembler keeps.

Loads through the read-only path have been seen to move behind the wait for the predecessor, all of them.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from agentcompile.build.nvrtc import Cubin
from agentcompile.ir.digest import digest_bytes
from agentcompile.ir.template import Template
from agentcompile.materialize import specialise
from tests.kernels.kept import cubin, remembered
from tests.templates.suite import CATALOG, EARLY_ARCHS, HOT, gpu, problems, roomy

DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
ASKS = re.compile(r"\b(LDG\.E[.\w]*\.128|UBLKCP|LDGSTS)")
WAITS, STARTS_NEXT = re.compile(r"\bACQBULK\b"), re.compile(r"\bPREEXIT\b")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
BYTES = 16
"""Of an instruction."""


def machine_code(image: bytes) -> bytes:
    """The code of a cubin's one entry."""
    (table,), (size, count, names) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HHH", image, 58)
    sections = [struct.unpack_from("<IIQQQQ", image, table + at * size) for at in range(count)]
    named = sections[names][4]
    (code,) = (
        image[begin : begin + length]
        for name, _, _, _, begin, length in sections
        if image.startswith(b".text.", named + name)
    )
    return code


def listings(templates: Sequence[Template], arch: str, folder: Path) -> list[list[str]]:
    """The instructions of each template's default, of one run of the disassembler: to start it takes longest."""
    codes = []
    for template in templates:
        made = roomy(template)
        assert problems(made, template, template.defaults, gpu(arch)) == ()
        built = cubin(specialise(template, made, template.defaults, gpu(arch)))
        assert isinstance(built, Cubin), built
        codes.append(machine_code(built.image))

    def listed() -> bytes:
        file = folder / "code"
        file.write_bytes(b"".join(codes))
        command = [DISASSEMBLER, "--binary", arch.replace("_", "").upper(), file]
        return subprocess.run(command, capture_output=True, check=True).stdout

    name = digest_bytes(f"listing/{triton.__version__}/{arch}", b"".join(codes))
    lines = dict(INSTRUCTION.findall(remembered(name, listed).decode()))
    found, at = list[list[str]](), 0
    for code in codes:
        found.append([lines[f"{place:04x}"] for place in range(at, at + len(code), BYTES)])
        at += len(code)
    assert len(lines) * BYTES == at
    return found


@pytest.mark.parametrize("arch", EARLY_ARCHS)
@pytest.mark.parametrize("kind", sorted({template.region for template in HOT}))
def test_weights_or_the_past_are_asked_for_before_the_wait(kind: str, arch: str, tmp_path: Path) -> None:
    ours = [template for template in HOT if template.region == kind]
    for template, lines in zip(ours, listings(ours, arch, tmp_path), strict=True):
        wait = next(at for at, line in enumerate(lines) if WAITS.search(line))
        start = next(at for at, line in enumerate(lines) if STARTS_NEXT.search(line))
        first = next(at for at, line in enumerate(lines) if ASKS.search(line))
        assert start < wait, template.id
        assert first < wait, f"{template.id} asks for nothing before line {wait}, first at {first}"


def test_the_disassembler_sees_a_load_that_comes_too_late(tmp_path: Path) -> None:
    """The test above on a kernel that waits first."""
    base = CATALOG.get("linear/warp-rows")
    late = tuple(
        (name, text.replace("let_successor_start();\n", "let_successor_start();\n    wait_for_inputs();\n"))
        for name, text in base.includes
    )
    assert late != base.includes
    (lines,) = listings([replace(base, includes=late)], "sm_90", tmp_path)
    wait = next(at for at, line in enumerate(lines) if WAITS.search(line))
    assert not any(ASKS.search(line) for line in lines[:wait])
