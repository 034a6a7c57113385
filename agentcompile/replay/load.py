"""From a lock to a model that runs: find, compare, rebuild, validate, bind; no adviser, no network, no timing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import EvaluationJob, Prepared
from agentcompile.evaluation.jobs import longest_first
from agentcompile.evaluation.machine import evaluator_of
from agentcompile.events import Emit, StageStarted, silent
from agentcompile.ir.template import Depth
from agentcompile.ir.trial import BuildFailed, Disturbed, Rule, reason
from agentcompile.options import Options
from agentcompile.replay.bind import bind
from agentcompile.replay.open import OpenedLock, open_lock
from agentcompile.runs.stages import stage
from agentcompile.runs.tables import prompt_lines
from agentcompile.system.notes import Notes
from agentcompile.tuning.trial_database import accepted, lengths_key, note_accepted
from agentcompile.validate.endurance import missing_launches

if TYPE_CHECKING:
    from agentcompile.runtime.model import CompiledModel


_CHOSEN: Mapping[Rule, str] = {
    "pytorch": "because none was asked for (choose = pytorch)",
    "first": "the adviser's first that pass every check, untimed (choose = first)",
    "isolated": "the fastest by themselves, not tried in the step (choose = isolated)",
}
"""How a lock's choices were made, for the rules that do not time the whole step."""


SAY_S = 10.0
"""Seconds between two words on how many kernels are validated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay came to; kernels are counted once each."""

    model: str
    """The model's name."""
    kernels: int
    validated: int = 0
    """How many of the kernels that run here were validated now, rather than known from before."""


def check_lock(path: Path, options: Options, emit: Emit = silent, *, locked: bool = False) -> Replayed:
    """Compare the lock at `path` with this machine and its model, and build nothing; `locked` refuses any drift.

    Raises:
        AgentCompileError: the lock does not hold here (drift).
    """
    opened = open_lock(path, options, emit, locked=locked)
    return Replayed(model=opened.model.captured.info.name, kernels=len(opened.jobs))


def replay_lock(path: Path, options: Options, emit: Emit = silent, *, locked: bool = False) -> CompiledModel:
    """Rebuild and validate the kernels that the lock at `path` pins, and bind it; `locked` refuses any drift.

    Raises:
        AgentCompileError: the lock does not hold here (drift), a kernel does not build (environment), or one is wrong
            (correctness).
    """
    return rebuilt(path, options, emit, locked=locked)[0]


def rebuilt(
    path: Path, options: Options, emit: Emit = silent, *, locked: bool = False
) -> tuple[CompiledModel, Replayed]:
    """Return the model that `replay_lock` returns, and how many kernels were rebuilt and validated for it.

    Raises:
        AgentCompileError: the lock does not hold here (drift), a kernel does not build (environment), or one is wrong
            (correctness).
    """
    opened = open_lock(path, options, emit, locked=locked)
    with stage(emit, "rebuild") as say:
        validated = _validate(opened, options, emit)
        how = opened.lock.policy.choose
        chosen = "" if how == "admitted" else f", {_CHOSEN[how]}"
        kernels = f"{len(opened.jobs)} kernels, {validated} validated now{chosen}"
        plan = next(plan for plan in opened.lock.plan if plan.phase == "prefill")
        say("; ".join((kernels, *prompt_lines(plan.chunk, plan.steps_up_to))))
    with stage(emit, "load") as say:
        made, name = bind(opened), opened.model.captured.info.name
        say(f"{name}: ready")
    return made, Replayed(model=name, kernels=len(opened.jobs), validated=validated)


def _validate(opened: OpenedLock, options: Options, emit: Emit) -> int:
    """Validate the kernels that were not validated before with this compiler and these tolerances; return their number.

    Prefill kernels are validated at every length that there is a program for.
    """
    notes, target = Notes(opened.here.store), opened.here.target
    called = {job.source.digest: job for job in opened.called}
    lengths, others = lengths_key(opened.lock.content_hash, target.digest), dict[str, EvaluationJob]()
    if not backend_of(opened.here.device).any_chunk and notes.get(lengths) is None:
        others = opened.chunks.everywhere(opened.capacity)
    depths: dict[Depth, list[EvaluationJob]] = {
        "accept": [job for job in called.values() if not accepted(notes, job, target)],
        "length": [
            job for of, job in others.items() if of not in called and not accepted(notes, job, target, "length")
        ],
    }
    if any(depths.values()):
        _prove(depths, opened, options, notes, emit)
    notes.put(lengths, 1)
    return sum(map(len, depths.values()))


def _prove(
    depths: Mapping[Depth, Sequence[EvaluationJob]], opened: OpenedLock, options: Options, notes: Notes, emit: Emit
) -> None:
    """Build and validate kernels at each depth; say how many there are, and now and then how many are done.

    Raises:
        AgentCompileError: a kernel does not build (environment), or is wrong (correctness).
    """
    total, done, said_s = sum(map(len, depths.values())), 0, time.monotonic()
    emit(StageStarted(stage="rebuild", detail=f"{total} kernels are built and validated, once on this machine"))
    with evaluator_of(opened.here, options.seed) as evaluator:
        for depth, jobs in depths.items():
            for job, result in evaluator.prepare(longest_first(jobs), depth=depth):
                if not isinstance(result, Prepared):
                    text = f"{job.region.name}: {job.candidate.label}: {result.kind} here: {reason(result)}"
                    hint = "compile again on this machine, which leaves such kernels out"
                    machine = isinstance(result, (BuildFailed, Disturbed))
                    code = ExitCode.ENVIRONMENT if machine else ExitCode.CORRECTNESS
                    raise AgentCompileError(text, exit_code=code, hint=hint)
                note_accepted(notes, job, opened.here.target, missing_launches(result.report), depth)
                done += 1
                if time.monotonic() - said_s >= SAY_S:
                    said_s = time.monotonic()
                    emit(StageStarted(stage="rebuild", detail=f"{done} of {total} kernels are validated"))
