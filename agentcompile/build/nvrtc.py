"""Compiles CUDA C++ to machine code through NVRTC, without a GPU or a driver.

The library is loaded on first use. One call compiles one text for one architecture; nothing is linked, and no header is
searched for. A cubin runs on its own architecture alone (those with ``a``), or on later minor versions of it too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentcompile.build.cxx import clean_log
from agentcompile.build.toolchain import Toolchain
from agentcompile.ir.resources import Resources
from agentcompile.ir.trial import BuildFailed
from agentcompile.system.bindings import checked, load

NVRTC_FLAGS = (
    "--std=c++20",
    "--fmad=true",
    "--extra-device-vectorization",
    "--device-as-default-execution-space",
    "--ptxas-options=-v",
    "--no-cache",  # results from NVRTC's own cache lack the assembler's report
)
_ARCHITECTURE = "--gpu-architecture="
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_NUMBERS = {
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_bytes": re.compile(r"(\d+) bytes spill stores"),
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Machine code for one architecture."""

    image: bytes
    """Cubin, or PTX for an architecture that NVRTC does not know yet."""
    resources: tuple[Resources, ...]
    """Resources of each entry, in the order of the text."""


def nvrtc_version() -> tuple[int, int]:
    """Return the version of the library.

    Raises:
        AgentCompileError: NVRTC is not installed (environment).
    """
    nvrtc = _library()
    major, minor = _checked(nvrtc.nvrtcVersion())
    return int(major), int(minor)


def nvrtc_toolchain() -> Toolchain:
    """Return NVRTC as the compiler of a target.

    Raises:
        AgentCompileError: NVRTC is not installed (environment).
    """
    return Toolchain(compiler="nvrtc", name=f"nvrtc {'.'.join(map(str, nvrtc_version()))}")


def compile_cubin(text: str, flags: tuple[str, ...]) -> Cubin | BuildFailed:
    """Compile `text` with `flags`, which include ``--gpu-architecture=sm_90`` or another.

    Raises:
        AgentCompileError: NVRTC is not installed (environment).
    """
    nvrtc = _library()
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, None, None))
    try:
        asked, as_ptx = _known(flags)
        options = [flag.encode() for flag in (*NVRTC_FLAGS, *asked)]
        status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        said = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        log = said.rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            return BuildFailed(log=clean_log(log) or f"nvrtc: {status}")
        what = "PTX" if as_ptx else "CUBIN"
        image = _bytes(getattr(nvrtc, f"nvrtcGet{what}Size"), getattr(nvrtc, f"nvrtcGet{what}"), program)
        return Cubin(image=image, resources=resources_in(log))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _known(flags: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """Return the flags with an architecture that this NVRTC supports, and whether the result is PTX for the driver."""
    supported = [int(number) for number in _checked(_library().nvrtcGetSupportedArchs())]
    found = [flag.removeprefix(_ARCHITECTURE) for flag in flags if flag.startswith(_ARCHITECTURE)]
    asked = nearest(found[0], supported) if found else ""
    as_ptx = asked.startswith("compute_")
    return tuple(f"{_ARCHITECTURE}{asked}" if flag.startswith(_ARCHITECTURE) else flag for flag in flags), as_ptx


def nearest(arch: str, supported: Sequence[int]) -> str:
    """Return `arch` if it is `supported` or older than all, else the newest ``compute_``, for the driver to compile."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    older = [known for known in supported if known < number]
    return arch if number in supported or not older else f"compute_{max(older)}"


def resources_in(log: str) -> tuple[Resources, ...]:
    """Return what ptxas reports on every entry in its log; functions that are not entries are left out."""
    found = []
    parts = _ENTRY.split(log)
    for entry, report in zip(parts[1::3], parts[3::3], strict=True):
        numbers = {name: int(match[1]) for name, pattern in _NUMBERS.items() if (match := pattern.search(report))}
        found.append(Resources(entry=entry, **{"registers": 0, **numbers}))
    return tuple(found)


@functools.cache
def _library() -> Any:
    return load(
        "nvrtc",
        lambda nvrtc: nvrtc.nvrtcVersion(),
        what="NVRTC cannot be used",
        hint="install the CUDA extra: pip install 'agentcompile[cuda]'",
    )


def _checked(result: tuple[Any, ...]) -> Any:
    return checked(result, "NVRTC failed", "check its installation")


def _bytes(size: Any, get: Any, program: Any) -> bytes:
    count = _checked(size(program))
    room: bytes = b" " * count
    _checked(get(program, room))
    return room
