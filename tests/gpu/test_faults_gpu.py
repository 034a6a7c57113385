"""Candidates that are wrong, fault or hang on a device: each gets its verdict, and the device is proved alive after.

The hang ends itself and comes last: nothing is ever reset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentcompile.build import Binary, compile, nvrtc_toolchain
from agentcompile.evaluation.evaluator import Baseline, EvaluationJob, Prepared, WorkerEvaluator
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Launch, Source, Template
from agentcompile.ir.trial import Verdict
from agentcompile.materialize import specialise
from agentcompile.measure import Timing
from agentcompile.runtime.device_step import overlaps_launches
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.overlap import CallAccess, overlapping
from agentcompile.system.probe import probe_cuda
from agentcompile.system.store import Store
from agentcompile.worker.pool import Limits
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG

pytestmark = pytest.mark.gpu

_HEAD = '#include "device.cuh"\nextern "C" __global__ void gemv(const __grid_constant__ gemv_args a) {\n'
RIGHT = """    const int warp = threadIdx.x / WARP, row = blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < hidden; i += WARP)
        sum = fmaf(to_float(item(a.w, 0)[long(row) * hidden + i]), to_float(a.x[i]), sum);
    sum = sum_over(sum);
    if (threadIdx.x % WARP == 0) put(item(a.y, 0) + row, sum);
"""
PLANTED = {
    "right": (RIGHT, "prepared"),
    "wrong": (RIGHT.replace("i < hidden;", "i < hidden - 1;"), "incorrect"),
    "past the end": (RIGHT.replace("+ row, sum)", "+ row + 1, sum)"), "incorrect"),
    "a look past the end": (
        RIGHT + "    if (row == rows - 1) sum += *(volatile char*)(item(a.w, 0) + long(rows) * hidden);\n",
        "crashed",
    ),
    "nowhere": (RIGHT + "    *(volatile float*)64 = sum;\n", "crashed"),
    "a trap": (RIGHT + '    asm volatile("trap;");\n', "crashed"),
    "a hang": (
        """    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < 20000000000ull);
"""
        + RIGHT,
        "timed-out",
    ),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return probe_cuda("cuda:0", toolchain=nvrtc_toolchain().name)


@pytest.fixture(scope="module")
def made() -> Region:
    return region("linear", Extents(hidden=256, rows=(128,)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def evaluator(target: Target, store: Store) -> Iterator[WorkerEvaluator]:
    limits = Limits(validate_s=8.0, measure_s=30.0)
    with WorkerEvaluator(
        target, store=store.root, toolchain=nvrtc_toolchain(), device="cuda:0", workers=1, limits=limits
    ) as evaluator:
        yield evaluator


def job(name: str, made: Region, target: Target) -> EvaluationJob:
    base = CATALOG.get("linear/warp-rows")
    launch = Launch(
        entry="gemv", arguments=("x", "w", "b", "y"), grid=("ceil_div(rows, WARPS)",), block=("32 * WARPS",), pdl=False
    )
    template: Template = replace(base, source=f"{_HEAD}{PLANTED[name][0]}}}\n", launches=(launch,))
    candidate = Candidate(
        region=made.id,
        regime=made.regime,
        template=template.id,
        template_digest=template.digest,
        params=template.defaults,
        target=target.digest,
    )
    source = specialise(template, made, template.defaults, target)
    return EvaluationJob(candidate=candidate, region=made, template=template, source=source)


def verdict(evaluator: WorkerEvaluator, given: EvaluationJob) -> Prepared | Verdict:
    ((_, result),) = evaluator.prepare([given])
    return result


def test_a_kernel_is_timed_beside_pytorch(evaluator: WorkerEvaluator, made: Region, target: Target) -> None:
    prepared = verdict(evaluator, job("right", made, target))
    assert isinstance(prepared, Prepared)
    timing = evaluator.time(made, [Baseline(), prepared], rounds=5, residency="dram", seed=1, processes=1)
    assert isinstance(timing, Timing)
    assert timing.live == (0, 1)
    assert 300 < timing.median_ns(1) < 1e6
    assert all(1.7 < doubling < 2.3 for process in timing.processes for doubling in process.clock.doubling)


_PAIR = """
struct pair_args { int* data; int* seen; };
extern "C" __global__ void late(const __grid_constant__ pair_args a) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#endif
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < 300000);
    *a.data = 7;
}
extern "C" __global__ void early(const __grid_constant__ pair_args a) {
    const int found = *(volatile int*)a.data;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    *a.seen = found;
}
"""


@pytest.mark.parametrize("reads", ["what was written", "something else"])
def test_what_is_read_early_was_written_before(reads: str, target: Target, store: Store) -> None:
    launches = tuple(
        Launch(entry=entry, arguments=("data", "seen"), grid=("1",), block=("1",), pdl=True)
        for entry in ("late", "early")
    )
    flags = (f"--gpu-architecture={target.arch}",)
    source = Source(language="cuda", text=_PAIR, launches=launches, workspaces=(), flags=flags)
    built = compile(source, store, toolchain=nvrtc_toolchain(), limit_s=60)
    assert isinstance(built, Binary)
    module = Module(Path(built.path))
    data, seen = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
    asked = "data" if reads == "what was written" else "other"
    accesses = [
        CallAccess(early=frozenset(), writes=frozenset({"start"}), waits=False),
        CallAccess(early=frozenset(), writes=frozenset({"data"}), waits=True),
        CallAccess(early=frozenset({asked}), writes=frozenset({"seen"}), waits=True),
    ]
    overlaps = overlapping(accesses, ())[1:]
    pointers = [data.data_ptr(), seen.data_ptr()]
    may = overlaps_launches(target.arch)
    calls = [
        Call.of(module, launch, pointers, dependent=may and overlap)
        for launch, overlap in zip(launches, overlaps, strict=True)
    ]
    torch.cuda.synchronize()
    for call in calls:
        call.run(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    assert overlaps == [True, asked == "other"]
    # Where the rule lets it overlap, it does: it sees what was there before.
    assert int(seen) == (0 if asked == "other" and may else 7)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_kernel_gets_its_verdict_and_the_device_lives(
    name: str, evaluator: WorkerEvaluator, made: Region, target: Target
) -> None:
    found = verdict(evaluator, job(name, made, target))
    assert ("prepared" if isinstance(found, Prepared) else found.kind) == PLANTED[name][1], found
    if name != "a hang":  # its kernel may run on for a while after its process is gone
        assert isinstance(verdict(evaluator, job("right", made, target)), Prepared)
