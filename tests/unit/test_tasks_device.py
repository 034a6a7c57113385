"""Tasks on a device, as far as no device is needed: contracts, builds, copies of arenas, batches, tolerances."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentcompile import check
from agentcompile.build import Binary, compile, nvrtc_toolchain
from agentcompile.catalog import default_root
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.attempt import Times, Written, WrittenLanguage
from agentcompile.ir.digest import Json, canonical
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.template import Template
from agentcompile.ir.trial import BuildFailed
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import fits
from agentcompile.system.store import Store
from agentcompile.tasks.attending import build_attendants
from agentcompile.tasks.comparing import Expected, compare
from agentcompile.tasks.contract import contract_of, facts_of, region_of
from agentcompile.tasks.loading import LoadedModel, TaskFault, moved
from agentcompile.tasks.reading import read
from agentcompile.tasks.signing import _signature, wide
from agentcompile.tasks.tally import TaskTally
from agentcompile.tasks.wire import Loaded
from tests.kernels import tasks_for_gpu as kernels
from tests.unit.fakes import target
from tests.unit.task_files import FILES, TASKS

H100 = target(
    kind="cuda", device="H100", arch="sm_90a", isa=(), threads=132, cache_bytes=(228 << 10, 50 << 20),
    line_bytes=128, toolchain="nvrtc 13.0",
)  # fmt: skip
CEILING = Ceiling(dram_bytes_per_s=3e12, cache_bytes_per_s=6e12, flops_per_s=800e12)
TIMES = Times(reference_ns=9e3, incumbent_ns=7e3)
BASELINE: Json = {"fastest": "pytorch", "us": {"pytorch": 9.0}}


@dataclass
class Task:
    """A task as its contract sees it, without a process."""

    told: Loaded
    path: Path

    @property
    def kind(self) -> str:
        return f"task-{self.path.stem.replace('_', '-')}"


def task(path: Path) -> Task:
    """A task of one shape."""
    loaded = LoadedModel(path, 3)
    inputs = loaded.inputs(3)
    signature = _signature(loaded, inputs, loaded.run(inputs), loaded.inputs(4))
    told = Loaded(text=path.read_text(), signatures=(signature,), flops=0, touched_bytes=1 << 20, wide=True, tf32=True)
    return Task(told, path)


def interface(one: Task, language: WrittenLanguage = "cuda", here: Target = H100) -> dict[str, Any]:
    found = contract_of(one, language, here, CEILING, TIMES, BASELINE).interface  # type: ignore[arg-type] # what it reads
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def softmax() -> Task:
    return task(TASKS / "softmax.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_task_runs_where_its_model_is_moved_and_mixes_no_devices(path: Path) -> None:
    loaded = LoadedModel(path, 3, "meta")  # as another device does, it takes part in nothing with a tensor of the host
    inputs = loaded.inputs(3)
    made = [*loaded.run(inputs), *wide(loaded, inputs), *loaded.base]
    assert {one.device.type for one in made} == {"meta"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_task_has_a_contract_for_a_device_whose_skeletons_build(path: Path, tmp_path: Path) -> None:
    one = task(path)
    for language in ("cuda", "triton"):
        found = interface(one, language)
        assert found["manifest"]["example"].count('grid = ["threads"]') == 1
        json.loads(canonical(found))
        if language == "cuda":
            made = built(
                one, Written(manifest=found["manifest"]["example"], kernel=found["launch"]["skeleton"]), tmp_path
            )
            assert isinstance(made, Binary), made


def built(one: Task, written: Written, folder: Path, language: WrittenLanguage = "cuda") -> Binary | BuildFailed:
    """A kernel for a task, through the gates up to its binary."""
    region = region_of(one)  # type: ignore[arg-type] # what it reads
    template = read(written, region, facts_of(region), language)
    assert isinstance(template, Template), template
    assert not check.errors(check.check(region, template, (), H100, layout_fits=fits))
    source = specialise(template, region, (), H100)
    made = compile(source, Store(folder / "store"), toolchain=nvrtc_toolchain(), limit_s=60.0)
    assert isinstance(made, (Binary, BuildFailed)), made
    return made


def test_a_contract_for_a_device_says_how_a_launch_is_made_and_timed(softmax: Task) -> None:
    found = interface(softmax)
    assert found["launch"]["entry"].startswith('extern "C" __global__ void kernel_main(const __grid_constant__')
    assert {"grid", "block", "shared_bytes", "pdl"} <= found["manifest"]["launch_keys"].keys()
    assert found["launch"]["limits"]["shared_bytes_a_block"] == 227 << 10
    assert found["machine"]["shared_bytes_a_block"] == 227 << 10
    assert (found["machine"]["device"], found["machine"]["threads"]) == ("H100", 132)
    assert "`threads` are multiprocessors" in found["names"]["about"]
    assert "CUDA graph" in found["timing"]["about"]
    assert "TF32" in found["timing"]["about"]
    assert "with as many threads" not in found["timing"]["about"]
    assert "tf32" in found["tolerance"]


def test_a_contract_for_a_cpu_says_nothing_of_devices(softmax: Task) -> None:
    told = replace(softmax.told, tf32=False)
    found = interface(Task(told, softmax.path), "cpp", target())
    assert "`threads` are worker threads" in found["names"]["about"]
    assert found["timing"]["about"].startswith("launches back to back in one process, after a warm-up. They walk")
    assert "fastest form, with as many threads, alternate with them" in found["timing"]["about"]
    assert "tf32" not in canonical(found["tolerance"]).decode()


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_kernels_for_a_device_are_refused_on_a_cpu_and_those_in_cpp_on_a_device(
    softmax: Task, language: WrittenLanguage
) -> None:
    for spoken, here in ((language, target()), ("cpp", H100)):
        with pytest.raises(AgentCompileError, match="do not run on") as caught:
            interface(softmax, spoken, here)
        assert caught.value.exit_code is ExitCode.USAGE


def test_kernels_of_the_tests_on_a_device_build(softmax: Task, tmp_path: Path) -> None:
    rmsnorm = task(TASKS / "rmsnorm_residual.py")
    for one, written in (
        (softmax, kernels.softmax()),
        (rmsnorm, kernels.rmsnorm()),
        (softmax, kernels.HANGS),
        (softmax, kernels.FAULTS),
        *((softmax, wrong.written) for wrong in kernels.WRONG.values()),
    ):
        made = built(one, written, tmp_path)
        assert isinstance(made, Binary), made
    made = built(softmax, kernels.softmax(kernels.TRITON_SOFTMAX, language="triton"), tmp_path, "triton")
    assert isinstance(made, Binary), made
    kept = built(softmax, kernels.STATE, tmp_path)
    assert isinstance(kept, BuildFailed)
    assert "kept" in kept.log


def test_our_own_kernel_for_a_device_builds(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert build_attendants(store, nvrtc_toolchain(), H100).read_bytes().startswith(b"\x7fELF")


def test_no_text_of_a_kernel_for_a_device_is_in_a_contract(softmax: Task) -> None:
    told = canonical(interface(softmax)).decode()
    lines = [line.strip() for path in default_root().rglob("*.cu*") for line in path.read_text().splitlines()]
    assert not [line for line in lines if len(line) > 30 and line in told]


CALLED = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.cuda() * 2


def get_inputs():
    return [torch.randn(4, 8)]
"""


def test_a_task_that_names_a_gpu_is_refused_on_a_cpu_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "called.py"
    path.write_text(CALLED)
    loaded = LoadedModel(path, 0)
    with pytest.raises(TaskFault) as caught:
        loaded.run(loaded.inputs(0))
    assert "it needs a GPU, and the target is the CPU" in caught.value.error
    assert "--target cuda:0" in caught.value.hint


def test_a_model_is_moved_with_its_plain_tensors_and_what_is_shared_stays_shared() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.layer.register_buffer("shift", torch.ones(3))
            self.same, self.plain = self.layer.shift, torch.ones(2)

    model = moved(Model(), torch.device("meta"))
    held = vars(model)
    assert {held["same"].device, held["plain"].device, model.layer.weight.device} == {torch.device("meta")}
    assert held["same"] is model.layer.shift


def told(y: torch.Tensor, reference: torch.Tensor, fast: torch.Tensor | None, dtype: str = "fp32") -> TaskTally:
    own = (reference * (1 + 2.0**-24)).to(torch.float32)
    tally = TaskTally()
    compare(tally, y, Expected(name="out0", dtype=dtype, reference=reference, own=own, moved=(), fast=fast), "inputs 1")
    return tally


def test_products_in_tf32_pass_where_pytorch_is_timed_with_it_and_nowhere_else() -> None:
    generator = torch.Generator().manual_seed(2)
    left, right = (torch.randn(64, 64, generator=generator, dtype=torch.float64) for _ in range(2))

    def rounded(tensor: torch.Tensor, bits: int) -> torch.Tensor:
        mantissa, exponent = torch.frexp(tensor)
        return torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent)

    reference = left @ right
    tf32 = (rounded(left, 11) @ rounded(right, 11)).float()
    bf16 = (rounded(left, 8) @ rounded(right, 8)).float()
    assert told(tf32, reference, tf32).ok
    assert not told(tf32, reference, None).ok
    assert not told(bf16, reference, tf32).ok
    assert not told(tf32, reference, reference.float()).ok, "nothing is allowed where TF32 changes nothing"
