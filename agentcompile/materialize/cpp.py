"""The generated prologue of a C++ kernel: the region's, the parameters' and the target's facts as constants."""

from __future__ import annotations

from agentcompile.ir.region import Region
from agentcompile.ir.scope import ISA
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Template
from agentcompile.materialize.declarations import constants, interface

HEADERS = ("cstdint", "cstddef", "cmath", "cstring", "algorithm")
_SPELLED = {"sse4_2": "sse4.2", "avx_vnni": "avxvnni"}
_X86 = ("x86_64", "amd64", "AMD64")


def flags(target: Target) -> tuple[str, ...]:
    """Return the instruction sets of `target` as compiler flags, so that every build host compiles the text alike."""
    if target.arch not in _X86:
        return ()
    known = [isa for isa in ISA if isa in target.isa]
    return tuple(f"-m{_flag(isa)}" for isa in known)


def _flag(isa: str) -> str:
    if isa in _SPELLED:
        return _SPELLED[isa]
    return isa.replace("amx_", "amx-") if isa.startswith("amx_") else isa.replace("avx512_", "avx512")


def prologue(template: Template, region: Region, params: Params, target: Target) -> str:
    """Return the prologue of the program text; `template` gives the launches and workspaces, `region` the shapes."""
    lines = [f"// {template.id}, specialised; generated: edit the template instead"]
    lines += [f"#include <{header}>" for header in HEADERS]
    if target.arch in _X86:
        lines.append("#include <immintrin.h>")
    lines += ["struct bf16 { uint16_t bits; };", "struct fp16 { uint16_t bits; };"]
    lines += constants(region, params, target)
    for isa in ISA:
        here = isa in target.isa
        lines.append(f"constexpr bool isa_{isa} = {str(here).lower()};")
        lines.append(f"#define ISA_{isa.upper()} {int(here)}")
    lines += interface(template, region)
    return "\n".join(lines) + "\n"
