"""One run of the ladder: the rungs' locks, the rounds of all rungs, and the gain of each over the one below it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentcompile.capture.cached import load_model
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.region import Regime
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.trial import Rule
from agentcompile.lockfile.files import read_lock
from agentcompile.options import resolve
from agentcompile.regions.partition import partition
from agentcompile.tuning.partitions import graph_of

from ..harness.found import Samples, case_of
from ..harness.looks import Looked
from ..harness.rates import speedup
from ..harness.result import Case, Gain, Rung
from ..harness.serving import own_command
from ..harness.times import Build
from ..harness.trial import LEAST_S, Outcome, Setup, run_trial
from ..harness.workload import Workload, mean_cache_bytes
from ..harness.workloads import Shape
from . import insides
from .gains import gain, shares
from .locks import Locks
from .rungs import RungSpec

CONTEXT = 512
"""The least number of tokens in a lock's KV cache, as many as one plan serves on a GPU."""


def context_of(workload: Workload) -> int:
    """Return the tokens of the locks' KV caches: at most the model's maximum, and at least what the workload needs."""
    config = json.loads((workload.model / "config.json").read_text(encoding="utf-8"))
    needed = len(workload.ids) + workload.new
    return max(needed, min(max(CONTEXT, workload.context), int(config.get("max_position_embeddings", CONTEXT))))


def command_of(name: str, build: Build | None, setup: Setup) -> list[str]:
    """Return the command that starts the process of a rung or of the reference."""
    settings = {"OMP_NUM_THREADS": str(setup.threads), "HF_HUB_OFFLINE": "1"}
    return own_command("ladder.engines", {**settings, **(build.settings if build else {})})


def climb(
    model: str,
    shape: Shape,
    rungs: Sequence[RungSpec],
    workload: Workload,
    locks: Locks,
    ceiling: Ceiling,
    target: Target,
) -> tuple[Case, Samples]:
    """Time `rungs` on a workload, and return the case and its single generations."""
    kind = locks.setup.kind
    outcome = locks.file.progress(workload.name).outcome
    rules: dict[str, Rule] = {rung.name: rung.rule[kind] for rung in rungs if kind in rung.rule}
    builds: dict[str, Build] = {}
    for name, rule in rules.items():
        build = locks.of(rule)
        if build is None:
            outcome.reasons[name] = locks.failure(rule)
        else:
            builds[name] = build
    names = [rung.name for rung in rungs]
    run_trial(names, workload, None, LEAST_S, replace(locks.setup, builds=builds), outcome)
    config = json.loads((workload.model / "config.json").read_text(encoding="utf-8"))
    spent = {name: locks.compile_s(rule) for name, rule in rules.items()}
    case, samples = case_of(
        names,
        model=model,
        workload=shape.name,
        mode="greedy",
        asked=workload,
        outcome=outcome,
        absent={},
        baseline=names[0],
        cache_bytes=mean_cache_bytes(config, prompt=len(workload.ids), new=workload.new),
        ceiling=ceiling,
        cached=workload.token_bytes <= max(target.cache_bytes, default=0),
        compile_s={name: seconds for name, seconds in spent.items() if seconds is not None},
    )
    looked = _covering(outcome.looked, locks)
    return replace(case, rungs=tuple(_rungs(rungs, case, outcome, looked, builds, rules, kind))), samples


def _covering(looked: Mapping[str, Looked], locks: Locks) -> dict[str, Looked]:
    """Add to the sections of hand-written decoders the operators of the captured graph that they replace.

    When the model cannot be captured, the looks with such sections are left out.
    """
    unknown = [one for one in looked.values() if any(not part.covers for part in one.parts)]
    if not unknown:
        return dict(looked)
    try:
        options = resolve({"target": locks.setup.device, "home": str(locks.home) if locks.home else None}).options
        here = this_machine(options)
        captured = load_model(locks.model, locks.context, here.store, here.hashes).captured
    except AgentCompileError as error:  # the times are valid without; the rung's change then owns its gain
        locks.setup.say(f"{locks.name}: the sections of the decoder written by hand have no regions: {error}")
        return {name: one for name, one in looked.items() if one not in unknown}
    regime = Regime(phase="decode", context=(1, locks.context))
    graph, tokens = graph_of(captured, regime, here.target.kind)
    covers = insides.fewest(graph, partition(graph, regime, tokens=tokens))
    return {
        name: replace(
            one, parts=tuple(replace(part, covers=part.covers or covers.get(part.kind, "")) for part in one.parts)
        )
        for name, one in looked.items()
    }


def _rungs(
    rungs: Sequence[RungSpec],
    case: Case,
    outcome: Outcome,
    looked: Mapping[str, Looked],
    builds: Mapping[str, Build],
    rules: Mapping[str, Rule],
    kind: str,
) -> list[Rung]:
    found: list[Rung] = []
    below, below_s = "", 0.0
    for spec in rungs:
        arm, inside = case.arm(spec.name), looked.get(spec.name)
        token_s = arm.token_s.median if arm and arm.state == "measured" and arm.token_s else None
        gained: Gain | None = None
        if token_s is not None and below:
            gained = gain(below, below_s, token_s, looked.get(below), inside, spec.change)
            gained = replace(gained, speedup=speedup(outcome.rounds, spec.name, below))
        kinds, rest = shares(inside) if inside is not None and inside.parts else ((), None)
        build = builds.get(spec.name)
        found.append(
            Rung(
                name=spec.name,
                about=spec.about[kind],
                choose=rules.get(spec.name, ""),
                lock=read_lock(build.lock).content_hash if build else "",
                shares=kinds,
                rest=rest,
                looked=(inside.how or inside.reason) if inside else "not profiled",
                gain=gained,
            )
        )
        if token_s is not None:
            below, below_s = spec.name, token_s
    return found
