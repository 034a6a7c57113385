"""Kernels for a GPU that were written from a contract pass the static gates and are compiled, without a GPU."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.build import Binary, compile, nvrtc_toolchain, resources_of
from agentcompile.ir.attempt import Written, WrittenLanguage
from agentcompile.ir.template import Template
from agentcompile.ir.trial import BuildFailed
from agentcompile.materialize import specialise
from agentcompile.refine.points import legal_points, read
from agentcompile.system.store import Store
from tests.kernels.regions_for import region_for
from tests.kernels.written_for_gpu import CUDA, TRITON
from tests.templates import emulated
from tests.templates.suite import failed
from tests.unit.fakes import linear_region, target

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("triton") or not importlib.util.find_spec("cuda"), reason="needs NVRTC and Triton"
)
INTERPRETED = """
import json
from agentcompile.refine.points import read
from tests.kernels.regions_for import region_for
from tests.kernels.written_for_gpu import TRITON
from tests.templates.interpreted import faults
made = region_for("linear", "fp32", hidden=192, rows=(17,))
print(json.dumps(faults(read(TRITON, "linear", "triton", "fp32"), made, ())))
"""
"""A program of its own: Triton reads its switch when it is imported."""


def built(made: Written, language: WrittenLanguage, dtype: str, folder: Path) -> tuple[object, tuple[object, ...]]:
    """What the builder makes of it, and what the assembler reported."""
    region = linear_region(hidden=192, rows=32, dtype=dtype)
    toolchain = nvrtc_toolchain()
    here = target(kind="cuda", device="H100", arch="sm_90a", isa=(), threads=132, toolchain=toolchain.name)
    template = read(made, "linear", language, dtype)
    assert isinstance(template, Template), template
    (params, *others), told = legal_points(template, region, here)
    assert (others, [one for one in told if one.severity == "error"]) == ([], [])
    source, store = specialise(template, region, params, here), Store(folder)
    found = compile(source, store, toolchain=toolchain, limit_s=60)
    return found, resources_of(source, store, here.toolchain)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_cuda_kernel_is_built_and_the_assembler_tells_its_registers(dtype: str, tmp_path: Path) -> None:
    found, (told,) = built(CUDA, "cuda", dtype, tmp_path)
    assert isinstance(found, Binary), found
    assert told.entry == "matvec"  # type: ignore[attr-defined]
    assert told.registers > 0  # type: ignore[attr-defined]
    assert told.shared_bytes == 4 * 128  # type: ignore[attr-defined]


def test_a_triton_kernel_is_built(tmp_path: Path) -> None:
    found, _ = built(TRITON, "triton", "bf16", tmp_path)
    assert isinstance(found, Binary), found


def test_a_cuda_text_that_does_not_compile_is_a_failed_build_with_its_line(tmp_path: Path) -> None:
    found, _ = built(
        replace(CUDA, kernel=CUDA.kernel.replace("float sum = 0;", "float sum = 0")), "cuda", "fp32", tmp_path
    )
    assert isinstance(found, BuildFailed)
    assert "kernel.cu" in found.log


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_cuda_kernel_written_from_the_contract_is_right_on_the_host(dtype: str, tmp_path: Path) -> None:
    made = region_for("linear", dtype, hidden=192, rows=(17,))  # type: ignore[arg-type]
    template = read(CUDA, "linear", "cuda", dtype)
    assert isinstance(template, Template), template
    source = specialise(template, made, (), emulated.TARGET)
    kernel = emulated.compiled(source, tmp_path)
    turns = itertools.cycle((False, True))
    assert failed(template, made, source, lambda buffers: kernel.run(buffers, backwards=next(turns))) == []
    assert not kernel.wrong


def test_a_triton_kernel_written_from_the_contract_is_right_in_the_interpreter(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        cwd=repository,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
