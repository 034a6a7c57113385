"""A task opened for refining: its file, its contract, the bar to pass and the gates in front of it.

In: options, and a path. Out: what a session of agents needs, while a block is open; the processes end with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentcompile.backends import backend_of
from agentcompile.build import compile_executor
from agentcompile.evaluation.machine import Machine, ceilings, evaluator_of, this_machine
from agentcompile.ir.attempt import Contract, WrittenLanguage
from agentcompile.ir.target import Ceiling
from agentcompile.materialize import isa_flags
from agentcompile.options import Options
from agentcompile.sandbox import require
from agentcompile.system.probe import core_mhz, processor
from agentcompile.tasks.attending import build_attendants
from agentcompile.tasks.contract import contract_of, language_for, region_of, residency_of
from agentcompile.tasks.evaluating import TaskEvaluator
from agentcompile.tasks.inputs import seed_of
from agentcompile.tasks.kernel import Workshop
from agentcompile.tasks.load import LoadedTask, TaskLimits
from agentcompile.tasks.timing import COMPILED, Baselines, baselines, timed_arms


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTask:
    """One task, everything that is asked of a kernel for it, and the gates."""

    here: Machine
    task: LoadedTask
    contract: Contract
    baselines: Baselines
    evaluator: TaskEvaluator


@contextmanager
def opened_task(
    options: Options,
    path: Path,
    *,
    language: WrittenLanguage | None = None,
    limits: TaskLimits | None = None,
    compiled: tuple[str, ...] = COMPILED,
    confirms: bool = True,
    fenced: bool = True,
) -> Iterator[OpenedTask]:
    """Open the task in the file `path`; `compiled` are the forms of ``torch.compile`` that its baseline may be.

    Unless it is not `fenced`, compilers and kernels are confined.

    Raises:
        AgentCompileError: the file is no sound task, or kernels in that language do not run on that target (usage); the
            machine is not able to build, confine or time (environment).
    """
    here = this_machine(options)
    language_for(path, language, here.target)
    threads, limits = backend_of(here.device).torch_threads(here.target), limits or TaskLimits()
    with LoadedTask(path, threads=threads, seed=options.seed, limits=limits, device=here.device) as task:
        with evaluator_of(here, options.seed) as evaluator:
            ceiling = ceilings(here, evaluator)
        yield gated(
            here, task, ceiling, options.seed, language=language, compiled=compiled, confirms=confirms, fenced=fenced
        )


def gated(
    here: Machine,
    task: LoadedTask,
    ceiling: Ceiling,
    seed: int,
    *,
    language: WrittenLanguage | None = None,
    compiled: tuple[str, ...] = COMPILED,
    confirms: bool = True,
    fenced: bool = True,
) -> OpenedTask:
    """Put the gates in front of a task that is loaded, on a machine whose ceilings are known.

    Raises:
        AgentCompileError: as `opened_task`.
    """
    if fenced:
        require()
    residency = residency_of(region_of(task), here.target)
    bar = baselines(task, residency=residency, seed=seed, compiled=compiled)
    contract = contract_of(
        task,
        language_for(task.path, language, here.target),
        here.target,
        ceiling,
        bar.times,
        bar.told,
        processor=processor(),
        core_mhz=None if task.on_device else core_mhz(),
    )
    executor = None
    if not task.on_device:
        executor = compile_executor(here.store, toolchain=here.toolchain, flags=isa_flags(here.target)).resolve()
    shop = Workshop(
        target=here.target,
        toolchain=here.toolchain,
        store=here.store,
        executor=executor,
        ceiling=ceiling,
        attendants=build_attendants(here.store, here.toolchain, here.target),
        fenced=fenced,
        device=here.device,
    )

    def retake(known: Baselines) -> Baselines:
        return timed_arms(task, tuple(known.us), known.failed, known.notes, residency=residency, seed=seed)

    evaluator = TaskEvaluator(task, contract, bar, shop, seed=seed_of(seed, "judge"), confirms=confirms, retake=retake)
    return OpenedTask(here=here, task=task, contract=contract, baselines=bar, evaluator=evaluator)
