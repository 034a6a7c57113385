"""The generated prologue of a Triton kernel: what a C++ kernel reads as constants, as `tl.constexpr` of the module.

A family with numbered ports is a tuple of pointers; any other is one pointer, null when the region lacks the family.
For each launch, ``ENTRY_args`` gives the type of every parameter of the function ENTRY, in order and by name.
Flattened, it has one pointer for each resolved argument of the launch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from agentcompile.ir.graph import DType
from agentcompile.ir.region import Port, Region
from agentcompile.ir.scope import constants_of, region_dtype
from agentcompile.ir.target import Target
from agentcompile.ir.template import Launch, Params, Template
from agentcompile.materialize.declarations import absent, numbered

POINTERS: dict[DType, str] = {
    "bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32", "fp64": "*fp64", "int64": "*i64", "int32": "*i32",
    "int8": "*i8", "uint8": "*u8", "bool": "*u8",
}  # fmt: skip
_CAPABILITY = re.compile(r"sm_(\d+)[af]?")


def prologue(template: Template, region: Region, params: Params, target: Target) -> str:
    """Return the prologue of the program text; `template` gives the launches and workspaces, `region` the shapes.

    `capability` is the target's compute capability times ten (90, for example); 0 when the target is no CUDA device.
    """
    lines = [f"# {template.id}, specialised; generated: edit the template instead"]
    lines += ["import triton", "import triton.language as tl", ""]
    found = _CAPABILITY.fullmatch(target.arch)
    named = {"capability": int(found[1]) if found else 0} | constants_of(region, target)
    constants: list[tuple[str, object]] = [
        *named.items(),
        *params,
        *((name, float(value)) for name, value in region.constants),
    ]
    for family in dict.fromkeys(port.family for port in region.ports):
        constants += _family(family, region.family(family))
    for family in absent(template, region):
        constants += _family(family, ())
    lines += [f"{name} = tl.constexpr({_spelled(value)})" for name, value in constants]
    lines += [_parameters(launch, template, region) for launch in template.launches]
    return "\n".join(lines) + "\n"


def _spelled(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _family(family: str, ports: tuple[Port, ...]) -> Iterator[tuple[str, object]]:
    """Yield the sizes of a family; a symbolic extent (the tokens of a prefill chunk) counts as 1."""
    first = [port.shape[0] if port.shape else 1 for port in ports]
    yield f"has_{family}", bool(ports)
    yield f"{family}_count", len(ports)
    yield f"{family}_numel", tuple(port.numel for port in ports)
    yield f"{family}_rows", tuple(dim if isinstance(dim, int) else 1 for dim in first)


def _parameters(launch: Launch, template: Template, region: Region) -> str:
    workspaces: dict[str, DType] = {space.name: space.dtype for space in template.workspaces}
    types: dict[str, str | tuple[str, ...]] = {}
    for name in launch.arguments:
        ports = region.family(name)
        one = POINTERS[workspaces[name] if name in workspaces else ports[0].dtype if ports else region_dtype(region)]
        types[name] = (one,) * len(ports) if numbered(ports) else one
    return f"{launch.entry}_args = {types!r}"
