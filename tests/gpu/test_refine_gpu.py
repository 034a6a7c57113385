"""The gates on a device: kernels that were written from a contract are evaluated, right or wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import evaluator_of, fence_of, this_machine
from agentcompile.ir.attempt import Evaluated, Times, Written, WrittenLanguage
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, Measured
from agentcompile.options import Options
from agentcompile.refine.contract import contract_of
from agentcompile.refine.evaluating import RegionEvaluator
from agentcompile.refine.incumbent import Bar
from agentcompile.sandbox import methods
from agentcompile.system.store import Store
from tests.cpu.written import CEILING, task
from tests.kernels.regions_for import region_for
from tests.kernels.written_for_gpu import CUDA, TRITON

pytestmark = pytest.mark.gpu
SLOW = Times(reference_ns=1e9, incumbent_ns=1e9)


FENCED = all(method.works for method in methods() if method.needed)


@pytest.fixture(
    scope="module", params=["free", pytest.param("fenced", marks=pytest.mark.skipif(not FENCED, reason=""))]
)
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerEvaluator, Options]]:
    options = Options(home=str(tmp_path_factory.mktemp("home")), target="cuda:0")
    here = this_machine(options)
    fence = fence_of(here, tmp_path_factory.mktemp("scratch")) if request.param == "fenced" else None
    with evaluator_of(here, 0, fence=fence) as evaluator:
        yield evaluator, options


def evaluated(device: tuple[WorkerEvaluator, Options], made: Written, language: WrittenLanguage) -> Evaluated:
    workers, options = device
    here = this_machine(options)
    asked = task(region_for("linear", "bf16", hidden=256, rows=(192,)), target=here.target)
    contract = contract_of(asked, language, CEILING, SLOW)
    evaluator = RegionEvaluator(asked, contract, workers, Bar(times=SLOW), store=Store(options.store), confirms=False)
    return evaluator.evaluate(made)


@pytest.mark.parametrize(("made", "language"), [(CUDA, "cuda"), (TRITON, "triton")], ids=["cuda", "triton"])
def test_a_kernel_written_from_the_contract_is_measured_and_accepted(
    device: tuple[WorkerEvaluator, Options], made: Written, language: WrittenLanguage
) -> None:
    found = evaluated(device, made, language)
    assert isinstance(found.verdict, Measured), found
    assert 0 < found.ns < math.inf
    assert isinstance(found.feedback, dict)
    assert found.feedback["accepted"] is True
    if language == "cuda":
        assert found.feedback["resources"]


WRONG = {
    "numbers": ("narrow(a.y + row, parts[0])", "narrow(a.y + row, parts[0] * 1.05f)", Incorrect),
    "nowhere": ("    float sum = 0;", "    float sum = *(volatile float*)64;", Crashed),
    "syntax": ("float sum = 0;", "float sum = 0", BuildFailed),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_kernel_has_its_verdict_and_no_time(device: tuple[WorkerEvaluator, Options], what: str) -> None:
    old, new, verdict = WRONG[what]
    assert old in CUDA.kernel
    found = evaluated(device, replace(CUDA, kernel=CUDA.kernel.replace(old, new)), "cuda")
    assert isinstance(found.verdict, verdict), found
    assert found.ns == math.inf
