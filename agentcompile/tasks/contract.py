"""The contract of a task: its own PyTorch text as the specification, its tensors as ports, and the bars to pass.

In: a loaded task, a target, the machine's ceilings and PyTorch's times. Out: a `Region` that stands for the task, so
that the same catalog, checks and builders serve it, and a `Contract` in the shape of a region's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Contract, Times, WrittenLanguage
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.graph import ITEM_BYTES, Graph, Node, Role, Use, Value
from agentcompile.ir.kind import KindFacts, PortFacts
from agentcompile.ir.region import Access, Cost, Port, PortRole, Regime, Region
from agentcompile.ir.scope import constants_of
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.refine.calling import calling, forbidden, manifest
from agentcompile.refine.machine import machine, rates
from agentcompile.tasks.demands import magnitudes, preconditions, tolerance
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.rotation import FEW_SETS, LARGE_BYTES, SETS
from agentcompile.tasks.wire import Loaded, Signature, TensorFact, TensorRole

_ROLES: dict[TensorRole, PortRole] = {"input": "activation", "parameter": "weight", "output": "output"}
_VALUES: dict[TensorRole, Role] = {"input": "activation", "parameter": "weight", "output": "activation"}


def region_of(task: LoadedTask, shape: int = 0) -> Region:
    """Return the region that stands for a task at one of its shapes: one operator, whose meaning is the file's text."""
    told, signature = task.told, task.told.signatures[shape]
    ports = tuple(_port(one) for one in signature.tensors)
    sources = tuple(one.name for one in signature.of("input", "parameter"))
    made = tuple(one.name for one in signature.of("output"))
    node = Node(
        id="task",
        op="task",
        inputs=tuple(Use(value=name) for name in sources),
        outputs=made,
        attrs=(
            ("text", digest("task/1", told.text)),
            *((name, value if math.isfinite(value) else str(value)) for name, value in signature.numbers),
        ),
    )
    values = tuple(
        Value(id=one.name, shape=one.shape, dtype=one.dtype, role=_VALUES[one.role], name=one.name)
        for one in signature.tensors
    )
    body = Graph(
        phase="decode",
        values=values,
        nodes=(node,),
        inputs=sources,
        outputs=tuple((name, Use(value=name)) for name in made),
    )
    return Region(
        kind=task.kind,
        regime=Regime(phase="decode"),
        body=body,
        ports=ports,
        dims=tuple(_dims(signature)),
        constants=signature.numbers,
        stated=True,
        cost=_cost(told, signature),
    )


def facts_of(region: Region) -> KindFacts:
    """Return the interface of the region as the catalog sees it."""
    return KindFacts(
        name=region.kind,
        ports=tuple(PortFacts(family=port.name, role=port.role, access=port.access) for port in region.ports),
        dims=("tokens", *(name for name, _ in region.dims)),
        constants=tuple(name for name, _ in region.constants),
    )


def floors_ns(told: Loaded, ceiling: Ceiling, residency: Residency) -> tuple[float, float]:
    """Return the least times that bytes and FLOPs allow.

    That of the bytes holds for every right kernel. A kernel with a better algorithm may need fewer FLOPs than the text
    of the task spends.
    """
    by_bytes = ceiling.floor_ns(flops=0, bytes=told.touched_bytes, residency=residency)
    return by_bytes, ceiling.floor_ns(flops=told.flops, bytes=0, residency=residency)


def contract_of(
    task: LoadedTask,
    language: WrittenLanguage,
    target: Target,
    ceiling: Ceiling,
    times: Times,
    baseline: Json,
    *,
    processor: Mapping[str, Json] | None = None,
    core_mhz: int | None = None,
) -> Contract:
    """Return what a kernel for a task must do, and the bars to pass.

    `processor` is the system's report on a CPU, `core_mhz` its clock. Nothing that was measured is in its interface,
    so that a session which goes on later asks the same questions.

    Raises:
        AgentCompileError: kernels in that language do not run on that target (usage).
    """
    language_for(task.path, language, target)
    told, signature, region = task.told, task.told.signatures[0], region_of(task)
    backend = backend_of(target.kind)
    unit = backend.unit if backend.own_memory else "worker threads"
    residency = residency_of(region, target)
    by_bytes, by_flops = floors_ns(told, ceiling, residency)
    interface: dict[str, Json] = {
        "region": {
            "kind": region.kind,
            "file": task.path.name,
            "dims": dict(region.dims),
            "scalars": dict(region.constants),
            "flops": told.flops,
            "bytes": region.cost.bytes,
            "bytes_needed": told.touched_bytes,
            "about": "flops: of products, convolutions and attention, other operators are not counted; bytes: of all "
            "ports; bytes_needed: of those elements that decide the outputs, and of the outputs",
        },
        "definition": told.text,
        "definition_note": "the text is the specification: Model(*get_init_inputs()).eval() under "
        "torch.inference_mode(), called with the inputs; everything that its forward reads is a port",
        "ports": [_told(one) for one in signature.tensors],
        "roles": dict(_ROLE_WORDS),
        "preconditions": preconditions(told),
        "magnitudes": magnitudes(told),
        "tolerance": tolerance(told, signature),
        "launch": calling(region, language, target),
        "timing": _timing(region, target),
        "manifest": _manifest(region, language),
        "names": {
            "values": dict(constants_of(region, target)),
            "about": "names that expressions and kernels may read, beside parameters; NAME_d0 is the first extent of "
            f"port NAME; `threads` are {unit}; also isa_X, as in the head of the program",
        },
        "forbidden": forbidden(language),
        "machine": machine(target, processor or {}),
        "baseline": "the incumbent is the fastest of PyTorch as it is and torch.compile",
    }
    measured = rates(ceiling, flops=told.flops, nbytes=told.touched_bytes, residency=residency, core_mhz=core_mhz)
    return Contract(
        region=region.id,
        kind=region.kind,
        language=language,
        interface=interface,
        # A ceiling taken on a busy machine is too low: a session would end at a floor that is none.
        floor_ns=max(by_bytes, by_flops) if ceiling.calm else 0.0,
        reference_ns=times.reference_ns,
        incumbent_ns=times.incumbent_ns,
        measured=measured | {"baseline": baseline},
    )


def language_for(path: Path, language: WrittenLanguage | None, target: Target) -> WrittenLanguage:
    """Return the language of kernels for a task: the one that was asked for, or the target's usual one.

    Raises:
        AgentCompileError: kernels in that language do not run on that target (usage).
    """
    known = backend_of(target.kind).languages
    if language is not None and language not in known:
        text = f"{path}: kernels in {language} do not run on {target.kind}"
        raise AgentCompileError(text, hint=f"languages of this target: {', '.join(known)}")
    return language or known[0]


def _manifest(region: Region, language: WrittenLanguage) -> Json:
    """Return what a manifest takes, without what says nothing of a task."""
    found = manifest(region, language)
    answer, keys = found["answer"], found["keys"]
    assert isinstance(answer, dict)
    assert isinstance(keys, dict)
    shown: list[dict[str, Json]] = [{k: v for k, v in one.items() if k not in _IDLE} for one in (answer, keys)]
    return found | {"answer": shown[0], "keys": shown[1]}


def _timing(region: Region, target: Target) -> Json:
    """Return how a kernel is timed: what a launch finds in which cache follows from the numbers."""
    shared = sum(port.numel * ITEM_BYTES[port.dtype] for port in region.ports if port.role == "weight")
    how, beside = _ON_DEVICE if backend_of(target.kind).own_memory else _ON_HOST
    return {
        "sets": SETS if region.cost.bytes <= LARGE_BYTES else FEW_SETS,
        "bytes_a_set": region.cost.bytes - shared,
        "bytes_shared": shared,
        "about": f"{how}. They walk over `sets` sets of inputs, outputs and workspaces, one a launch, in turn; "
        "parameters (bytes_shared) are the same in all. There are "
        f"{SETS} sets, and {FEW_SETS} where one, with parameters and workspaces, has more than {LARGE_BYTES >> 20} "
        f"MiB. Rounds of PyTorch's fastest form, {beside}, alternate with them: measured.baseline",
    }


def residency_of(region: Region, target: Target) -> Residency:
    """Return where timed launches find their buffers: in the last cache, where one set of them fits there."""
    return "dram" if region.cost.bytes > max(target.cache_bytes, default=0) else "cache"


def _dims(signature: Signature) -> Iterator[tuple[str, int]]:
    yield from signature.flags
    for one in signature.tensors:
        yield from ((f"{one.name}_d{axis}", extent) for axis, extent in enumerate(one.shape))


def _port(one: TensorFact) -> Port:
    access: Access = "write" if one.role == "output" else "read"
    return Port(name=one.name, role=_ROLES[one.role], access=access, shape=one.shape, dtype=one.dtype)


def _cost(told: Loaded, signature: Signature) -> Cost:
    weights = sum(_nbytes(one) for one in signature.of("parameter"))
    others = sum(_nbytes(one) for one in signature.of("input", "output"))
    return Cost(flops=told.flops, weight_bytes=weights, state_bytes=0, activation_bytes=others)


def _nbytes(one: TensorFact) -> int:
    return math.prod(one.shape) * ITEM_BYTES[one.dtype]


def _told(one: TensorFact) -> Json:
    shape = list(one.shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return {
        "name": one.name,
        "role": _ROLES[one.role],
        "access": "write" if one.role == "output" else "read",
        "dtype": one.dtype,
        "shape": [*shape],
        "strides": [*strides],
        "bytes": _nbytes(one),
        **({"in_the_text": one.source} if one.source else {}),
        **({"same_at_every_call": not one.varies} if one.role == "input" else {}),
    }


_ON_HOST = ("launches back to back in one process, after a warm-up", "with as many threads")
"""How launches are timed, and those of PyTorch."""
_ON_DEVICE = (
    "launches back to back in one process, each batch of them a CUDA graph, replayed after a warm-up between two "
    "events. The device is kept busy until all is queued: nothing of the host is timed, no launch call either",
    "as CUDA graphs timed in the same way, with TF32 on for products and convolutions of float32 (what cannot be "
    "captured is launched call by call, and `notes` say so)",
)
_IDLE = ("layouts", "rounds", "accumulation")
"""Keys of a manifest that are as usual for every task: nothing of a task is packed, and its tolerance is its own."""
_ROLE_WORDS = {
    "activation": "an input of the model's forward, in the order of get_inputs()",
    "weight": "a parameter, buffer or tensor of the model, by its qualified name; its values are not those that the "
    "model begins with",
    "output": "what forward returns, flattened in order; written whole",
}
