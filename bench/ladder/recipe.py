"""`agentcompile bench ladder MODEL`: from PyTorch eager to the normal compile, a rung at a time.

In: a checkpoint and a workload. Every rung is the one below it and one thing more, in a process of its own; rungs are
timed in interleaved rounds, greedy tokens are held against fp32's, and each gain is shared out to the regions that it
comes from. Out: RESULT.json, the single generations beside it, and the locks of the upper rungs in RESULT-locks. A run
that is cut goes on with --resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from agentcompile.catalog.decode import hint_of
from agentcompile.checkpoint.convert import name_of
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import Machine
from agentcompile.evaluation.step_clock import policy_digest

from ..harness.course import Course, add_cutting, say
from ..harness.found import Samples
from ..harness.identity import WorkloadJob
from ..harness.rates import wait_for_calm
from ..harness.records import say_next
from ..harness.result import Case
from ..harness.trial import Setup
from ..harness.workload import Workload
from ..harness.workloads import Shape, load_workloads, workload_of
from ..models.locate import MAKERS
from ..models.named import checkpoint
from ..report.markdown import gains_table, rungs_table
from .climb import climb, command_of, context_of
from .locks import Locks
from .rungs import RUNGS, RungSpec

_WORKLOAD = {"cpu": "chat-small", "cuda": "chat"}
_EXIT_CODES = "exit codes: 0 finished, also when a rung failed or is slower; 7 --minutes ended it before all was found"


def run(
    arguments: Sequence[str], *, calm: Callable[[float], None] = wait_for_calm, rungs: Sequence[RungSpec] = RUNGS
) -> int:
    """Time a ladder, from the start or with --resume from where the run stopped; return 0, or 7 when time was up.

    Raises:
        AgentCompileError: an option, a file or the machine is wrong, in a way that the user can fix.
        Stopped: a signal ended the run.
    """
    asked = _parse(arguments, rungs)
    course = Course(["agentcompile", "bench", "ladder", *arguments], asked, asked.target)
    model, path, shape, chosen, workload = _wanted(asked, course.machine, course.cache, rungs)
    job = WorkloadJob(workload=workload, arms=tuple(rung.name for rung in chosen))
    counts = {"rounds": asked.rounds, "processes": asked.processes}
    more = {"budget": asked.budget, "seconds": f"{asked.seconds:g}", "stored": asked.stored}
    with course.partial([job], more, **counts) as file:

        def find(setup: Setup, evaluator: WorkerEvaluator) -> tuple[Case, Samples, Locks]:
            locks = Locks(
                name=model,
                model=path,
                setup=setup,
                file=file,
                context=context_of(workload),
                budget=asked.budget,
                seconds=asked.seconds,
                stored=asked.stored,
            )
            made = climb(model, shape, chosen, workload, locks, evaluator.ceiling(), course.machine.target)
            return *made, locks

        found = course.found(file, find, **counts, command=command_of, calm=calm, looks=True)
        if found is None:
            return ExitCode.UNDECIDED
        case, samples, locks = found
        _, beside = course.write(file, [case], {case.key: samples}, suite="ladder", policy=policy_digest("dram"))
        kept = list(locks.copied([rung.choose for rung in case.rungs if rung.lock], _locks_beside(asked.out)))  # type: ignore[misc]
        file.remove()
    screen = Screen.standard()
    for table in (rungs_table(case), gains_table(case)):
        screen.table(table)
        screen.text("")
    also = f", {len(kept)} locks in {_locks_beside(asked.out).name}" if kept else ""
    say(f"wrote {asked.out} and {beside.name}{also}")
    say_next(f"agentcompile bench report {quote(str(asked.out))}")
    return ExitCode.OK


def _locks_beside(out: Path) -> Path:
    return out.with_name(f"{out.stem}-locks")


def _parse(arguments: Sequence[str], rungs: Sequence[RungSpec]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentcompile bench ladder", description=__doc__, epilog=_EXIT_CODES)
    known = ", ".join(rung.name for rung in rungs)
    parser.add_argument("model", metavar="MODEL", help=f"a checkpoint, or one of {', '.join(MAKERS)}")
    parser.add_argument("--target", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--workload", help="by default chat-small on a CPU, chat on a GPU")
    parser.add_argument("--rungs", type=lambda text: tuple(text.split(",")), help=f"some of {known}, with commas")
    parser.add_argument("--threads", type=int, help="of every rung on a CPU; one a physical core when not given")
    parser.add_argument("--rounds", type=int, default=5, help="of every process")
    parser.add_argument("--processes", type=int, default=3, help="fresh ones of every rung, one after another")
    parser.add_argument("--budget", type=int, default=0, help="trials that the search of each lock may spend")
    parser.add_argument("--seconds", type=float, default=0, help="that each lock's search may take; 0: as by default")
    parser.add_argument(
        "--stored", action="store_true", help="compile with your own store and database, and not with empty ones"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the workload")
    parser.add_argument("--cache", type=Path, help="folder of made checkpoints, locks and partial results")
    parser.add_argument("--out", type=Path, default=Path("ladder.json"), help="the JSON file")
    add_cutting(parser, retries=False)
    asked = parser.parse_args(arguments)
    for option in ("rounds", "processes"):
        if (value := getattr(asked, option)) < 1:
            raise AgentCompileError(f"--{option}: {value}: is less than 1", hint="at least 1")
    for option in ("budget", "seconds"):
        if (value := getattr(asked, option)) < 0:
            raise AgentCompileError(f"--{option}: {value:g}: is less than 0", hint="0: as by default")
    if asked.minutes is not None and not asked.minutes > 0:
        raise AgentCompileError(f"--minutes: {asked.minutes:g}: is not more than 0", hint="more than 0, or none")
    return asked


def _wanted(
    asked: argparse.Namespace, machine: Machine, cache: Path, rungs: Sequence[RungSpec]
) -> tuple[str, Path, Shape, tuple[RungSpec, ...], Workload]:
    kind = machine.target.kind
    by_name = {rung.name: rung for rung in rungs}
    names: tuple[str, ...] = asked.rungs or tuple(by_name)
    for name in names:
        if name not in by_name:
            raise AgentCompileError(f"--rungs: {name!r}: no such rung", hint=hint_of(name, list(by_name)))
    shape = load_workloads().shape(asked.workload or _WORKLOAD[kind])
    path = checkpoint(asked.model, cache)
    model = asked.model if asked.model in MAKERS else name_of(path)
    workload = workload_of(model, path, shape, "ladder", seed=asked.seed, kind=kind)
    chosen = tuple(rung for rung in rungs if rung.name in names)
    return model, path, shape, chosen, workload
