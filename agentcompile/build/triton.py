"""Triton to machine code without a GPU or a driver: a cubin for each launch of a source.

Triton is loaded on first use. Its own cache is not used, its files lie in a scratch directory, and no path enters the
code, so that equal sources give equal bytes. How many warps a kernel has is said by its launch's block, and how deep
Triton pipelines loops by the parameter NUM_STAGES, where there is one.
"""

from __future__ import annotations

import contextlib
import functools
import io
import linecache
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from agentcompile.build.cxx import clean_log
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.target import most_shared_bytes
from agentcompile.ir.template import Launch, Source
from agentcompile.ir.trial import BuildFailed
from agentcompile.system.cubins import Image
from agentcompile.system.store import Store

TRITON_FLAGS = ("enable_fp_fusion", "disable_line_info")
"""Options that are on; multiply-adds are fused as in the other languages."""
_FILE = "<kernel.py>"
_ARCH = re.compile(r"--gpu-architecture=(sm_(\d+)[af]?)")
_ALIGNED = [["tt.divisibility", 16]]
"""Of a pointer: every buffer starts at a multiple of that many bytes."""


def triton_version() -> str:
    """Version of the package; raises `AgentCompileError` (environment) when it is not installed."""
    return str(_library().__version__)


def compile_images(source: Source, store: Store) -> tuple[Image, ...] | BuildFailed:
    """Compile the kernels of `source`, ``--gpu-architecture=sm_90`` among its flags; launches that share an entry and a
    block share its image.

    Raises `AgentCompileError` (environment) when Triton is not installed, cannot start its assembler, or finds no room
    for its files.
    """
    triton = _library()
    try:
        with store.scratch() as folder, _contained(triton, folder):
            module = _executed(source.text)
            entries = {launch.entry: launch for launch in source.launches}
            return tuple(_image(triton, module, launch, source.flags) for launch in entries.values())
    except _Refused as refused:
        return BuildFailed(log=clean_log(str(refused)))
    except OSError as error:
        raise AgentCompileError(
            f"Triton cannot work: {error}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="check its installation, and that the disk of the cache has room",
        ) from error
    except Exception as error:  # noqa: BLE001 - whatever a text makes Triton raise is that text's failure
        return BuildFailed(log=clean_log(_said(error)))


class _Refused(Exception):
    """A kernel that compiles and cannot be launched as its manifest says."""


def _image(triton: Any, module: ModuleType, launch: Launch, flags: tuple[str, ...]) -> Image:
    arch, capability = _architecture(flags)
    function, parameters = getattr(module, launch.entry), getattr(module, f"{launch.entry}_args")
    if list(function.arg_names) != list(parameters):
        raise _Refused(f"{launch.entry} takes {function.arg_names}, its launch passes {list(parameters)}")
    threads = math.prod(int(extent) for extent in launch.block)
    options = {"num_warps": threads // 32, "enable_fp_fusion": True}
    if hasattr(module, "NUM_STAGES"):
        options["num_stages"] = module.NUM_STAGES.value
    text = triton.compiler.ASTSource(function, parameters, attrs=dict(_aligned(parameters)))
    code, facts = _lowered(triton, text, capability, options)
    if facts["num_warps"] * 32 != threads:
        raise _Refused(f"{launch.entry} has {facts['num_warps']} warps, its launch {threads} threads a block")
    if facts["shared"] > most_shared_bytes(arch):
        most = most_shared_bytes(arch)
        raise _Refused(f"{launch.entry} takes {facts['shared']} bytes of shared memory, {arch} has {most}")
    if facts["global_scratch_size"] or facts["profile_scratch_size"]:
        raise _Refused(f"{launch.entry} takes scratch memory of Triton's own, which a launch does not have")
    assert facts["name"] == launch.entry, facts["name"]
    return Image(entry=launch.entry, code=code, shared_bytes=facts["shared"])


def _lowered(triton: Any, text: Any, capability: int, options: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Triton's stages one after another, and what they found out. `triton.compile` does the same for its own cache, and
    hashes the half gigabyte of the package for that: 2.5 s a process."""
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    backend = triton.compiler.make_backend(target)
    chosen = backend.parse_options(options)
    facts: dict[str, Any] = {"target": target, **chosen.__dict__}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, chosen, text.language)
    context = triton._C.libtriton.ir.context()
    triton._C.libtriton.ir.load_dialects(context)
    backend.load_dialects(context)
    helpers = backend.get_codegen_implementation(chosen), backend.get_module_map()
    made = text.make_ir(target, chosen, *helpers, context)
    for stage in stages.values():
        made = stage(made, facts)
    return made, facts


def _architecture(flags: tuple[str, ...]) -> tuple[str, int]:
    """The architecture and its compute capability times ten; Triton chooses sm_90 or sm_90a by itself."""
    (found,) = (match for flag in flags if (match := _ARCH.fullmatch(flag)))
    return found[1], int(found[2])


def _aligned(parameters: dict[str, str | tuple[str, ...]]) -> Iterator[tuple[tuple[int, ...], list[list[object]]]]:
    """Triton's attributes of every pointer by its place: a parameter's number, then a tuple's index."""
    for number, types in enumerate(parameters.values()):
        if isinstance(types, str):
            yield (number,), _ALIGNED
        else:
            yield from (((number, index), _ALIGNED) for index in range(len(types)))


def _executed(text: str) -> ModuleType:
    """The text as a module that nobody else can import. Triton reads functions through `inspect`: hence the line cache,
    under a name that is no path."""
    module = ModuleType("kernel")
    linecache.cache[_FILE] = (len(text), None, text.splitlines(keepends=True), _FILE)
    exec(compile(text, _FILE, "exec"), module.__dict__)
    return module


@contextlib.contextmanager
def _contained(triton: Any, folder: Path) -> Iterator[None]:
    """Triton with `folder` for its assembler's files, and quiet."""
    knobs, before = triton.knobs, tempfile.tempdir
    with knobs.compilation.scope(), contextlib.redirect_stdout(io.StringIO()):
        knobs.compilation.disable_line_info = True
        tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before
            linecache.cache.pop(_FILE, None)


def _said(error: BaseException) -> str:
    """The error and what caused it, the outermost first: a fault in a function is one of its caller too."""
    lines, seen = [], error
    while True:
        lines.append(f"{type(seen).__name__}: {seen}")
        if seen.__cause__ is None:
            return "\n".join(lines)
        seen = seen.__cause__


@functools.cache
def _library() -> Any:
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler.compiler
    except (ImportError, RuntimeError) as error:
        raise AgentCompileError(
            f"Triton cannot be used: {error}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="install the CUDA extra: pip install 'agentcompile[cuda]'",
        ) from error
    return triton
