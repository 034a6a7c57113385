"""This machine, ready to judge: target, compiler, store, database, and the ceilings it was measured at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentcompile import probe
from agentcompile.build import Toolchain, find_toolchain
from agentcompile.ir.graph import Graph
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.judge import WorkerJudge
from agentcompile.options import Options
from agentcompile.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What every verb that builds or measures needs."""

    target: Target
    toolchain: Toolchain
    store: Store
    hashes: Path
    """Remembers the digests of weight files."""


def this_machine(options: Options) -> Machine:
    """Describe this machine; raises AgentCompileError (environment) when it has no compiler."""
    toolchain = find_toolchain(options.compiler)
    target = probe.probe(toolchain=toolchain.name, threads=options.threads)
    return Machine(
        target=target, toolchain=toolchain, store=Store(options.store), hashes=options.cache / "weights.json"
    )


@contextmanager
def judge_of(machine: Machine, seed: int) -> Iterator[WorkerJudge]:
    """Workers that judge on this machine; they are gone when the block ends."""
    judge = WorkerJudge(machine.target, store=machine.store.root, toolchain=machine.toolchain, seed=seed)
    try:
        yield judge
    finally:
        judge.close()


def ceilings(machine: Machine, judge: WorkerJudge) -> Ceiling:
    """The machine's ceilings, measured once and kept."""
    return probe.ceiling(machine.target, machine.store, judge.ceiling)


def residency(graph: Graph, target: Target) -> Residency:
    """Where a step of `graph` finds its weights. A weight with two readers counts once, a row of a table not."""
    weights = {value.id: value for value in graph.values if value.role == "weight"}
    read = {use.value for node in graph.nodes if node.op != "embedding" for use in node.inputs}
    total = sum(value.nbytes() for id, value in weights.items() if id in read)
    return "dram" if total > max(target.cache_bytes, default=0) else "cache"
