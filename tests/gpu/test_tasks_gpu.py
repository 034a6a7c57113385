"""The gates for tasks on a device: kernels that are right are measured beside PyTorch, and wrong ones are refused.

What ends a process, and above all the kernel that never ends, comes last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Evaluated, Written, WrittenLanguage
from agentcompile.ir.template import Template
from agentcompile.ir.trial import Crashed, Incorrect, Measured, NumericReport, TimedOut
from agentcompile.options import Options
from agentcompile.sandbox import methods
from agentcompile.tasks.contract import facts_of, region_of
from agentcompile.tasks.kernel import Built, Death, running, validate
from agentcompile.tasks.load import LoadedTask, TaskLimits
from agentcompile.tasks.open import OpenedTask, opened_task
from agentcompile.tasks.reading import read
from agentcompile.tasks.timing import COMPILED, EAGER, baselines
from tests.kernels import tasks_for_gpu as kernels
from tests.unit.task_files import TASKS

pytestmark = pytest.mark.gpu
LIMITS = TaskLimits(launch_s=4.0)
FENCED = all(method.works for method in methods() if method.needed)
"""Where nothing can be confined, everything else is tested all the same."""


@contextmanager
def opened(
    home: Path, path: Path, language: WrittenLanguage = "cuda", compiled: tuple[str, ...] = ()
) -> Iterator[OpenedTask]:
    options = Options(home=str(home), target="cuda:0")
    with opened_task(
        options, path, language=language, limits=LIMITS, compiled=compiled, confirms=False, fenced=FENCED
    ) as found:
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def softmax(home: Path) -> Iterator[OpenedTask]:
    with opened(home, TASKS / "softmax.py") as made:
        yield made


def built(made: OpenedTask, written: Written) -> Built:
    region, evaluator = region_of(made.task), made.evaluator
    template = read(written, region, facts_of(region), made.contract.language)
    assert isinstance(template, Template), template
    found = evaluator._built(template, (), 0)
    assert isinstance(found, Built), found
    return found


def checked(made: OpenedTask, written: Written) -> NumericReport | Death:
    """What the checks say of a kernel, without its time."""
    return validate(made.task, built(made, written), made.evaluator._shop, seed=5)


def failed(report: object) -> set[str]:
    found = report.report if isinstance(report, Incorrect) else report
    assert isinstance(found, NumericReport), found
    return {check.name for check in found.checks if not check.ok}


def measured(evaluated: Evaluated) -> dict[str, Any]:
    assert isinstance(evaluated.verdict, Measured), evaluated
    assert 0 < evaluated.ns < math.inf
    found = evaluated.feedback
    assert isinstance(found, dict)
    print(found["us"], "µs", found["beside_incumbent"], "floor", found["floor_us"])
    passed = found["passed_checks"]
    assert {"element", "error ratio", "inputs", "memory", "repeats"} <= set(passed), evaluated
    return found


def test_a_right_kernel_is_measured_beside_pytorch(softmax: OpenedTask) -> None:
    evaluated = softmax.evaluator.evaluate(kernels.softmax())
    found = measured(evaluated)
    assert found["beside_incumbent"]["incumbent"] == EAGER
    assert 0.2 < found["beside_incumbent"]["speedup"] < 20, found
    assert found["resources"], found
    assert isinstance(evaluated.verdict, Measured)
    assert evaluated.verdict.report.cases >= 7


def test_a_kernel_in_bfloat16_with_a_parameter_is_measured(home: Path) -> None:
    with opened(home, TASKS / "rmsnorm_residual.py") as made:
        measured(made.evaluator.evaluate(kernels.rmsnorm()))


def test_a_kernel_in_triton_passes_the_same_checks(home: Path) -> None:
    with opened(home, TASKS / "softmax.py", "triton") as made:
        report = checked(made, kernels.softmax(kernels.TRITON_SOFTMAX, language="triton"))
    assert not failed(report), report


def test_every_form_of_pytorch_is_timed_as_a_graph(home: Path) -> None:
    with LoadedTask(TASKS / "softmax.py", threads=1, seed=7, limits=LIMITS, device="cuda:0") as task:
        found = baselines(task, residency="cache", seed=1, compiled=COMPILED)
    print(found)
    assert set(found.us) == {EAGER, *COMPILED}, found
    assert not found.notes
    assert all(0.5 < us < 100 for us in found.us.values()), found


WAITS = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * x.abs().max().item()


def get_inputs():
    return [torch.randn(64, 64)]
"""


def test_a_model_that_waits_in_its_middle_is_launched_call_by_call(tmp_path: Path) -> None:
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    with LoadedTask(path, threads=1, seed=7, limits=LIMITS, device="cuda:0") as task:
        found = baselines(task, residency="cache", seed=1, compiled=())
    assert "one by one" in found.notes[EAGER], found
    assert found.us[EAGER] > 5, found


PLACED = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(50, device="cuda"))
        self.shift = torch.ones(50)

    def forward(self, x):
        return torch.relu(x) * self.weight + torch.zeros(50, device="cuda") + self.shift


def get_inputs():
    return [torch.randn(6, 50).cuda()]
"""
PLACED_KERNEL = """\
extern "C" __global__ void kernel_main(const __grid_constant__ kernel_main_args a) {
    const long row = blockIdx.x, i = threadIdx.x;
    if (i < in0_d1) a.out0[row * in0_d1 + i] = fmaxf(a.in0[row * in0_d1 + i], 0.0f) * a.weight[i] + a.shift[i];
}
"""


def test_a_task_that_names_the_device_itself_is_evaluated_there(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "placed.py"
    path.write_text(PLACED)
    manifest = kernels.manifest("placed", ("in0", "weight", "shift", "out0"), "fp32")
    with opened(home, path) as made:
        report = checked(made, Written(manifest=manifest, kernel=PLACED_KERNEL))
    assert not failed(report), report


CLUSTERED = """\
extern "C" __global__ void kernel_main(const __grid_constant__ kernel_main_args a) {
    unsigned ranks, rank;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const long row = blockIdx.x, i = threadIdx.x;
    const float wrong = ranks == 2 && rank == blockIdx.x % 2 ? 0.0f : 9.0f;
    if (i < in0_d1) a.out0[row * in0_d1 + i] = fmaxf(a.in0[row * in0_d1 + i], 0.0f) * a.weight[i] + a.shift[i] + wrong;
}
"""


def test_blocks_are_launched_in_the_clusters_that_the_manifest_asks_for(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "placed.py"
    path.write_text(PLACED)
    manifest = kernels.manifest("placed", ("in0", "weight", "shift", "out0"), "fp32")
    for clusters, right in (("cluster = [2]\n", True), ("", False)):
        with opened(home, path) as made:
            report = checked(made, Written(manifest=manifest + clusters, kernel=CLUSTERED))
        assert (not failed(report)) == right, (clusters, report)


PRODUCT = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return x @ y


def get_inputs():
    return [torch.randn(512, 1024), torch.randn(1024, 512)]
"""
PRODUCT_KERNEL = """\
__device__ float cut(float x) { return __uint_as_float((__float_as_uint(x) + HALF) & ~(2 * HALF - 1)); }
extern "C" __global__ void kernel_main(const __grid_constant__ kernel_main_args a) {
    const long row = blockIdx.x;
    for (long n = threadIdx.x; n < out0_d1; n += 256) {
        float s = 0;
        for (long k = 0; k < in0_d1; ++k) s += cut(a.in0[row * in0_d1 + k]) * cut(a.in1[k * out0_d1 + n]);
        a.out0[row * out0_d1 + n] = s;
    }
}
"""


def test_a_product_may_be_as_rough_as_pytorch_s_with_tf32_and_no_rougher(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "product.py"
    path.write_text(PRODUCT)
    manifest = kernels.manifest("product", ("in0", "in1", "out0"), "fp32")
    with opened(home, path) as made:
        for bits, right in ((13, True), (16, False)):  # the bits that tf32 and bf16 drop
            text = f"constexpr unsigned HALF = 1u << {bits - 1};\n{PRODUCT_KERNEL}"
            report = checked(made, Written(manifest=manifest, kernel=text))
            assert (not failed(report)) == right, (bits, report)


@pytest.mark.parametrize("how", [name for name in kernels.WRONG if name != "keeps what is in its output"])
def test_a_wrong_kernel_is_incorrect_by_the_check_that_is_meant(softmax: OpenedTask, how: str) -> None:
    wrong = kernels.WRONG[how]
    report = checked(softmax, wrong.written)
    assert failed(report) & wrong.checks, report


def test_a_kernel_that_keeps_a_result_of_the_call_before_is_found_when_it_is_timed(softmax: OpenedTask) -> None:
    wrong = kernels.WRONG["keeps what is in its output"]
    evaluated = softmax.evaluator.evaluate(wrong.written)
    assert failed(evaluated.verdict) & wrong.checks, evaluated


@pytest.mark.skipif(not FENCED, reason="nothing can be confined on this machine")
def test_the_process_of_a_kernel_is_confined(softmax: OpenedTask) -> None:
    with running(softmax.task, built(softmax, kernels.softmax()), softmax.evaluator._shop, sets=2) as kernel:
        status = Path(f"/proc/{kernel.pid}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2"), status


def test_a_device_that_is_not_there_is_a_sentence(home: Path) -> None:
    options = Options(home=str(home), target="cuda:99")
    with pytest.raises(AgentCompileError, match="cuda:99"), opened_task(options, TASKS / "softmax.py"):
        raise AssertionError("it was opened")


def test_a_kernel_that_leaves_its_memory_ends_its_process_alone(softmax: OpenedTask) -> None:
    found = checked(softmax, kernels.FAULTS)
    assert isinstance(found, Crashed), found
    assert "illegal memory access" in found.detail or "CUDA error" in found.detail, found
    assert not failed(checked(softmax, kernels.softmax())), "the device still works"


def test_a_kernel_that_never_ends_is_killed_at_its_limit(softmax: OpenedTask) -> None:
    begin = time.monotonic()
    found = checked(softmax, kernels.HANGS)
    took = time.monotonic() - begin
    assert isinstance(found, TimedOut), found
    assert (found.stage, found.limit_s) == ("validate", LIMITS.launch_s)
    assert took < 20, took
    assert not failed(checked(softmax, kernels.softmax())), "the device still works"
