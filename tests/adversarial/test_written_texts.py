"""Cheats that no process of a kernel sees: the static check or the compiler refuses them, at both gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.ir.attempt import Written, WrittenLanguage
from tests.adversarial import red_team
from tests.adversarial.cheats import BOMB, BUILDS, GATES, TEXTS, Cheat, Gate, text
from tests.adversarial.cheats_on_a_device import CUDA, DEVICE_BUILDS, DEVICE_TEXTS, TRITON, DeviceCheat, device_text
from tests.adversarial.written_gates import (
    LIMITS,
    Gates,
    Unused,
    device_region_gates,
    device_task_gates,
    reason,
    region_gates,
    task_gates_without_a_process,
)


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> dict[Gate, Gates]:
    return {
        "task": task_gates_without_a_process(tmp_path_factory.mktemp("task")),
        "region": region_gates(Unused()),
    }


CASES = [(gate, cheat) for cheat in TEXTS for gate in GATES if cheat.refusal(gate)]


@pytest.mark.parametrize(("gate", "cheat"), CASES, ids=[f"{cheat.name}-{gate}" for gate, cheat in CASES])
def test_a_text_that_reaches_for_more_is_refused_before_it_is_compiled(
    gates: dict[Gate, Gates], gate: Gate, cheat: Cheat
) -> None:
    refusal = cheat.refusal(gate)
    assert refusal is not None
    kind, words = gates[gate].evaluated(cheat)
    assert kind == refusal.verdict
    assert refusal.by in words, words


@pytest.mark.parametrize("gate", GATES)
def test_the_honest_text_goes_on_to_the_compiler(gate: Gate, tmp_path: Path) -> None:
    """Of a region it reaches the evaluator, which is not there; of a task the compiler, which finds one word wrong."""
    honest = "KERNEL { right(a, rank, size); }"
    if gate == "region":
        with pytest.raises(AssertionError, match="asked to prepare"):
            region_gates(Unused()).kernel(honest)
        return
    kind, log = reason(task_gates_without_a_process(tmp_path).kernel(honest.replace("right(a", "wrong(a")))
    assert kind == "build-failed"
    assert "wrong" in log


@pytest.mark.parametrize("cheat", BUILDS, ids=lambda cheat: cheat.name)
def test_a_text_that_aims_at_the_compiler_is_a_failed_build(gates: dict[Gate, Gates], cheat: Cheat) -> None:
    assert cheat.task is not None
    kind, log = gates["task"].evaluated(cheat)
    assert kind == cheat.task.verdict
    assert cheat.task.by in log, log


DEVICE_CASES = [(gate, cheat) for cheat in (*DEVICE_TEXTS, *DEVICE_BUILDS) for gate in GATES if cheat.refusal(gate)]


def device_gates(gate: Gate, language: WrittenLanguage, folder: Path) -> Gates:
    return device_region_gates(language) if gate == "region" else device_task_gates(folder, language)


@pytest.mark.parametrize(("gate", "cheat"), DEVICE_CASES, ids=[f"{cheat.name}-{gate}" for gate, cheat in DEVICE_CASES])
def test_a_kernel_for_a_device_that_reaches_for_more_is_refused(gate: Gate, cheat: DeviceCheat, tmp_path: Path) -> None:
    refusal = cheat.refusal(gate)
    assert refusal is not None
    kind, words = device_gates(gate, cheat.language, tmp_path).evaluated(cheat)
    assert kind == refusal.verdict, words
    assert refusal.by in words, words


@pytest.mark.parametrize(("language", "code"), [("triton", TRITON), ("cuda", CUDA)])
def test_the_honest_text_for_a_device_goes_on_to_the_compiler(language: WrittenLanguage, code: str) -> None:
    made = device_region_gates(language)
    honest = Written(manifest=made.manifest, kernel=device_text("region", language, code))
    with pytest.raises(AssertionError, match="asked to prepare"):
        made.evaluator.evaluate(honest)


def test_a_text_that_takes_a_compiler_too_long_has_timed_out(tmp_path: Path) -> None:
    hasty = task_gates_without_a_process(tmp_path, replace(LIMITS, build_s=3.0))
    assert reason(hasty.kernel(BOMB)) == ("timed-out", "build")


def test_a_kernel_of_too_many_characters_is_not_read(gates: dict[Gate, Gates]) -> None:
    for gate, made in gates.items():
        long = Written(manifest=made.manifest, kernel=text(gate, "/" * 10_000_000))
        kind, words = reason(made.evaluator.evaluate(long))
        assert kind == "rejected"
        assert "characters" in words


def test_the_page_has_every_plant_and_what_refuses_it() -> None:
    page = red_team.PAGE.read_text(encoding="utf-8")
    assert page.partition(red_team.BEGIN)[2].partition(red_team.END)[0] == red_team.table(), "write it anew"
    names = [name for name, *_ in red_team.rows()]
    assert len(set(names)) == len(names) >= 40
