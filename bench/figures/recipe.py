"""`agentcompile bench figures`: every CPU figure in one run, as a table and as one JSON file."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from agentcompile.lockfile import read_lock
from agentcompile.machine import judge_of, this_machine
from agentcompile.options import Options, resolve

from ..models.locate import MAKERS
from .record import Part, arm_rows, choices_of, figures_of, import_figure, record, revision
from .report import arm_table, figure_table
from .serving import own_command
from .times import Build, Took, compile_once, first_token, import_time, replay_once
from .trial import LLAMA, OURS, Setup, run_trial
from .workload import Workload, make_workload

_ON_GPU = ("hf-eager", "hf-reduce-overhead", "static-reduce-overhead", "static-max-autotune", OURS)
ARMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cpu": {
        "sample": ("hf-eager", "hf-compile", "max-autotune", LLAMA, OURS),
        "qwen3-0.6b": ("hf-eager", "hf-compile", LLAMA, OURS),
    },
    "cuda": {"qwen3-1.7b": _ON_GPU, "qwen3-4b": _ON_GPU, "llama-3.2-1b": _ON_GPU},
}
"""By kind of device and checkpoint."""
LEAST_S: Mapping[str, float] = {"sample": 0.5, "qwen3-0.6b": 0.0}
"""How long a visit generates at least, in seconds: a generation of the small model is shorter than a scheduler's slice.
On a GPU every visit has several."""
_GPU_LEAST_S = 0.5
RESULT = Path(__file__).resolve().parents[1] / "results" / "cpu-figures.json"


def run(arguments: Sequence[str]) -> int:
    """Run the recipe with its own arguments. Returns 0, also when a figure falls short: the table says so."""
    asked = _parse(arguments)
    options = resolve({"threads": asked.threads, "target": asked.target}).options
    machine = this_machine(options)
    cache = asked.cache or options.cache / "figures"
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="figures."))
    parts: list[Part] = []
    begun = revision()
    try:
        imported = import_time()
        _say(f"import agentcompile: {imported.median_ms:.1f} ms")
        with judge_of(machine, asked.seed) as judge:
            setup = Setup(
                threads=machine.target.threads if machine.device == "cpu" else os.cpu_count() or 1,
                device=machine.device,
                rounds=asked.rounds,
                processes=asked.processes,
                seed=asked.seed,
                cache=cache,
                logs=work,
                llama_python=asked.llama_python,
                quiet=_quiet(asked.quiet),
                bandwidth=lambda: judge.ceiling().dram_bytes_per_s,
                say=_say,
            )
            parts = [_measure(name, asked, setup) for name in asked.model]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    figures = [*(figure for part in parts for figure in figures_of(part)), import_figure(imported)]
    print("\n".join(arm_table([row for part in parts for row in arm_rows(part)])), end="\n\n")
    print("\n".join(figure_table(figures)))
    written = record(parts, figures, imported, machine.target, arguments, begun)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _say(f"wrote {asked.out}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentcompile bench figures", description=__doc__)
    known = sorted({name for models in ARMS.values() for name in models})
    parser.add_argument("--target", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--model", action="append", choices=known, help="repeatable; all when not given")
    parser.add_argument("--arms", type=lambda text: tuple(text.split(",")), help="names, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULT, help="the JSON file")
    parser.add_argument("--lock", type=Path, help="time this lock instead of compiling one; needs one --model")
    parser.add_argument("--llama-python", type=Path, metavar="PYTHON", help="has llama_cpp, gguf and numpy")
    parser.add_argument("--threads", type=int, help="of every arm; one a physical core when not given")
    parser.add_argument("--rounds", type=int, default=5, help="of every process")
    parser.add_argument("--processes", type=int, default=3, help="fresh ones of every arm, one after another")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="where peers' compiled artefacts and made checkpoints lie")
    parser.add_argument("--quiet", type=Path, metavar="FILE", help="lock this file while something is timed")
    asked = parser.parse_args(arguments)
    here = ARMS["cpu" if asked.target == "cpu" else "cuda"]
    asked.model = asked.model or sorted(here, reverse=True)
    if foreign := sorted(set(asked.model) - set(here)):
        parser.error(f"--model: {', '.join(foreign)}: on {asked.target}: {', '.join(sorted(here))}")
    arms = {arm for names in here.values() for arm in names}
    if unknown := set(asked.arms or ()) - arms:
        parser.error(f"--arms: {', '.join(sorted(unknown))}: allowed: {', '.join(sorted(arms))}")
    if asked.lock and len(asked.model) != 1:
        parser.error("--lock: needs exactly one --model")
    return asked


def _measure(name: str, asked: argparse.Namespace, setup: Setup) -> Part:
    model = MAKERS[name](setup.cache / "presets" / name)
    workload = make_workload(name, model, seed=asked.seed, kind=setup.kind)
    arms = tuple(arm for arm in ARMS[setup.kind][name] if not asked.arms or arm in asked.arms)
    build: Build | None = None
    times: dict[str, Took] = {}
    if asked.lock:
        build = Build(model=model, lock=asked.lock.resolve(), home=None, threads=setup.threads, target=setup.device)
    elif OURS in arms:
        build, times = _compile(workload, setup)
    if build is not None:
        workload = _with_cache_of(workload, build.lock)
    least_s = LEAST_S[name] if setup.kind == "cpu" else _GPU_LEAST_S
    outcome = run_trial(arms, workload, build, least_s, setup)
    if OURS in outcome.reasons and (failed := times.get("first compile")) and failed.reason:
        outcome.reasons[OURS] = f"compile: {failed.reason}"
    choices = choices_of(build.lock) if build else {}
    part = Part(workload=workload, arms=arms, outcome=outcome, times=times, choices=choices)
    if name == "sample" and OURS in arms:
        _accuracy(part, build, setup)
    return part


def _with_cache_of(workload: Workload, lock: Path) -> Workload:
    """With the bytes of the cache that this lock has, which may be for more tokens or sequences than by default."""
    read = read_lock(lock)
    seats = max((plan.batch for plan in read.plan), default=1)
    return replace(workload, cache_bytes=workload.cache_bytes // Options().context * read.model.context * seats)


def _compile(workload: Workload, setup: Setup) -> tuple[Build | None, dict[str, Took]]:
    """Compile with nothing stored, again with everything stored, replay, and generate; each in its own process."""
    folder = setup.logs / workload.name
    (folder / "home").mkdir(parents=True)
    build = Build(
        model=workload.model,
        lock=folder / "first.lock.toml",
        home=folder / "home",
        threads=setup.threads,
        target=setup.device,
    )
    steps: dict[str, Callable[[], Took]] = {
        "first compile": lambda: compile_once(build, build.lock),
        "replay": lambda: replay_once(build),
    }
    if setup.kind == "cpu":
        steps["second compile"] = lambda: compile_once(build, folder / "second.lock.toml")
    if (workload.model / "tokenizer.json").is_file():
        steps["replay to first token"] = lambda: first_token(build)
    times: dict[str, Took] = {}
    for name, step in steps.items():
        with setup.quiet():
            times[name] = step()
        _say(f"{workload.name}: {name}: {times[name].reason or f'{times[name].seconds:.1f} s'}")
        if not build.lock.is_file():
            break
    return build if build.lock.is_file() else None, times


def _accuracy(part: Part, build: Build | None, setup: Setup) -> None:
    if build is None:
        part.accuracy_reason = "there is no lock"
        return
    request = json.dumps({"model": str(build.model), "lock": str(build.lock), "threads": setup.threads})
    command = [*own_command("accuracy", build.settings), request]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if ran.returncode == 0:
        part.accuracy = json.loads(ran.stdout.splitlines()[-1])
    else:
        said = [line for line in ran.stderr.splitlines() if line.strip()]
        part.accuracy_reason = f"exit code {ran.returncode}: {said[-1] if said else ''}"


def _quiet(path: Path | None) -> Callable[[], AbstractContextManager[object]]:
    """Whoever else works on the machine and honours the file's lock stands aside while something is timed."""
    if path is None:
        return nullcontext

    @contextmanager
    def held() -> Iterator[None]:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return held


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
