"""Kernels for a device where there is none: their process says what it lacks, and their text runs on the host."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile, nvrtc_toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.attempt import Written
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.materialize import specialise
from agentcompile.system.store import Store
from agentcompile.tasks.arena import ArenaOwner, close_all, mapped
from agentcompile.tasks.attending import build_attendants
from agentcompile.tasks.contract import facts_of, region_of
from agentcompile.tasks.inputs import cases
from agentcompile.tasks.kernel import Built, Workshop, draw_into, examine, validate
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.reading import read
from agentcompile.tasks.tally import TaskTally
from agentcompile.tasks.wire import Attach, Spoil
from tests.cpu.tasked import CEILING, LIMITS
from tests.kernels import tasks_for_gpu as kernels
from tests.templates.emulated import TARGET, compiled
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


FEW = {
    "softmax": ("ROWS, COLUMNS = 1024", "ROWS, COLUMNS = 6"),
    "rmsnorm_residual": ("TOKENS, HIDDEN, EPSILON, DTYPE = 512", "TOKENS, HIDDEN, EPSILON, DTYPE = 6"),
}
"""What makes tasks small: threads of a device are slow on a host."""


def emulated(name: str, written: Written, folder: Path) -> TaskTally:
    """What the examining process finds after launches of a kernel's text on the host."""
    path, (many, few) = folder / f"{name}.py", FEW[name]
    text = (TASKS / f"{name}.py").read_text()
    assert many in text
    path.write_text(text.replace(many, few))
    with LoadedTask(path, threads=1, seed=7, limits=LIMITS) as task:
        region = region_of(task)
        template = read(written, region, facts_of(region), "cuda")
        assert not isinstance(template, tuple), template
        kernel = compiled(specialise(template, region, (), TARGET), folder)
        sizes = {port.name: port.numel * ITEM_BYTES[port.dtype] for port in region.ports}
        owners = [ArenaOwner(sizes, "after") for _ in range(2)]
        files = tuple(owner.file for owner in owners)
        task.ask(Attach(arenas=files, scratch=(), shape=0, deterministic=True), LIMITS.check_s)
        tally = TaskTally()
        for case in cases(3, 0):
            draw_into(task, case)
            addresses = mapped(files[case.arena])
            buffers = {
                port: torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(addresses[port]), dtype=torch.uint8)
                for port, nbytes in sizes.items()
            }
            task.ask(Spoil(arena=case.arena, pattern="nan"), LIMITS.check_s)
            kernel.run(buffers, backwards=bool(case.arena))
            examine(task, case.arena, tally)
        close_all(owners)
    assert not kernel.wrong
    return tally


@pytest.mark.parametrize(
    ("name", "written"), [("softmax", kernels.softmax()), ("rmsnorm_residual", kernels.rmsnorm())], ids=tuple(FEW)
)
def test_the_text_of_a_right_kernel_for_a_device_computes_its_task(name: str, written: Written, tmp_path: Path) -> None:
    tally = emulated(name, written, tmp_path)
    assert tally.ok, tally.checks


@pytest.mark.parametrize("how", ["at large inputs alone", "writes before its output", "writes into its input"])
def test_the_text_of_a_wrong_kernel_for_a_device_fails_the_check_that_is_meant(how: str, tmp_path: Path) -> None:
    wrong = kernels.WRONG[how]
    tally = emulated("softmax", wrong.written, tmp_path)
    assert {check.name for check in tally.checks.values() if not check.ok} & wrong.checks, tally.checks
