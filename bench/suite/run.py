"""`agentcompile bench`: end-to-end workloads, every arm in the same run, one result file.

In: checkpoints, workloads, arms. Every case (a workload on a model, greedy or sampled) has fresh processes of all its
arms, timed in interleaved rounds; greedy tokens are held against fp32's. Out: RESULT.json, the single generations in
RESULT.samples.json beside it, and a table. A run that is cut goes on with --resume.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from agentcompile.catalog.decode import hint_of
from agentcompile.cli.paragraphs import Paragraphs
from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import Machine
from agentcompile.evaluation.step_clock import policy_digest
from agentcompile.ir.digest import Json, digest
from agentcompile.lockfile.files import read_lock
from agentcompile.options import visible_devices
from agentcompile.runs.tables import Table
from agentcompile.system.gpus import Meter

from ..harness.course import Course, add_cutting, host, say
from ..harness.engines import ENGINES
from ..harness.found import widened
from ..harness.identity import WorkloadJob
from ..harness.rates import CALM_SHARE, FED_SHARE, LONG_S, TRIES, WARM_TOKENS, note_of, wait_for_calm
from ..harness.records import say_next
from ..harness.result import Case
from ..harness.trial import CHECKED_TOKENS, LEAST_S, LLAMA, NO_LLAMA, VLLM, Setup, vllm_lacks
from ..harness.twins import fault, kind_of
from ..harness.workload import mean_cache_bytes
from ..harness.workloads import Suite, load_workloads, workload_of
from ..models.locate import MAKERS
from . import bounds as committed
from .finding import Asked, Found, Locks, find

_EPILOG = """\
arms: a name, or NAME=ALIAS for the same arm once more in a process of its own (agentcompile=again), or
NAME=ALIAS:SHARE for one that waits longer by a share (agentcompile=slow:0.03); bench compare RESULT --arms X,Y tells
whether the verdicts on them are right.

llama.cpp: python3 -m venv LLAMA; LLAMA/bin/pip install --no-binary llama-cpp-python llama-cpp-python gguf numpy (a C++
compiler and some minutes; cmake and ninja come with it), then --llama-python LLAMA/bin/python.

vLLM: any Python that has it, with --vllm-python; it is asked on cuda:0 alone.

exit codes: 4 an output of ours is wrong, or where bounds are held, ours failed or nothing checked it; 5 slower than a
bound; 7 --minutes ended it before all was found, or a bound has too few undisturbed rounds"""

_ARMS = (*(name for name in ENGINES if name != "fp32"), LLAMA, VLLM)
_SAID = {ExitCode.CORRECTNESS: "WRONG", ExitCode.PERFORMANCE: "REGRESSION", ExitCode.UNDECIDED: "UNDECIDED"}


def protocol() -> str:
    """Return the digest of how the suite times, checks and samples; results with other digests are not comparable."""
    sampling = load_workloads().sampling
    rules: dict[str, Json] = {
        "judging": policy_digest("dram"),
        "least_s": LEAST_S,
        "warm_tokens": WARM_TOKENS,
        "tries": TRIES,
        "long_s": LONG_S,
        "bearable": [CALM_SHARE, FED_SHARE],
        "checked_tokens": CHECKED_TOKENS,
        "sampling": [sampling.temperature, sampling.top_p, sampling.seed],
    }
    return digest("suite-protocol/1", rules)


def run(arguments: Sequence[str], *, calm: Callable[[float], None] = wait_for_calm) -> int:
    """Run a suite, from the start or with --resume from where it stopped; return 0 or an exit code of `_EPILOG`.

    Raises:
        AgentCompileError: an option, a file or the machine is wrong, in a way that the user can fix.
        Stopped: a signal ended the run.
    """
    asked = _parse(arguments)
    suite = _suite(asked)
    target = asked.target or ("cpu" if suite.kind == "cpu" else "cuda:0")
    course = Course(["agentcompile", "bench", *arguments], asked, target)
    machine, counts = course.machine, {"rounds": suite.rounds, "processes": suite.processes}
    if machine.target.kind != suite.kind:
        raise AgentCompileError(
            f"--suite {suite.name}: is for {suite.kind}, --target {target} is not", hint="name another"
        )
    cases = _cases(suite, asked, machine, course.cache)
    more = {
        "suite": suite.name,
        "seconds": f"{asked.seconds:g}",
        "llama-python": asked.llama_python or "",
        "vllm-python": asked.vllm_python or "",
    }
    jobs = [WorkloadJob(workload=case.workload, arms=suite.arms) for case in cases]
    with course.partial(jobs, more, **counts, lock=asked.lock) as file:

        def find_all(setup: Setup, evaluator: WorkerEvaluator) -> Found:
            for case in cases:
                known, count = file.progress(case.workload.name), suite.rounds * suite.processes
                if asked.retry_failed:
                    known.forget_failures(count)
                if gone := known.forget_others(setup.machine, count):
                    say(f"{case.workload.name}: {gone} rounds are another machine's: the case begins anew on this one")
            caches = machine.target.cache_bytes
            locks = Locks(
                suite=suite, setup=setup, file=file, given=asked.lock, seconds=asked.seconds, cache_bytes=caches
            )
            return find(cases, suite, locks, evaluator.ceiling())

        found = course.found(
            file,
            find_all,
            cases=len(cases),
            **counts,
            llama_python=asked.llama_python,
            vllm_python=asked.vllm_python,
            calm=calm,
            joules=Meter(machine.device, visible_devices()).joules if machine.device != "cpu" else lambda: None,
            machine=host(machine.device),
        )
        if found is None:
            return ExitCode.UNDECIDED
        widest, effects = widened(found.cases)
        result, beside = course.write(
            file, widest, found.samples, suite=suite.name, policy=protocol(), compiled=found.compiled, luck=effects
        )
        file.remove()
    print("\n".join(_table(result.cases)))
    say(f"wrote {asked.out} and {beside.name}")
    breaches = committed.breaches(result, committed.load_bounds() if asked.bounds or suite.bounds else None)
    for breach in breaches:
        say(f"{_SAID[breach.code]}: {breach.text}")
    say_next(f"agentcompile bench report {quote(str(asked.out))}")
    return committed.worst(breaches)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    read = load_workloads()
    listed = ", ".join(suite.name for suite in read.suite)
    parser = argparse.ArgumentParser(
        prog="agentcompile bench",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=Paragraphs,
    )
    parser.add_argument("--suite", default="cpu", help=f"{listed}: models, workloads and arms, unless named below")
    parser.add_argument("--model", action="append", help=f"repeatable: {', '.join(MAKERS)}")
    parser.add_argument(
        "--workload", action="append", help=f"repeatable: {', '.join(one.name for one in read.workload)}"
    )
    parser.add_argument("--mode", action="append", choices=("greedy", "sampled"), help="repeatable")
    parser.add_argument("--arms", type=lambda text: tuple(text.split(",")), help="names, separated by commas")
    parser.add_argument("--target", default="", help="cpu or cuda:N")
    parser.add_argument("--lock", type=Path, help="time this lock instead of compiling one; needs one model")
    parser.add_argument("--llama-python", type=Path, metavar="PYTHON", help="has llama_cpp, gguf and numpy; see below")
    parser.add_argument("--vllm-python", type=Path, metavar="PYTHON", help="has vLLM; else this one, if it has")
    parser.add_argument("--threads", type=int, help="of every arm on a CPU; one a physical core when not given")
    parser.add_argument("--rounds", type=int, help="of every process")
    parser.add_argument("--processes", type=int, help="fresh ones of every arm, one after another")
    parser.add_argument("--seconds", type=float, default=0, help="that compiling our lock may search (0 = no limit)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the workloads")
    parser.add_argument("--cache", type=Path, help="folder of peers' artefacts, made checkpoints and partial results")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="the JSON file")
    parser.add_argument(
        "--bounds", action="store_true", help="hold the result against the committed bounds, as --suite ci does anyway"
    )
    add_cutting(parser)
    asked = parser.parse_args(arguments)
    if asked.retry_failed and not asked.resume:
        parser.error("--retry-failed: needs --resume")
    return asked


def _suite(asked: argparse.Namespace) -> Suite:
    read = load_workloads()
    suite = read.of(asked.suite)
    for name in asked.model or suite.models:
        if name not in MAKERS:
            raise AgentCompileError(f"--model: {name!r}: no such checkpoint", hint=hint_of(name, list(MAKERS)))
    arms: tuple[str, ...] = asked.arms or suite.arms
    for name in arms:
        if (kind := kind_of(name)) not in _ARMS:
            raise AgentCompileError(f"--arms: {name!r}: no such arm", hint=hint_of(kind, list(_ARMS)))
        if wrong := fault(name):
            raise AgentCompileError(f"--arms: {name!r}: {wrong}", hint="agentcompile=again, agentcompile=slow:0.03")
    if len(set(arms)) < len(arms):
        raise AgentCompileError(f"--arms: {','.join(arms)}: one is named twice", hint="name each once")
    for option in ("llama_python", "vllm_python"):
        python = getattr(asked, option)
        if python is not None and shutil.which(python) is None:
            named = f"--{option.replace('_', '-')}"
            raise AgentCompileError(f"{named}: {python}: is no program", hint="agentcompile bench --help tells more")
    for option in ("rounds", "processes"):
        value = getattr(asked, option)
        if value is not None and value < 1:
            raise AgentCompileError(f"--{option}: {value}: is less than 1", hint="at least 1")
    shapes = [read.shape(name) for name in asked.workload or suite.workloads]
    made = replace(
        suite,
        models=tuple(asked.model or suite.models),
        workloads=tuple(shape.name for shape in shapes),
        modes=tuple(asked.mode or suite.modes),
        arms=arms,
        baseline=suite.baseline if suite.baseline in arms else arms[0],
        rounds=asked.rounds or suite.rounds,
        processes=asked.processes or suite.processes,
        context=max(suite.context, *(shape.prompt + shape.new for shape in shapes)),
    )
    if asked.lock and len(made.models) != 1:
        raise AgentCompileError(
            f"--lock: {asked.lock}: is of one model, not {len(made.models)}", hint="give one --model"
        )
    if asked.lock and (held := read_lock(asked.lock).model.context) < (
        needed := max(shape.prompt + shape.new for shape in shapes)
    ):
        raise AgentCompileError(
            f"--lock: {asked.lock}: its cache holds {held} tokens, and a workload has {needed}",
            hint=f"compile one with --context {needed}, or name shorter workloads with --workload",
        )
    return made


def _cases(suite: Suite, asked: argparse.Namespace, machine: Machine, cache: Path) -> list[Asked]:
    read = load_workloads()
    absent = _absent(suite.arms, machine.device, asked)
    found = []
    for model in suite.models:
        path = MAKERS[model](cache / "presets" / model)
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        for shape in (read.shape(name) for name in suite.workloads):
            held = mean_cache_bytes(config, prompt=shape.prompt, new=shape.new)
            for mode in suite.modes:
                work = workload_of(model, path, shape, mode, seed=asked.seed, kind=suite.kind)
                found.append(Asked(model=model, shape=shape, mode=mode, workload=work, absent=absent, cache_bytes=held))
    return found


def _absent(arms: Sequence[str], device: str, asked: argparse.Namespace) -> dict[str, str]:
    found = {}
    for name in arms:
        if kind_of(name) == LLAMA and asked.llama_python is None:
            found[name] = NO_LLAMA
        if kind_of(name) == VLLM and (reason := vllm_lacks(device, asked.vllm_python)):
            found[name] = reason
    return found


def _table(cases: Sequence[Case]) -> list[str]:
    rows = []
    for case in cases:
        for arm in case.arms:
            times = "-" if arm.times_floor is None else f"{arm.times_floor:.2f}"
            rate = "-" if arm.tokens_per_s is None else f"{arm.tokens_per_s:.1f}"
            first = "-" if arm.first_s is None else f"{arm.first_s.median * 1e3:.1f}"
            gains = (arm.total_speedup, arm.speedup)
            beside = ("-" if one is None else f"{one.value:.2f} ({one.low:.2f} … {one.high:.2f})" for one in gains)
            note = f"fp32: {case.reference}" if case.reference else ""
            note = note_of(arm.away or note, same=arm.same)
            rows.append((f"{case.workload} {case.mode}", arm.name, rate, first, times, *beside, note))
    heads = (
        "workload",
        "arm",
        "tokens/s",
        "first token, ms",
        "× roofline",
        "request, × baseline",
        "token, × baseline",
        "note",
    )
    return columns(Table(heads=heads, rows=rows, right=(2, 3, 4)))
