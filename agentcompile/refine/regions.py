"""A region of a model opened for refining: its task, its contract, the bar to pass and the gates in front of it.

In: options that name a model, and a region's name. Out: what a session of agents needs, while a block is open; the
workers end with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.chunk import any_chunk
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import Machine, evaluator_of, fence_of, this_machine
from agentcompile.evaluation.step_clock import policy_digest
from agentcompile.events import Emit, silent
from agentcompile.ir.advice import Advice
from agentcompile.ir.attempt import Contract, Evaluated, Written, WrittenLanguage
from agentcompile.ir.region import Region
from agentcompile.ir.trial import Trial
from agentcompile.options import Options
from agentcompile.refine.contract import contract_of
from agentcompile.refine.evaluating import RegionEvaluator
from agentcompile.refine.incumbent import Bar, bar_of
from agentcompile.refine.promote import machine_of
from agentcompile.refine.provenance import Provenance, provenance_for
from agentcompile.space import Space
from agentcompile.system.probe import core_mhz, processor
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.tuning.prepared import PreparedModel, prepare
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import Renamed, TrialDatabase

SCRATCH = "scratch"
"""Name of the empty folder in the cache that confined workers have a disk of their own in place of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRegion:
    """One region, everything that is asked of a kernel for it, and the gates."""

    here: Machine
    task: TuneTask
    contract: Contract
    bar: Bar
    evaluator: RegionEvaluator

    def provenance(
        self,
        written: Written,
        evaluated: Evaluated,
        *,
        node: str,
        models: tuple[tuple[str, str], ...],
        exchanges: tuple[str, ...] = (),
    ) -> Provenance:
        """Return where an admitted kernel comes from, for `promote`; a kernel without a time has none.

        Raises:
            AgentCompileError: it was not measured (usage).
        """
        return provenance_for(
            self.task.region.name,
            self.contract.digest,
            written,
            evaluated,
            node=node,
            models=models,
            exchanges=exchanges,
            incumbent_ns=self.contract.incumbent_ns,
            floor_ns=self.contract.floor_ns,
            machine=machine_of(self.here.target),
        )


@contextmanager
def opened(
    options: Options,
    region: str,
    *,
    language: WrittenLanguage | None = None,
    emit: Emit = silent,
    confirms: bool = True,
    fenced: bool = True,
) -> Iterator[OpenedRegion]:
    """Open the region called `region` (a name, a kind or the start of an id) of the model that the options name.

    Of several the one with the most bytes in a step at the longest context is taken. Without a `language` it is the
    usual one of the target. Processes that run written kernels or compile them are confined, unless `fenced` is False.

    Raises:
        AgentCompileError: there is no such region, or no kernel can serve it (usage); the machine is not able to time,
            or to confine a process (environment).
    """
    here = this_machine(options)
    fence = fence_of(here, options.cache / SCRATCH) if fenced else None
    with evaluator_of(here, options.seed, fence=fence) as evaluator:
        prepared = prepare(options, here, evaluator, emit)
        task = task_of(prepared, region)
        bar = _bar(task, options, evaluator)
        if bar is None:
            text = f"{task.region.name}: not even PyTorch gave a time: something else ended its process"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="check memory and load, then try again")
        written_in = language or backend_of(here.target.kind).languages[0]
        contract = contract_of(
            task, written_in, prepared.ceiling, bar.times, processor=processor(), core_mhz=core_mhz()
        )

        def retake() -> Bar | None:
            return _bar(task, options, evaluator)

        gates = RegionEvaluator(
            task, contract, evaluator, bar, store=here.store, confirms=confirms, retake=retake, seed=options.seed
        )
        yield OpenedRegion(here=here, task=task, contract=contract, bar=bar, evaluator=gates)


def task_of(prepared: PreparedModel, name: str) -> TuneTask:
    """Return the task of the region of that name, kind or start of an id; its space is empty where nothing serves it.

    Raises:
        AgentCompileError: the model has no such region, or it is one of prompts on a CPU (usage); the hint names
            those that it has.
    """
    regions = {region.id: region for cut in prepared.decode for region in cut.regions.values()}
    known = {task.region.id: task for task in (*prepared.tasks, *prepared.prompt_tasks)}
    regions |= {id: task.region for id, task in known.items()}
    own = [one for one in regions.values() if name in (one.name, one.kind) or (name and one.id.startswith(name))]
    if not own:
        names = ", ".join(dict.fromkeys(one.kind for one in regions.values()))
        raise AgentCompileError(f"{name[:80]!r}: no region is called that", hint=f"its kinds: {names}")
    region = max(own, key=_weight)
    if any_chunk(region):
        text = f"{region.name}: a region of prompts of any length, for which nothing says yet what a kernel is given"
        raise AgentCompileError(text, hint="name a region of decode steps, or write a template (docs/how-to.md)")
    return known.get(region.id) or TuneTask(
        region=region,
        space=Space(region, [], prepared.here.target),
        advice=Advice(label="none"),
        residency=prepared.prefill.residency,
        floor_ns=region.floor_ns(prepared.ceiling, prepared.prefill.residency) if prepared.ceiling.calm else 0.0,
    )


def _weight(region: Region) -> tuple[bool, int, int]:
    """Return what makes a region the one that is meant: of the decode step, at the longest context, with most bytes."""
    regime = region.regime
    return regime.phase == "decode", regime.context[1], region.cost.bytes * max(len(region.sites), 1)


def _bar(task: TuneTask, options: Options, evaluator: WorkerEvaluator) -> Bar | None:
    jobs = JobMaker(task.space.target)
    trials: tuple[Trial, ...] = ()
    with MachineTrials(options.history) as history:
        past = TrialDatabase((), history, policy_digest(task.residency), Renamed([task.space]))
        candidates = tuple(task.space)
        trials = past.shown_to_adviser(candidates, lambda one: jobs.source(task, one).digest)
    return bar_of(task, jobs, evaluator, trials, seed=options.seed)
