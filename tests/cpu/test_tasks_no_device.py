"""The process of a kernel for a device, on a machine that has none: it is asked, and says what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile, nvrtc_toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.materialize import specialise
from agentcompile.system.store import Store
from agentcompile.tasks.attending import build_attendants
from agentcompile.tasks.contract import facts_of, region_of
from agentcompile.tasks.kernel import Built, Workshop, validate
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.reading import read
from tests.cpu.tasked import CEILING, LIMITS
from tests.kernels import tasks_for_gpu as kernels
from tests.unit.fakes import target
from tests.unit.task_files import TASKS

H100 = target(kind="cuda", device="H100", arch="sm_90a", isa=(), threads=132, toolchain="nvrtc 13.0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
@pytest.mark.parametrize("fenced", [True, False])
def test_a_device_that_cannot_be_used_is_the_machine_s_fault_and_not_the_kernel_s(tmp_path: Path, fenced: bool) -> None:
    store = Store(tmp_path / "store")
    shop = Workshop(
        target=H100,
        toolchain=nvrtc_toolchain(),
        store=store,
        executor=None,
        ceiling=CEILING,
        attendants=build_attendants(store, nvrtc_toolchain(), H100),
        fenced=fenced,
        device="cuda:0",
    )
    with LoadedTask(TASKS / "softmax.py", threads=1, seed=7, limits=LIMITS) as task:
        region = region_of(task)
        template = read(kernels.softmax(), region, facts_of(region), "cuda")
        assert not isinstance(template, tuple), template
        source = specialise(template, region, (), H100)
        binary = compile(source, store, toolchain=shop.toolchain, limit_s=60.0, fenced=fenced)
        assert isinstance(binary, Binary), binary
        built = Built(template=template, region=region, source=source, binary=Path(binary.path).resolve(), shape=0)
        with pytest.raises(AgentCompileError, match="cuda:0 cannot be used") as caught:
            validate(task, built, shop, seed=1)
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
