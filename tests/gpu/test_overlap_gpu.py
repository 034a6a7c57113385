"""Launches of a step overlap: a kernel that reads its inputs before it has waited for them is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile
from agentcompile.build.toolchain import Toolchain
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Source, Template
from agentcompile.materialize import specialise
from agentcompile.runtime.device_step import overlaps_launches
from agentcompile.runtime.driver import Module
from agentcompile.system.probe import probe_cuda
from agentcompile.system.store import Store
from agentcompile.worker.gpu_launch import device_runner
from agentcompile.worker.housing import house
from agentcompile.worker.late import Predecessor
from agentcompile.worker.protocol import Setup
from tests.templates.suite import CATALOG, chunk_of, failed, odd, problems

pytestmark = pytest.mark.gpu

WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
NVRTC = Toolchain(compiler="nvrtc", name="nvrtc")
WAITING = [
    template
    for template in CATALOG.templates
    if template.language == "cuda" and any(one.pdl for one in template.launches)
]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    target = probe_cuda("cuda:0", toolchain="nvrtc")
    if not overlaps_launches(target.arch):
        pytest.skip("this device has no programmatic dependent launch")
    store = str(tmp_path_factory.mktemp("store"))
    return Setup(target=target, store=store, toolchain=NVRTC, memory_bytes=0, torch_threads=1, device="cuda:0")


def small(template: Template, target: Target) -> Region:
    """A region that the template's default may serve."""
    dtype, batch, tokens = template.dtypes[0], min(template.tokens or (1,)), chunk_of(template)
    sizes = {"hidden": 104, "batch": batch, "tokens": tokens}
    regions = [odd(template.region, dtype, head_dim=size, **sizes) for size in (24, 48, 64, 128)]
    return next(made for made in regions if not problems(made, template, template.defaults, target))


def faults(template: Template, made: Region, source: Source, setup: Setup) -> list[str]:
    binary = compile(source, Store(Path(setup.store)), toolchain=NVRTC, limit_s=60)
    assert isinstance(binary, Binary), binary
    module = Module(Path(binary.path))
    late = Predecessor(setup).before(source, made, module)
    with torch.device("cuda"):
        run = device_runner(source, made, module, setup.target.arch)
        return failed(template, made, source, run, house=house("cuda"), late=late)


@pytest.mark.parametrize("template", WAITING, ids=lambda template: template.id)
def test_who_does_not_wait_for_its_inputs_is_refused(template: Template, setup: Setup) -> None:
    made = small(template, setup.target)
    right = specialise(template, made, template.defaults, setup.target)
    assert faults(template, made, right, setup) == []
    assert WAIT in right.text
    wrong = replace(right, text=right.text.replace(WAIT, ""))
    found = {one.partition(":")[0] for one in faults(template, made, wrong, setup)}
    # The second of two launches reads what the first has not written yet, behind whatever kernel they come.
    assert found == {"overlap"} if len(right.launches) == 1 else found
