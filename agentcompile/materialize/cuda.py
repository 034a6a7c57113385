"""The generated prologue of a CUDA C++ kernel; it includes no header, so the compiler has none to find."""

from __future__ import annotations

from collections.abc import Iterator

from agentcompile.ir.evaluate import evaluate
from agentcompile.ir.expr import parse
from agentcompile.ir.region import Region
from agentcompile.ir.scope import scope
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Template
from agentcompile.materialize.declarations import constants, interface

_TYPES = (
    "using int64_t = long long;",
    "using int32_t = int;",
    "using uint8_t = unsigned char;",
    "using uint16_t = unsigned short;",
    "struct bf16 { uint16_t bits; };",
    "struct fp16 { uint16_t bits; };",
    "#define INFINITY __int_as_float(0x7f800000)",
)


def flags(target: Target) -> tuple[str, ...]:
    """Return the NVRTC flag that selects the architecture of `target`."""
    return (f"--gpu-architecture={target.arch}",)


def prologue(template: Template, region: Region, params: Params, target: Target) -> str:
    """Return the prologue of the program text; `template` gives the launches and workspaces, `region` the shapes."""
    lines = [f"// {template.id}, specialised; generated: edit the template instead", *_TYPES]
    if any(port.dtype == "int8" for port in region.ports):
        lines.append("using int8_t = signed char;")
    lines += [*constants(region, params, target), *_boxes(template, region, params, target)]
    lines += interface(template, region)
    return "\n".join(lines) + "\n"


def _boxes(template: Template, region: Region, params: Params, target: Target) -> Iterator[str]:
    """Yield what a kernel knows of its tensor maps: their type, and the rows of each one's boxes."""
    maps = {one.of: one.box for launch in template.launches for one in launch.maps}
    if maps:
        yield "struct alignas(64) TensorMap { unsigned long long words[16]; };"
    names = scope(region, target, params)
    yield from (f"constexpr long {port}_box = {int(evaluate(parse(box), names))};" for port, box in maps.items())
