"""`agentcompile bench ladder MODEL`: from PyTorch eager to the normal compile, a rung at a time.

In: a checkpoint and a workload. Every rung is the one below it and one thing more, in a process of its own; rungs are
timed in interleaved rounds, greedy tokens are held against fp32's, and each gain is shared out to the regions that it
comes from. Out: RESULT.json, the single generations beside it, and the locks of the upper rungs in RESULT-locks. A run
that is cut goes on with --resume.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agentcompile.catalog.decode import hint_of
from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import Machine, judge_of, this_machine
from agentcompile.evaluation.step_clock import policy_digest
from agentcompile.options import resolve

from ..harness.course import say, threads_of, whole
from ..harness.environment import environment
from ..harness.found import Samples
from ..harness.identity import Identity, Job, identity_of
from ..harness.partial import PartialFile, open_partial
from ..harness.rates import wait_for_calm
from ..harness.records import nameless, revision
from ..harness.result import Case, SuiteResult, write_result, write_text
from ..harness.trial import Setup
from ..harness.workload import Workload, make_workload
from ..harness.workloads import Shape, load_workloads
from ..models.locate import MAKERS
from ..report.ladder_tables import gains_table, rungs_table
from .climb import climb, command_of, context_of
from .locks import Locks
from .rungs import RUNGS, RungSpec

_WORKLOAD = {"cpu": "chat-small", "cuda": "chat"}
_EXIT_CODES = "exit codes: 0 finished, also when a rung failed or is slower; 7 --minutes ended it before all was found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be climbed."""

    model: str
    path: Path
    shape: Shape
    rungs: tuple[RungSpec, ...]
    workload: Workload


def run(
    arguments: Sequence[str], *, calm: Callable[[float], None] = wait_for_calm, rungs: Sequence[RungSpec] = RUNGS
) -> int:
    """Climb, from the start or, with --resume, from where the run was cut. Returns 0 or 7.

    `calm` is called before every visit: it waits for others to leave the machine alone. Raises AgentCompileError for
    what the user can fix, and Stopped for a signal.
    """
    asked = _parse(arguments, rungs)
    until_s = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    machine = this_machine(resolve({"threads": asked.threads, "target": asked.target}).options)
    begun = revision()
    cache = (asked.cache or resolve({}).options.cache / "bench").resolve()
    cache.mkdir(parents=True, exist_ok=True)
    wanted = _wanted(asked, machine, cache, rungs)
    with open_partial(
        cache, _identity(wanted, asked, machine, begun), resume=asked.resume, until_s=until_s, say=say
    ) as file:
        command = ["agentcompile", "bench", "ladder", *arguments]
        rounds = asked.rounds * asked.processes
        found = whole(
            lambda: _find(wanted, asked, machine, file, calm), file, command, minutes=asked.minutes, rounds=rounds
        )
        if found is None:
            return ExitCode.UNDECIDED
        case, samples, locks = found
        result = SuiteResult(
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(nameless(command)),
            revision=str(begun["revision"]),
            changed_since=bool(begun["changed_since"]),
            suite="ladder",
            machine=machine.target,
            environment=environment(machine, threads_of(machine)),
            policy=policy_digest("dram"),
            seed=asked.seed,
            resumed=file.content.resumed,
            cases=(case,),
        )
        write_result(asked.out, result)
        beside = asked.out.with_suffix(".samples.json")
        write_text(beside, json.dumps({case.key: samples}, separators=(",", ":")) + "\n")
        kept = list(locks.copied([rung.choose for rung in case.rungs if rung.lock], _locks_beside(asked.out)))  # type: ignore[misc]
        file.remove()
    for table in (rungs_table(case), gains_table(case)):
        print("\n".join(columns(table)), end="\n\n")
    also = f", {len(kept)} locks in {_locks_beside(asked.out).name}" if kept else ""
    say(f"wrote {asked.out} and {beside.name}{also}; agentcompile bench report {asked.out} draws it")
    return ExitCode.OK


def _locks_beside(out: Path) -> Path:
    return out.with_name(f"{out.stem}-locks")


def _parse(arguments: Sequence[str], rungs: Sequence[RungSpec]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentcompile bench ladder", description=__doc__, epilog=_EXIT_CODES)
    known = ", ".join(rung.name for rung in rungs)
    parser.add_argument("model", metavar="MODEL", help=f"a checkpoint's folder, or one of {', '.join(MAKERS)}")
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="where made checkpoints, locks and partial results lie")
    parser.add_argument("--out", type=Path, default=Path("ladder.json"), help="the JSON file")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop between rounds once M minutes have gone")
    parser.add_argument("--resume", action="store_true", help="go on from what a run that was cut left in the cache")
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


def _wanted(asked: argparse.Namespace, machine: Machine, cache: Path, rungs: Sequence[RungSpec]) -> Asked:
    kind = machine.target.kind
    by_name = {rung.name: rung for rung in rungs}
    names: tuple[str, ...] = asked.rungs or tuple(by_name)
    for name in names:
        if name not in by_name:
            raise AgentCompileError(f"--rungs: {name!r}: no such rung", hint=hint_of(name, list(by_name)))
    shape = load_workloads().shape(asked.workload or _WORKLOAD[kind])
    if asked.model in MAKERS:
        path = MAKERS[asked.model](cache / "presets" / asked.model)
    elif (path := Path(asked.model).resolve()).is_dir():
        if not (path / "config.json").is_file():
            raise AgentCompileError(f"{asked.model}: has no config.json", hint="name a checkpoint's folder")
    else:
        raise AgentCompileError(f"{asked.model}: no such checkpoint", hint=hint_of(asked.model, list(MAKERS)))
    model = asked.model if asked.model in MAKERS else path.name
    workload = make_workload(
        f"{model}.{shape.name}.ladder", path, seed=asked.seed, kind=kind, tokens=(shape.prompt, shape.new)
    )
    chosen = tuple(rung for rung in rungs if rung.name in names)
    return Asked(model=model, path=path, shape=shape, rungs=chosen, workload=workload)


def _identity(wanted: Asked, asked: argparse.Namespace, machine: Machine, begun: Mapping[str, object]) -> Identity:
    """Where results are written and how the run is cut do not enter."""
    settings = {
        "device": machine.device,
        "seed": asked.seed,
        "rounds": asked.rounds,
        "processes": asked.processes,
        "threads": threads_of(machine),
        "budget": asked.budget,
        "seconds": f"{asked.seconds:g}",
        "stored": asked.stored,
    }
    job = Job(workload=wanted.workload, arms=tuple(rung.name for rung in wanted.rungs))
    return identity_of([job], machine.target, begun, lock=None, settings=settings)


def _find(
    wanted: Asked, asked: argparse.Namespace, machine: Machine, file: PartialFile, calm: Callable[[float], None]
) -> tuple[Case, Samples, Locks]:
    """Whatever is not in `file` yet is found and kept there. Raises OutOfTime between two rounds."""
    work = Path(tempfile.mkdtemp(prefix="ladder."))
    try:
        with judge_of(machine, asked.seed) as judge:
            setup = Setup(
                threads=threads_of(machine),
                device=machine.device,
                rounds=asked.rounds,
                processes=asked.processes,
                seed=asked.seed,
                cache=file.path.parent,
                logs=work,
                llama_python=None,
                quiet=nullcontext,
                bandwidth=lambda: judge.ceiling().dram_bytes_per_s,
                say=say,
                keep=file.keep,
                pause=file.pause,
                command=command_of,
                calm=calm,
                looks=True,
            )
            locks = Locks(
                name=wanted.model,
                model=wanted.path,
                setup=setup,
                file=file,
                context=context_of(wanted.workload),
                budget=asked.budget,
                seconds=asked.seconds,
                stored=asked.stored,
            )
            case, samples = climb(
                wanted.model, wanted.shape, wanted.rungs, wanted.workload, locks, judge.ceiling(), machine.target
            )
            return case, samples, locks
    finally:
        shutil.rmtree(work, ignore_errors=True)
