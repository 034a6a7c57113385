"""C++ declarations that every C++ or CUDA prologue shares: shapes, parameters and argument structs.

A kernel reads dimensions in lower case and parameters in UPPER_CASE. Of each port family F it reads the type ``F_t``,
the number of its ports ``F_count``, and ``F_numel``, ``F_rows`` and ``has_F``. Each launch has a struct ``ENTRY_args``
that holds only pointers, in the order of the launch's arguments, and tensor maps behind them, so a launch is a function
and an array of words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from agentcompile.ir.graph import DType
from agentcompile.ir.region import Port, Region
from agentcompile.ir.scope import constants_of, region_dtype
from agentcompile.ir.target import Target
from agentcompile.ir.template import COUNT, Launch, Params, Template

TYPES: dict[DType, str] = {
    "bf16": "bf16", "fp16": "fp16", "fp32": "float", "fp64": "double",
    "int64": "int64_t", "int32": "int32_t", "int8": "int8_t", "uint8": "uint8_t",
    "bool": "uint8_t",
}  # fmt: skip


def constants(region: Region, params: Params, target: Target) -> Iterator[str]:
    """Yield declarations of the dimensions, target facts, parameters and the kind's scalars."""
    yield from (f"constexpr long {name} = {value};" for name, value in constants_of(region, target).items())
    yield from (f"constexpr long {name} = {value};" for name, value in params if isinstance(value, int))
    yield from (f"constexpr float {name} = {_float(value)};" for name, value in region.constants)


def interface(template: Template, region: Region) -> Iterator[str]:
    """Yield the port families, absent ones included, and the argument structs of all launches."""
    for family in dict.fromkeys(port.family for port in region.ports):
        yield from _family(family, region.family(family))
    for family in absent(template, region):
        yield from _absent_family(family, region)
    for launch in template.launches:
        yield from _arguments(launch, template, region)


def _float(value: float) -> str:
    """Return `value` as a C++ float literal; Python's shortest spelling always has a point or an exponent."""
    if not math.isfinite(value):
        return {"inf": "INFINITY", "-inf": "-INFINITY"}.get(str(value), "NAN")
    return f"{float(value)!r}f"


def _family(family: str, ports: tuple[Port, ...]) -> list[str]:
    """Return the declarations of a family; a symbolic extent (the tokens of a prefill chunk) counts as 1."""
    numel = ", ".join(str(port.numel) for port in ports)
    first = [port.shape[0] if port.shape else 1 for port in ports]
    rows = ", ".join(str(dim) if isinstance(dim, int) else "1" for dim in first)
    return [
        f"using {family}_t = {TYPES[ports[0].dtype]};",
        f"constexpr bool has_{family} = true;",
        f"constexpr int {family}_count = {len(ports)};",
        f"constexpr long {family}_numel[] = {{{numel}}};",
        f"constexpr long {family}_rows[] = {{{rows}}};",
    ]


def absent(template: Template, region: Region) -> list[str]:
    """Return the families that a launch passes and the region lacks; the catalog's check ensures they are optional."""
    passed = dict.fromkeys(name for launch in template.launches for name in launch.arguments)
    known = {port.family for port in region.ports} | {space.name for space in template.workspaces} | {COUNT}
    return [name for name in passed if name not in known]


def _absent_family(family: str, region: Region) -> list[str]:
    dtype = f"{'w_t' if region.family('w') else TYPES[region_dtype(region)]}"
    return [
        f"using {family}_t = {dtype};",
        f"constexpr bool has_{family} = false;",
        f"constexpr int {family}_count = 0;",
        f"constexpr long {family}_numel[] = {{0}};",
        f"constexpr long {family}_rows[] = {{0}};",
    ]


def _arguments(launch: Launch, template: Template, region: Region) -> list[str]:
    workspaces = {space.name: space for space in template.workspaces}
    members = []
    for name in launch.arguments:
        if name == COUNT:
            members.append(f"const int64_t* {COUNT};")
        elif name in workspaces:
            members.append(f"{TYPES[workspaces[name].dtype]}* {name};")
        else:
            members.append(_pointer(name, region))
    members += [f"TensorMap {one.of}_map{_length(region.family(one.of))};" for one in launch.maps]
    return [f"struct {launch.entry}_args {{", *(f"    {member}" for member in members), "};"]


def _pointer(family: str, region: Region) -> str:
    """Return one member of an argument struct.

    An absent family takes the form of `w`: an array when the weights are numbered, otherwise one pointer.
    """
    ports = region.family(family)
    length = _length(ports) if ports else "[1]" * numbered(region.family("w"))
    const = "" if any(port.role == "output" or port.access != "read" for port in ports) else "const "
    return f"{const}{family}_t* {family}{length};"


def _length(ports: tuple[Port, ...]) -> str:
    return f"[{len(ports)}]" if numbered(ports) else ""


def numbered(ports: tuple[Port, ...]) -> bool:
    """Return whether a family is a numbered row of ports (`w.0`, `w.1`, …) and not one port of that name."""
    return any("." in port.name for port in ports)
