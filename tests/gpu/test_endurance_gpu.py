"""As many launches as a long generation makes, on a device: all are made, and a kernel that fails late is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.build.toolchain import Toolchain
from agentcompile.ir.trial import NumericReport
from agentcompile.runtime.driver import Module
from agentcompile.system.probe import probe_cuda
from agentcompile.system.store import Store
from agentcompile.validate import DeclaredArithmetic, validate
from agentcompile.validate.endurance import GENERATION, missing_launches
from agentcompile.worker.gpu_launch import device_binder, device_runner
from agentcompile.worker.gpu_looping import device_looper
from agentcompile.worker.housing import house
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, build

pytestmark = pytest.mark.gpu

STATEFUL = Toolchain(compiler="nvrtc", name="nvrtc", keeps_state=True)
LATE = "    if (blockIdx.x == 0 && threadIdx.x == 0 && atomicAdd(&made, 1u) >= 3000) a.y[0].bits ^= 1;\n}\n"


def validated(tmp_path: Path, *, late: bool) -> NumericReport:
    target, template = probe_cuda("cuda:0", toolchain="nvrtc"), CATALOG.get("add/flat", "bf16")
    if late:
        head, entry = template.source.split('extern "C"')
        text = f'{head}__device__ unsigned made;\n\nextern "C"{entry.rstrip().removesuffix("}")}{LATE}'
        template = replace(template, source=text)
    made = region("add", Extents(rows=(2048,)))
    source, binary = build(template, made, template.defaults, target, Store(tmp_path), STATEFUL)
    kernel = source, made, Module(Path(binary.path)), target.arch
    with torch.device("cuda"):
        return validate(
            made,
            DeclaredArithmetic(workspaces=source.workspaces),
            device_runner(*kernel),
            seed=3,
            repeats=2,
            depth="search",
            house=house("cuda"),
            launches=GENERATION,
            loop=device_looper(device_binder(*kernel), torch.cuda.synchronize),
        )


def test_a_right_kernel_makes_all_launches(tmp_path: Path) -> None:
    report = validated(tmp_path, late=False)
    assert report.ok
    assert missing_launches(report) == 0


def test_a_kernel_that_is_wrong_after_three_thousand_launches_is_found(tmp_path: Path) -> None:
    report = validated(tmp_path, late=True)
    assert "endurance" in [check.name for check in report.checks if not check.ok]
