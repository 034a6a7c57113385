"""`agentcompile bench figures`: every figure of this CPU, or of one GPU, in one run; as a table and as one JSON file.

What is found is kept in the cache, round by round, so that a run that was cut goes on with --resume.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from agentcompile.cli.render import Screen
from agentcompile.errors import ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.lockfile.files import read_lock
from agentcompile.options import DEFAULT_CONTEXT

from ..harness.building import build_of
from ..harness.course import Course, add_cutting, say
from ..harness.identity import WorkloadJob
from ..harness.numbers import at_least
from ..harness.partial import PartialFile, Progress
from ..harness.rates import wait_for_calm
from ..harness.serving import own_command
from ..harness.times import Build, Imported, import_time
from ..harness.trial import LLAMA, OURS, Setup, run_trial
from ..harness.workload import Workload, make_workload
from ..models.locate import MAKERS
from .record import FigurePart, arm_rows, arm_table, choices_of, figure_table, figures_of, import_figure, record

_ON_GPU = ("hf-eager", "hf-reduce-overhead", "static-reduce-overhead", "static-max-autotune", OURS)
ARMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cpu": {
        "sample": ("hf-eager", "hf-compile", "max-autotune", LLAMA, OURS),
        "qwen3-0.6b": ("hf-eager", "hf-compile", LLAMA, OURS),
    },
    "cuda": {"qwen3-1.7b": _ON_GPU, "qwen3-4b": _ON_GPU, "llama-3.2-1b": _ON_GPU},
}
"""The arms of each checkpoint, by kind of device."""
LEAST_S: Mapping[str, float] = {"sample": 0.5, "qwen3-0.6b": 0.0}
"""The least time that a visit generates on a CPU, in seconds, by checkpoint.

One generation of the small model is shorter than a time slice of the scheduler. On a GPU every visit has several
generations, in `_GPU_LEAST_S` or more.
"""
_GPU_LEAST_S = 0.5
RESULTS = Path(__file__).resolve().parents[1] / "results"
_EXIT_CODES = (
    "Exit code 0: finished, also when a figure falls short. 7 (undecided): --minutes stopped it, and --resume goes on. "
    "128 + n: signal n ended it, and --resume goes on."
)


def run(arguments: Sequence[str], *, calm: Callable[[float], None] = wait_for_calm) -> int:
    """Run the recipe, from the start or with --resume from where it stopped; return 0, or 7 when time was up.

    Raises:
        AgentCompileError: a partial result cannot be resumed.
        Stopped: a signal ended the run.
    """
    asked = _parse(arguments)
    course = Course(["agentcompile", "bench", "figures", *arguments], asked, asked.target, "figures")
    kind, jobs = course.machine.target.kind, []
    for name in asked.model:
        path = MAKERS[name](course.cache / "presets" / name)
        arms = tuple(arm for arm in ARMS[kind][name] if not asked.arms or arm in asked.arms)
        jobs.append(WorkloadJob(workload=make_workload(name, path, seed=asked.seed, kind=kind), arms=arms))
    llama = (asked.llama_python or "") if any(LLAMA in job.arms for job in jobs) else ""
    counts = {"rounds": asked.rounds, "processes": asked.processes}
    with course.partial(jobs, {"llama-python": llama}, **counts, lock=asked.lock) as file:

        def find(setup: Setup, _: WorkerEvaluator) -> tuple[Imported, list[FigurePart]]:
            if (imported := file.content.imported) is None:
                imported = file.content.imported = import_time()
                file.keep()
                say(f"import agentcompile: {imported.median_ms:.1f} ms")
            for job in jobs:
                if asked.retry_failed:
                    file.progress(job.workload.name).forget_failures(asked.rounds * asked.processes)
            return imported, [_measure(job, asked.lock, setup, file) for job in jobs]

        found = course.found(
            file, find, cases=len(jobs), **counts, llama_python=asked.llama_python, quiet=_quiet(asked.quiet), calm=calm
        )
        if found is None:
            return ExitCode.UNDECIDED
        imported, parts = found
        figures = [*(figure for part in parts for figure in figures_of(part)), import_figure(imported)]
        screen = Screen.standard()
        screen.table(arm_table([row for part in parts for row in arm_rows(part)]))
        screen.text("")
        screen.table(figure_table(figures))
        written = record(parts, figures, imported, course.machine.target, arguments, course.begun, file.content.resumed)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        file.remove()
    say(f"wrote {asked.out}")
    return ExitCode.OK


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentcompile bench figures", description=__doc__, epilog=_EXIT_CODES)
    known = sorted({name for models in ARMS.values() for name in models})
    parser.add_argument("--target", default="cpu", help="cpu or cuda:N")
    parser.add_argument(
        "--model",
        action="append",
        choices=known,
        metavar="MODEL",
        help=f"repeatable; all when not given: {', '.join(known)}",
    )
    parser.add_argument("--arms", type=lambda text: tuple(text.split(",")), help="names, separated by commas")
    parser.add_argument("--out", type=Path, help="the JSON file; else one among the results, by kind of device")
    parser.add_argument("--lock", type=Path, help="time this lock instead of compiling one; needs one --model")
    parser.add_argument("--llama-python", type=Path, metavar="PYTHON", help="has llama_cpp, gguf and numpy")
    parser.add_argument("--threads", type=at_least(0), help="of every arm on a CPU; one a physical core when not given")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of every process")
    parser.add_argument("--processes", type=at_least(1), default=3, help="fresh ones of every arm, one after another")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the workloads")
    parser.add_argument(
        "--cache", type=Path, help="folder of peers' compiled artefacts, made checkpoints and partial results"
    )
    parser.add_argument("--quiet", type=Path, metavar="FILE", help="lock this file while something is timed")
    add_cutting(parser)
    asked = parser.parse_args(arguments)
    kind = "cpu" if asked.target == "cpu" else "cuda"
    here = ARMS[kind]
    asked.out = asked.out or RESULTS / f"{kind}-figures.json"
    asked.model = asked.model or sorted(here, reverse=True)
    if foreign := sorted(set(asked.model) - set(here)):
        parser.error(f"--model: {', '.join(foreign)}: on {asked.target}: {', '.join(sorted(here))}")
    arms = {arm for names in here.values() for arm in names}
    if unknown := set(asked.arms or ()) - arms:
        parser.error(f"--arms: {', '.join(sorted(unknown))}: allowed: {', '.join(sorted(arms))}")
    if asked.lock and len(asked.model) != 1:
        parser.error("--lock: needs exactly one --model")
    if asked.minutes is not None and not asked.minutes > 0:
        parser.error(f"--minutes: {asked.minutes:g}: must be more than 0")
    if asked.retry_failed and not asked.resume:
        parser.error("--retry-failed: needs --resume")
    return asked


def _measure(job: WorkloadJob, lock: Path | None, setup: Setup, file: PartialFile) -> FigurePart:
    workload, progress = job.workload, file.progress(job.workload.name)
    build: Build | None = None
    if lock:
        build = Build(model=workload.model, lock=lock.resolve(), home=None, threads=setup.threads, target=setup.device)
    elif OURS in job.arms:
        build = build_of(workload.name, workload.model, setup, file)
    if build is not None:
        workload = _with_cache_of(workload, build.lock)
    least_s = LEAST_S[workload.name] if setup.kind == "cpu" else _GPU_LEAST_S
    outcome = run_trial(job.arms, workload, build, least_s, setup, progress.outcome)
    if OURS in outcome.reasons and progress.failure:
        outcome.reasons[OURS] = f"compile: {progress.failure}"
    if workload.name == "sample" and OURS in job.arms and not (progress.accuracy or progress.accuracy_reason):
        setup.pause()
        _accuracy(progress, build, setup)
        setup.keep()
    return FigurePart(workload, job.arms, progress, choices_of(build.lock) if build else {})


def _with_cache_of(workload: Workload, lock: Path) -> Workload:
    """Return the workload with the size in bytes of this lock's KV cache, which may be for more tokens or sequences."""
    read = read_lock(lock)
    rows = max((plan.batch for plan in read.plan), default=1)
    return replace(workload, cache_bytes=workload.cache_bytes // DEFAULT_CONTEXT * read.model.context * rows)


def _accuracy(progress: Progress, build: Build | None, setup: Setup) -> None:
    if build is None:
        progress.accuracy_reason = "there is no lock"
        return
    request = json.dumps({"model": str(build.model), "lock": str(build.lock), "threads": setup.threads})
    command = [*own_command("figures.accuracy", build.settings), request]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if ran.returncode == 0:
        progress.accuracy = json.loads(ran.stdout.splitlines()[-1])
    else:
        said = [line for line in ran.stderr.splitlines() if line.strip()]
        progress.accuracy_reason = f"exit code {ran.returncode}: {said[-1] if said else ''}"


def _quiet(path: Path | None) -> Callable[[], AbstractContextManager[object]]:
    """Return a context that holds a lock on `path`, if given, so that programs that honour it wait meanwhile."""
    if path is None:
        return nullcontext

    @contextmanager
    def held() -> Iterator[None]:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return held
