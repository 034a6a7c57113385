"""Written kernels that cheat while they run: each gate refuses them for the reason that is meant, and no honest one."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentcompile.evaluation.evaluator import Limits, WorkerEvaluator
from agentcompile.ir.trial import Crashed, Measured
from agentcompile.sandbox import for_worker, methods
from tests.adversarial.cheats import BUILDS, GATES, RIGHT, Cheat, Gate
from tests.adversarial.cheats_on_the_process import ATTEMPTS, PROCESS, Attempt, battery, errors
from tests.adversarial.cheats_that_run import RESULTS
from tests.adversarial.written_gates import Gates, Untimed, reason, region_gates, task_gates
from tests.cpu import jobs

LIMITS = Limits(build_s=60.0, validate_s=60.0, measure_s=60.0, per_gigabyte_s=20.0)
Known = dict[tuple[Gate, str], tuple[str, str]]
TIMED = "a shorter time"
"""The cheat for which a region is really timed."""

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the texts hold machine code of x86-64"),
    pytest.mark.skipif(not all(one.works for one in methods() if one.needed), reason="nothing can be confined here"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something in it that no kernel may read."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "secret").write_text("secret", encoding="ascii")
    return folder


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gates]:
    with task_gates(tmp_path_factory.mktemp("task")) as made:
        yield made


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerEvaluator]:
    folder = tmp_path_factory.mktemp("region")
    (folder / "scratch").mkdir()
    with WorkerEvaluator(
        jobs.target(),
        store=folder / "store",
        toolchain=jobs.toolchain(os.environ.get("CXX_REAL", "")),  # a fence lets no script compile
        workers=1,
        limits=LIMITS,
        memory_bytes=2 << 30,
        fence=for_worker(folder / "scratch"),
    ) as made:
        yield made


@pytest.fixture(scope="module")
def gates(task: Gates, evaluator: WorkerEvaluator) -> dict[Gate, Gates]:
    """Both gates; a region's kernels are built and validated, and not timed."""
    return {"task": task, "region": region_gates(Untimed(evaluator))}


@pytest.fixture(scope="module")
def known() -> Known:
    """What became of a text, for cheats that share one."""
    return {}


def cases(cheats: tuple[Cheat, ...]) -> list[tuple[Gate, Cheat]]:
    return [
        (gate, one) for one in cheats for gate in GATES if one.refusal(gate) and (gate, one.name) != ("region", TIMED)
    ]


ALL = cases((*RESULTS, *PROCESS)) + [("region", one) for one in BUILDS]


@pytest.mark.parametrize(("gate", "cheat"), ALL, ids=[f"{cheat.name}-{gate}" for gate, cheat in ALL])
def test_a_cheat_is_refused_for_its_reason(gates: dict[Gate, Gates], known: Known, gate: Gate, cheat: Cheat) -> None:
    refusal = cheat.refusal(gate)
    assert refusal is not None
    if (gate, cheat.code) not in known:
        known[gate, cheat.code] = gates[gate].evaluated(cheat)
    kind, words = known[gate, cheat.code]
    assert kind == refusal.verdict, words
    assert re.search(refusal.by, words), words


@pytest.fixture(scope="module")
def tried(gates: dict[Gate, Gates], place: Path) -> dict[Gate, dict[str, int]]:
    """What every attempt to get out got from the fence of each gate; the process said it, and ended with status 0."""
    found = dict[Gate, dict[str, int]]()
    for gate, made in gates.items():
        verdict = made.kernel(battery(str(place), gate)).verdict
        assert isinstance(verdict, Crashed), verdict
        found[gate] = errors(verdict.detail)
    assert [path.name for path in place.iterdir()] == ["secret"]
    return found


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_a_system_call_of_a_written_kernel_gets_nowhere(
    tried: dict[Gate, dict[str, int]], gate: Gate, attempt: Attempt
) -> None:
    assert tried[gate].get(attempt.name) == getattr(attempt, gate)


@pytest.mark.alone
@pytest.mark.parametrize("gate", GATES)
def test_an_honest_kernel_is_measured(evaluator: WorkerEvaluator, task: Gates, gate: Gate) -> None:
    made = task if gate == "task" else region_gates(evaluator)
    evaluated = made.kernel(RIGHT)
    assert isinstance(evaluated.verdict, Measured), reason(evaluated)


@pytest.mark.alone
def test_a_region_whose_kernel_moves_the_clock_is_refused(evaluator: WorkerEvaluator) -> None:
    cheat = next(one for one in PROCESS if one.name == TIMED)
    assert cheat.region is not None
    kind, words = region_gates(evaluator, confirms=True).evaluated(cheat)
    assert kind == cheat.region.verdict
    assert cheat.region.by in words, words
