"""Agents refine a task: a wrong answer is mended from its feedback, and written code runs behind a fence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.agents.prompts import RolePrompt
from agentcompile.agents.refining import Settings, refine
from agentcompile.build import Binary, compile, compile_executor
from agentcompile.ir.template import Template
from agentcompile.ir.trial import Incorrect, Measured
from agentcompile.materialize import isa_flags, specialise
from agentcompile.tasks.attending import build_attendants
from agentcompile.tasks.contract import facts_of, region_of
from agentcompile.tasks.kernel import Built, Workshop, running
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.open import gated
from agentcompile.tasks.reading import read
from tests.cpu.tasked import CEILING, KERNEL_SCALED, LIMITS, SCALED, here, written
from tests.unit.refined import Memory, Script, contract_in, draft

LAUNCH = {"launch": [{"entry": "kernel_main", "arguments": ["in0", "weight", "out0"]}]}


@pytest.mark.alone
def test_a_session_mends_a_wrong_kernel_for_a_task(tmp_path: Path) -> None:
    path = tmp_path / "scaled.py"
    path.write_text(SCALED)
    seen, asked = list[dict[str, Any]](), list[RolePrompt]()

    def answer(prompt: RolePrompt, data: dict[str, Any]) -> str:
        seen.append(data)
        asked.append(prompt)
        return draft(KERNEL_SCALED if len(seen) == 2 else KERNEL_SCALED.replace(" * a.weight[i]", ""), manifest=LAUNCH)

    slow = replace(CEILING, dram_bytes_per_s=1e6, cache_bytes_per_s=1e6, calm=False)  # as measured on a busy machine
    with LoadedTask(path, threads=2, seed=7, limits=LIMITS) as task:
        made = gated(here(tmp_path), task, slow, 7, compiled=(), confirms=False)
        settings = Settings(arm="reflexion", attempts=2)
        found = refine(made.contract, made.evaluator, Script(answer), Memory(), settings)
    first, second = found.nodes[1:]
    assert isinstance(first.verdict, Incorrect)
    assert isinstance(second.verdict, Measured), f"by such rates no kernel is impossible: {second}"
    assert found.best == second
    assert "failed_checks" in str(seen[-1]), "it is told what failed"
    assert SCALED.splitlines()[0] in str(contract_in(asked[0].system))


def test_the_process_of_a_kernel_is_confined_before_its_code_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "scaled.py"
    path.write_text(SCALED)
    machine = here(tmp_path)
    executor = compile_executor(machine.store, toolchain=machine.toolchain, flags=isa_flags(machine.target))
    shop = Workshop(
        target=machine.target,
        toolchain=machine.toolchain,
        store=machine.store,
        executor=executor.resolve(),
        ceiling=CEILING,
        attendants=build_attendants(machine.store, machine.toolchain, machine.target),
    )
    with LoadedTask(path, threads=2, seed=7, limits=LIMITS) as task:
        region = region_of(task)
        texts = written(gated(machine, task, CEILING, 7, compiled=()), KERNEL_SCALED)
        template = read(texts, region, facts_of(region), "cpp")
        assert isinstance(template, Template)
        source = specialise(template, region, (), machine.target)
        binary = compile(source, machine.store, toolchain=machine.toolchain, limit_s=60.0, fenced=True)
        assert isinstance(binary, Binary)
        built = Built(template=template, region=region, source=source, binary=Path(binary.path).resolve(), shape=0)
        with running(task, built, shop, sets=2) as kernel:
            status = Path(f"/proc/{kernel.pid}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
