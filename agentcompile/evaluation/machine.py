"""This machine, ready to judge: target, compiler, store, database, and the ceilings it was measured at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentcompile.build import Toolchain, find_toolchain, nvrtc_toolchain
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.ir.graph import Graph
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.options import Options, visible_devices
from agentcompile.system import probe
from agentcompile.system.store import Store

_SIGNS_OF_A_GPU = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What every verb that builds or measures needs."""

    target: Target
    toolchain: Toolchain
    store: Store
    hashes: Path
    """Remembers the digests of weight files."""
    device: str = "cpu"
    """``cuda:0`` for the first GPU that PyTorch sees."""


def this_machine(options: Options, *, kind: Literal["", "cpu", "cuda"] = "") -> Machine:
    """Describe this machine, as a target of `kind` when one is given, else as the options want it.

    Raises AgentCompileError (environment) when the device or its compiler is not there.
    """
    device = _device(options.target, kind)
    if device == "cpu":
        toolchain = find_toolchain(options.compiler)
        target = probe.probe(toolchain=toolchain.name, threads=options.threads)
    else:
        if visible_devices() == "":
            raise AgentCompileError(
                f"{device}: CUDA_VISIBLE_DEVICES is empty, which hides every GPU",
                exit_code=ExitCode.ENVIRONMENT,
                hint="unset it, or compile for the CPU: --target cpu",
            )
        toolchain = nvrtc_toolchain()
        target = probe.probe_cuda(device, toolchain=toolchain.name)
    store, hashes = Store(options.store), options.cache / "weights.json"
    return Machine(target=target, toolchain=toolchain, store=store, hashes=hashes, device=device)


def _device(asked: str, kind: str) -> str:
    """``cpu`` or ``cuda:N``. With `auto` a GPU is taken where there is one that can be used."""
    if kind == "cpu" or (asked == "cpu" and not kind):
        return "cpu"
    if asked.startswith("cuda"):
        return asked
    if kind == "cuda":
        return "cuda:0"
    if not any(Path(sign).exists() for sign in _SIGNS_OF_A_GPU) or visible_devices() == "":
        return "cpu"  # without loading PyTorch, which takes a second
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


@contextmanager
def evaluator_of(machine: Machine, seed: int, steering: Steering | None = None) -> Iterator[WorkerEvaluator]:
    """Workers that judge on this machine; they are gone when the block ends."""
    judge = WorkerEvaluator(
        machine.target,
        store=machine.store.root,
        toolchain=machine.toolchain,
        device=machine.device,
        seed=seed,
        steering=steering,
    )
    try:
        yield judge
    finally:
        judge.close()


def ceilings(machine: Machine, judge: WorkerEvaluator) -> Ceiling:
    """The machine's ceilings, measured once and kept."""
    return probe.ceiling(machine.target, machine.store, judge.ceiling)


def residency(graph: Graph, target: Target) -> Residency:
    """Where a step of `graph` finds its weights. A weight with two readers counts once, a row of a table not."""
    weights = {value.id: value for value in graph.values if value.role == "weight"}
    read = {use.value for node in graph.nodes if node.op != "embedding" for use in node.inputs}
    total = sum(value.nbytes() for id, value in weights.items() if id in read)
    return "dram" if total > max(target.cache_bytes, default=0) else "cache"
