"""The machine that candidates are evaluated on: target, compiler, store, and its measured ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentcompile.backends import BACKENDS, backend_of
from agentcompile.build import Toolchain, find_toolchain, nvrtc_toolchain
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.ir.graph import Graph
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.options import Options, visible_devices
from agentcompile.sandbox import Fence, device_nodes, for_worker, require
from agentcompile.system import probe
from agentcompile.system.store import Store

VISITS = 3
"""The number of fresh processes that measure a host's ceilings."""
_SIGNS_OF_A_GPU = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The parts of a machine that every verb which builds or measures needs."""

    target: Target
    toolchain: Toolchain
    store: Store
    hashes: Path
    """File that keeps the digests of weight files."""
    device: str = "cpu"
    """PyTorch's name of the device: ``cuda:0`` for the first GPU that PyTorch sees."""


def this_machine(options: Options, *, kind: Literal["", "cpu", "cuda"] = "") -> Machine:
    """Describe this machine as a target of `kind`, or as the options want it when `kind` is empty.

    Raises:
        AgentCompileError: the device or its compiler is missing (environment).
    """
    device = _device(options.target, kind)
    toolchain, target = (_gpu if backend_of(device).needs_driver else _host)(device, options)
    store, hashes = Store(options.store), options.cache / "weights.json"
    return Machine(target=target, toolchain=toolchain, store=store, hashes=hashes, device=device)


def device_of(options: Options) -> str:
    """Return the device that the options mean: ``cpu`` or ``cuda:N``; it is not looked at."""
    return _device(options.target, "")


def _host(_: str, options: Options) -> tuple[Toolchain, Target]:
    toolchain = find_toolchain(options.compiler)
    return toolchain, probe.probe(toolchain=toolchain.name, threads=options.threads)


def _gpu(device: str, _: Options) -> tuple[Toolchain, Target]:
    if visible_devices() == "":
        text = f"{device}: CUDA_VISIBLE_DEVICES is empty, which hides every GPU"
        hint = "unset it, or compile for the CPU: --target cpu"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
    toolchain = nvrtc_toolchain()
    return toolchain, probe.probe_cuda(device, toolchain=toolchain.name)


def _device(asked: str, kind: str) -> str:
    """Return ``cpu`` or ``cuda:N``: what is `asked` for, the first of `kind`, or for ``auto`` the first usable GPU."""
    if asked in BACKENDS or ":" in asked:
        return asked if kind in ("", backend_of(asked).kind) else BACKENDS[kind].first
    if kind:
        return BACKENDS[kind].first
    if not any(Path(sign).exists() for sign in _SIGNS_OF_A_GPU) or visible_devices() == "":
        return "cpu"  # without loading PyTorch, which takes a second
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def evaluator_of(
    machine: Machine, seed: int, steering: Steering | None = None, fence: Fence | None = None
) -> WorkerEvaluator:
    """Return the evaluator of this machine; its workers are killed when the block that it opens ends.

    With a `fence` they are confined, and so are compilers.

    Raises:
        AgentCompileError: there is a fence, and nothing can be confined on this machine (environment).
    """
    store, toolchain, device = machine.store.root, machine.toolchain, machine.device
    return WorkerEvaluator(
        machine.target, store=store, toolchain=toolchain, device=device, seed=seed, steering=steering, fence=fence
    )


def fence_of(machine: Machine, scratch: Path) -> Fence:
    """Return the fence of workers that run kernels nobody has read on this machine; `scratch` is an empty folder.

    Raises:
        AgentCompileError: nothing can be confined here, or the folder cannot be made (environment).
    """
    require()
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{scratch}: {error.strerror or error}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="make the folder writable") from error
    devices = device_nodes() if backend_of(machine.device).own_memory else ()
    return for_worker(scratch, devices=devices)


def ceilings(machine: Machine, evaluator: WorkerEvaluator) -> Ceiling:
    """Return the machine's ceilings, measured once and then kept in the store.

    On the host they are the best of `VISITS` processes: where a process's pages fall in a cache that is shared decides
    how fast it reads them.
    """
    visits = 1 if backend_of(machine.device).own_memory else VISITS
    return probe.ceiling(machine.target, machine.store, lambda: best([evaluator.ceiling() for _ in range(visits)]))


def best(measured: Sequence[Ceiling]) -> Ceiling:
    """Return the highest rates of several measurements; they are calm when one of those was."""
    return Ceiling(
        dram_bytes_per_s=max(one.dram_bytes_per_s for one in measured),
        cache_bytes_per_s=max(one.cache_bytes_per_s for one in measured),
        flops_per_s=max(one.flops_per_s for one in measured),
        calm=any(one.calm for one in measured),
    )


def residency(graph: Graph, target: Target) -> Residency:
    """Return where a step of `graph` reads its weights from: `dram` when they exceed the largest cache, else `cache`.

    A weight with several readers counts once; an embedding table, of which a step reads a row, does not count.
    """
    weights = {value.id: value for value in graph.values if value.role == "weight"}
    read = {use.value for node in graph.nodes if node.op != "embedding" for use in node.inputs}
    total = sum(value.nbytes() for id, value in weights.items() if id in read)
    return "dram" if total > max(target.cache_bytes, default=0) else "cache"
