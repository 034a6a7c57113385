"""`agentcompile ablate MODEL… --strategies "halving;mcts@none" --seeds N`: strategies and advisers in real compiles.

In: checkpoints, arms (STRATEGY, or STRATEGY@ADVISER), seeds, and what a compile may spend. Every arm compiles every
model with every seed by the command line, in folders of its own, in an order that is drawn anew for each seed; then the
steps of all locks of a model and a seed are timed beside one another. Out: a table, and with `--out FILE.json` the
result, written after every seed, with the curves as FILE.png and FILE.svg; the same command goes on from it.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import agentcompile
from agentcompile import search
from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import evaluator_of, this_machine
from agentcompile.evaluation.step_clock import POSITION, StepClock
from agentcompile.events import Event
from agentcompile.ir.codec import encode
from agentcompile.ir.program import Program
from agentcompile.ir.region import Regime
from agentcompile.measure import POLICY, Timing, contrast
from agentcompile.options import resolve
from agentcompile.replay.open import OpenedLock, open_lock
from agentcompile.runs.progress import TIMED
from agentcompile.runs.session import RunDirectory
from agentcompile.runs.tables import Table, duration

from ..harness.records import nameless, revision
from ..harness.times import command_of
from .compiles import (
    FORMAT,
    MARKS,
    Arm,
    Compile,
    Compiles,
    TimedStep,
    overhead_of,
    progress_of,
    standings,
    timed_beside,
)
from .files import figure, read_result, write_beside, write_result

_LIMIT_S = 3600.0
_MOST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a study compiles, and what each compile may spend."""

    models: tuple[Path, ...]
    arms: tuple[Arm, ...]
    seeds: int
    seconds: int = 0
    """Of search and step tuning; 0: no limit."""
    trials: int = 0
    """Of the search; 0: the default of `compile`."""
    flags: Mapping[str, str] = field(default_factory=dict[str, str])
    """More flags of `compile` by name: context, threads, target."""
    out: Path | None = None
    words: tuple[str, ...] = ()
    """The words of the command line, for the record."""


def arms_of(texts: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms of texts such as ``halving;mcts@none``; the adviser is the heuristic where none is named.

    Raises:
        AgentCompileError: there is no such strategy, or no arm at all (usage).
    """
    names = [name.strip() for text in texts for name in text.split(";")]
    arms = []
    for name in dict.fromkeys(name for name in names if name):
        strategy, _, adviser = name.partition("@")
        search.strategy_of(strategy)
        arms.append(Arm(strategy=strategy, adviser=adviser or "heuristic"))
    if not arms:
        raise AgentCompileError("--strategies: names no strategy", hint='--strategies "halving;evolutionary@none"')
    return tuple(arms)


def run(request: Request, *, as_json: bool = False) -> int:
    """Compile, time, write and print; return an exit code.

    Raises:
        AgentCompileError: a model is missing (usage), or the result cannot be read or written.
    """
    for name, value, least in (
        ("--seeds", request.seeds, 1),
        ("--seconds", request.seconds, 0),
        ("--budget", request.trials, 0),
    ):
        if not least <= value <= _MOST:
            raise AgentCompileError(f"{name}: {value} is not between {least} and {_MOST}", hint=f"{name} 3 is a number")
    for model in request.models:
        if not (model / "config.json").is_file():
            raise AgentCompileError(f"{model}: no checkpoint: it has no config.json", hint="name a checkpoint's folder")
    begun = _begun(request)
    result = _resumed(begun, request.out)
    for model in request.models:
        for seed in range(request.seeds):
            done = {one.arm for one in result.compiles if (one.model, one.seed) == (model.name, seed)}
            if done >= set(result.arms):
                continue
            kept = [one for one in result.compiles if (one.model, one.seed) != (model.name, seed)]
            group = _group(request, model, seed)
            result = replace(result, compiles=(*kept, *group))
            if request.out is not None:
                write_result(result, request.out)
    return show(result, request.out, as_json=as_json)


def show(result: Compiles, out: Path | None, *, as_json: bool) -> int:
    """Print a result; with `out` write it there with its figure beside it. Return an exit code.

    Raises:
        AgentCompileError: a file cannot be written (environment).
    """
    if out is not None:
        from .compile_curves import draw

        write_result(result, out)
        write_beside(out, figure(lambda: draw(result), _say))
    print(json.dumps(encode(result), indent=1) if as_json else "\n".join(report(result)))
    return ExitCode.OK


def _begun(request: Request) -> Compiles:
    about = revision()
    return Compiles(
        command=" ".join(["agentcompile", "ablate", *nameless(request.words)]),
        version=agentcompile.__version__,
        revision=about["revision"],
        changed_since=about["changed_since"],
        machine=this_machine(resolve(dict(request.flags)).options).target,
        seconds=request.seconds,
        trials=request.trials,
        arms=tuple(arm.name for arm in request.arms),
    )


def _group(request: Request, model: Path, seed: int) -> list[Compile]:
    """Compile a model under every arm with one seed, and time the steps of the locks beside one another."""
    order = list(request.arms)
    random.Random(f"order of arms {seed}").shuffle(order)
    with tempfile.TemporaryDirectory(prefix="ablate-") as name:
        folders = {arm.name: Path(name) / str(at) for at, arm in enumerate(request.arms)}
        made = {arm.name: _compiled(request, model, arm, seed, folders[arm.name]) for arm in order}
        group = [made[arm.name] for arm in request.arms]
        locks = {one.arm: folders[one.arm] / "made.lock.toml" for one in group if not one.failure}
        steps = _timed(locks, model, request, seed) if locks else dict[str, TimedStep]()
    return timed_beside(group, steps)


def _compiled(request: Request, model: Path, arm: Arm, seed: int, folder: Path) -> Compile:
    _say(f"{model.name}, seed {seed}: {arm.name}")
    flags = {
        "strategy": arm.strategy,
        "advisor": arm.adviser,
        "seed": str(seed),
        "out": str(folder / "made.lock.toml"),
        "run-dir": str(folder / "run"),
        **({"seconds": str(request.seconds)} if request.seconds else {}),
        **({"budget": str(request.trials)} if request.trials else {}),
        **request.flags,
    }
    folder.mkdir(parents=True)
    words = ["compile", str(model), "--json", "--quiet", *(word for key in flags for word in (f"--{key}", flags[key]))]
    command = command_of("agentcompile", {"AGENTCOMPILE_HOME": str(folder / "home")})
    begin = time.monotonic()
    try:
        ran = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        failure = "" if ran.returncode == 0 else f"exit {ran.returncode}: {' '.join(ran.stderr.split())[-300:]}"
    except subprocess.TimeoutExpired:
        failure = f"not finished after {_LIMIT_S:g} s"
    took_s = time.monotonic() - begin
    events = _events(folder / "run")
    progress, used = progress_of(events)
    overhead_s, overhead_share = overhead_of(events, took_s)
    made = Compile(
        model=model.name, arm=arm.name, seed=seed, seconds=round(took_s, 1), searched_s=_searched_s(folder / "run"),
        trials=max((one.trials for one in progress), default=0), progress=progress, used=used, failure=failure,
        overhead_s=overhead_s, overhead_share=overhead_share,
    )  # fmt: skip
    _say(f"  {made.failure or f'{took_s:.0f} s, {made.trials} candidates'}")
    return made


def _events(run: Path) -> list[Event]:
    return list(RunDirectory.open(run).events()) if run.is_dir() else []


def _searched_s(run: Path) -> float:
    stages = RunDirectory.open(run).state().stages if run.is_dir() else ()
    return round(sum(row.seconds or 0.0 for row in stages if row.stage in TIMED), 1)


def _timed(locks: Mapping[str, Path], model: Path, request: Request, seed: int) -> dict[str, TimedStep]:
    """Time the decode steps of the locks beside one another; return what was found by arm."""
    first = next(iter(locks))
    homes = {arm: lock.parent / "home" for arm, lock in locks.items()}
    opened = {
        arm: open_lock(lock, resolve({**request.flags, "model": str(model), "home": str(homes[arm])}).options)
        for arm, lock in locks.items()
    }
    sources = {job.source.digest: job.source for one in opened.values() for job in one.jobs}
    here, (at, _) = opened[first].here, _serving(opened[first])
    with evaluator_of(here, seed) as evaluator:
        clock = StepClock(here, evaluator, opened[first].model, lambda: sources)
        timing = clock(
            [(arm, _serving(one)[1]) for arm, one in opened.items()],
            at=at,
            rounds=POLICY.confirm_rounds,
            processes=POLICY.confirm_processes,
            claim=POLICY.claim,
            seed=seed,
        )
    if not isinstance(timing, Timing):
        _say(f"  the steps could not be timed: {timing}")
        return {}
    found: dict[str, TimedStep] = {}
    for arm, name in enumerate(opened):
        if arm not in timing.live:
            continue
        ratio: tuple[float | None, float | None] = (None, None)  # without a lock of the first arm there is nothing
        if name == request.arms[0].name:
            ratio = (0.0, 0.0)
        elif first == request.arms[0].name and 0 in timing.live:
            beside = contrast(timing, arm, 0, claim=POLICY.claim)
            ratio = (beside.log_ratio, beside.half_width)
        found[name] = TimedStep(timing.median_ns(arm), *ratio)
    return found


def _serving(opened: OpenedLock) -> tuple[Regime, Program]:
    """Return the decode plan of one sequence that serves `POSITION`, the last one where none does."""
    return next((one for one in opened.alone if one[0].context[1] > POSITION), opened.alone[-1])


def _resumed(begun: Compiles, out: Path | None) -> Compiles:
    """Return `begun` with the compiles that the file of an earlier run of the same study has.

    Raises:
        AgentCompileError: the file holds another study (usage).
    """
    if out is None or not out.exists():
        return begun
    old = read_compiles(out)
    if (old.arms, old.seconds, old.trials, old.machine) != (begun.arms, begun.seconds, begun.trials, begun.machine):
        hint = "name another --out, or the arms, --seconds, --budget and machine that it was begun with"
        raise AgentCompileError(f"{out}: holds compiles of another study", hint=hint)
    _say(f"{out}: {len(old.compiles)} compiles are taken over")
    return replace(begun, compiles=old.compiles)


def read_compiles(path: Path) -> Compiles:
    """Read a result file.

    Raises:
        AgentCompileError: it cannot be read, is no such result, or has a newer format (usage).
    """
    hint = "name a file that `agentcompile ablate MODEL --strategies … --out` wrote, or one that does not exist yet"
    return read_result(path, Compiles, "compiles", newest=FORMAT, hint=hint)


def report(result: Compiles) -> list[str]:
    """Return the lines that show a result: per model a row for each arm."""
    counts = ("trials", "seconds", "overhead", "calls", "tokens", "break-even")
    heads = ("model", "arm", "compiles", "step", "speed-up", "95 %", *counts)
    marks = tuple(f"after {mark}" for mark in MARKS)
    rows = []
    for one in standings(result):
        told = f"{one.compiles}" + (f", {one.failed} failed" if one.failed else "")
        known, beside = one.failed < one.compiles, one.speedup > 0
        after = [duration(ns) if ns < float("inf") else "-" for ns in one.after]
        rows.append(
            (
                one.model,
                one.arm,
                told,
                duration(one.step_ns) if known else "-",
                f"{one.speedup:.3f}×" if beside else "-",
                f"{one.low:.3f}–{one.high:.3f}" if beside and one.high < float("inf") else "-",
                f"{one.trials:g}",
                f"{one.seconds:.0f}",
                "-" if one.overhead_share is None else f"{one.overhead_share:.1%}",
                f"{one.calls}",
                f"{one.tokens}",
                _pays(one.break_even),
                *after,
            )
        )
    limit = f"{result.seconds} s" if result.seconds else "no limit of time"
    under = (
        f"speed-up over {result.arms[0]} in the same rounds; each search: {limit}; overhead: the share of a compile "
    )
    under += (
        "that search and step tuning took beside building, validating and timing; break-even: the generated tokens "
    )
    under += f"after which a longer compile than that of {result.arms[0]} is paid back"
    right = tuple(range(2, len(heads) + len(marks)))
    return [*columns(Table(heads=(*heads, *marks), rows=rows, right=right)), under]


def _pays(tokens: float) -> str:
    if math.isnan(tokens):
        return "-"
    return "never" if math.isinf(tokens) else f"{tokens:,.0f}"


def _say(text: str) -> None:
    print(f"ablate: {text}", file=sys.stderr, flush=True)
