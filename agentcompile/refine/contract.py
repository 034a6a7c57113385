"""The contract of a region: all that a capable engineer needs to write a template of it, and no text of a shipped one.

In: a region's task, a language, the machine's ceilings and the times to beat. Out: a `Contract`, whose interface is
JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentcompile import check
from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Contract, Times, WrittenLanguage
from agentcompile.ir.digest import Json
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.region import Port, Region
from agentcompile.ir.scope import constants_of, names_of
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.measure import POLICY
from agentcompile.measure.residency import rotation_bytes
from agentcompile.ops.layouts import LAYOUTS, fits
from agentcompile.refine import meanings
from agentcompile.refine.calling import calling, forbidden, manifest, skeleton
from agentcompile.refine.machine import machine, rates
from agentcompile.regions.kinds import facts as kinds
from agentcompile.tuning.tasks import TuneTask


def contract_of(
    task: TuneTask,
    language: WrittenLanguage,
    ceiling: Ceiling,
    times: Times,
    *,
    processor: Mapping[str, Json] | None = None,
    core_mhz: int | None = None,
) -> Contract:
    """Return what a kernel for a region must do, and the bars to pass.

    `processor` is what the system reports on a CPU, `core_mhz` its clock, which varies and is no part of what is asked.

    Raises:
        AgentCompileError: no kernel in that language can serve the region on that target (usage).
    """
    region, target = task.region, task.space.target
    _servable(region, language, target)
    kind = kinds()[region.kind]
    outputs = {port.name: port.dtype for port in region.ports if port.role == "output" or port.access == "append"}
    interface: dict[str, Json] = {
        "region": {
            "kind": region.kind,
            "phase": region.regime.phase,
            "sequences": region.regime.batch,
            "contexts": list(region.regime.context),
            "sites": len(region.sites),
            "dims": dict(region.dims),
            "scalars": {name: value if math.isfinite(value) else str(value) for name, value in region.constants},
            "flops": region.cost.flops,
            "bytes": region.cost.bytes,
            "weights_lie_in": task.residency,
        },
        "operators": meanings.operators(region.body),
        "meaning": meanings.meanings(region.body),
        "ports": [_port(port) for port in region.ports],
        "roles": _ROLES,
        "layouts": {name: text for name, text in meanings.LAYOUTS.items() if name == "row-major" or _any(region, name)},
        "preconditions": _preconditions(region),
        "magnitudes": meanings.MAGNITUDES,
        "between_the_operators": list(kind.interior),
        **({"softmax_weights": list(kind.weights)} if kind.weights else {}),
        "tolerance": meanings.tolerance(outputs),
        "launch": calling(region, language, target),
        "timing": _timing(rotation_bytes(task.residency, target, POLICY), task.residency),
        "manifest": manifest(region, language),
        "names": {
            "values": dict(constants_of(region, target)),
            "all": list(names_of(kind)),
            "about": "names that expressions may read, beside parameters; has_F and F_count tell of port family F, "
            "isa_X is 1 where the machine has that extension; `threads` are worker threads, on CUDA multiprocessors",
        },
        "forbidden": forbidden(language),
        "machine": machine(target, processor or {}),
    }
    # A ceiling taken on a busy machine is too low: a session would end at a floor that is none.
    floor_ns = region.floor_ns(ceiling, task.residency) if ceiling.calm else 0.0
    return Contract(
        region=region.id,
        kind=region.kind,
        language=language,
        interface=interface,
        floor_ns=floor_ns,
        reference_ns=times.reference_ns,
        incumbent_ns=times.incumbent_ns,
        measured=rates(
            ceiling,
            flops=region.cost.flops,
            nbytes=region.cost.bytes,
            residency=task.residency,
            core_mhz=core_mhz,
        ),
    )


_ROLES: Json = {
    "activation": "an input that another region made in the same step; always row-major",
    "weight": "the same at every step; it may be kept in another layout, which costs nothing in a step",
    "state": "the cache of earlier tokens; with access `append` the kernel writes the newest slot, and reads others",
    "output": "written whole; always row-major",
}


def _timing(nbytes: int, residency: Residency) -> Json:
    about = (
        "launches back to back, after a warm-up, in rounds that alternate with those of PyTorch and of the incumbent. "
        "They walk over copies of the weights and states of the region, of which together at least rotation_bytes are "
        "read before the first is read again: "
    )
    found = "none is in a cache then" if residency == "dram" else "they are in the last cache then, and in none nearer"
    return {"rotation_bytes": nbytes, "about": about + found}


def _servable(region: Region, language: WrittenLanguage, target: Target) -> None:
    """Check that a template of one launch that passes every port may serve the region."""  # noqa: DOC501
    if region.kind not in kinds():
        text = f"{region.name}: an operator without a meaning of its own runs in PyTorch only"
        raise AgentCompileError(text, hint="choose a region of another kind; `agentcompile inspect` lists them")
    found = check.errors(check.applicable(region, skeleton(region, language), target, layout_fits=fits))
    if found:
        text = f"{region.name}: no {language} kernel can serve it: {found[0].text}"
        hint = f"languages of this target: {', '.join(backend_of(target.kind).languages)}; or choose another region"
        raise AgentCompileError(text, hint=hint)


def _port(port: Port) -> Json:
    shape = [int(extent) for extent in port.shape]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    told: dict[str, Json] = {
        "name": port.name,
        "family": port.family,
        "role": port.role,
        "access": port.access,
        "dtype": port.dtype,
        "shape": [*shape],
        "strides": [*strides],
        "bytes": port.numel * ITEM_BYTES[port.dtype],
    }
    if port.role in ("weight", "state"):
        told["layouts"] = [name for name in LAYOUTS if _holds(name, port)]
    return told


def _holds(name: str, port: Port) -> bool:
    return port.role in ("weight", "state") and fits(name, port.shape, port.dtype)


def _any(region: Region, name: str) -> bool:
    return any(_holds(name, port) for port in region.ports)


def _preconditions(region: Region) -> list[Json]:
    """Return what holds of every launch, so that a kernel need not test it."""
    told: list[Json] = ["the extents in `dims` are constants of the program: a kernel is compiled for these alone"]
    if any(port.dtype == "int64" and port.role == "activation" for port in region.ports):
        told.append("indices and positions are in range: 0 <= index < the extent that they index")
    if any(port.role == "state" for port in region.ports):
        least, most = region.regime.context
        told.append(f"positions are less than the cache's extent; this plan serves contexts of {least} to {most}")
    if region.regime.batch > 1:
        told.append("each sequence of the batch has its own cache and its own position")
    if not region.dense:
        told.append("views in the list of operators are how a dense buffer is read: apply them to the strides")
    return told
