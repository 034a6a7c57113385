"""Compiles Triton to machine code without a GPU or a driver: a cubin for each launch of a source.

Triton is loaded on first use. Its own cache is not used, its files are in a scratch directory, and the code contains no
path, so that equal sources give equal bytes. A launch's block sets the number of warps; the parameter NUM_STAGES, where
there is one, sets how deep Triton pipelines loops.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
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
"""Triton options that are on; multiply-adds are fused as in the other languages."""
_FILE = "<kernel.py>"
_ARCH = re.compile(r"--gpu-architecture=(sm_(\d+)[af]?)")
_ALIGNED = [["tt.divisibility", 16]]  # attribute of a pointer: every buffer starts at a multiple of that many bytes


def triton_version() -> str:
    """Return the version of the package.

    Raises:
        AgentCompileError: Triton is not installed (environment).
    """
    return str(_library().__version__)


def triton_programs() -> tuple[str, ...]:
    """Return the paths of the programs that Triton starts: the assemblers that come with it.

    Raises:
        AgentCompileError: Triton is not installed (environment).
    """
    folder = Path(_library().__file__).parent / "backends" / "nvidia" / "bin"
    return tuple(str(path) for path in sorted(folder.glob("ptxas*")))


def compile_images(source: Source, store: Store) -> tuple[Image, ...] | BuildFailed:
    """Compile as `images_in` does, in a scratch folder of the store, with the same errors."""
    with store.scratch() as folder:
        return images_in(source, folder)


def images_in(source: Source, folder: Path) -> tuple[Image, ...] | BuildFailed:
    """Compile the kernels of `source`, one image for each entry; its flags name the architecture (``sm_90``).

    Triton's files are in `folder`.

    Raises:
        AgentCompileError: Triton is not installed, cannot start its assembler, or has no disk space for its files
            (environment).
    """
    triton = _library()
    try:
        with _contained(triton, folder):
            module = _executed(source.text)
            entries = {launch.entry: launch for launch in source.launches}
            return tuple(_image(triton, module, launch, source.flags) for launch in entries.values())
    except _Refused as refused:
        return BuildFailed(log=clean_log(str(refused)))
    except OSError as error:
        hint = "check its installation, and that the disk of the cache has room"
        raise AgentCompileError(f"Triton cannot work: {error}", exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    except Exception as error:  # noqa: BLE001 - whatever a text makes Triton raise is that text's failure
        return BuildFailed(log=clean_log(_said(error)))


class _Refused(Exception):
    """A kernel that compiles but cannot be launched as its manifest says."""


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
    if facts["shared"] > (most := most_shared_bytes(arch)):
        raise _Refused(f"{launch.entry} takes {facts['shared']} bytes of shared memory, {arch} has {most}")
    if facts["global_scratch_size"] or facts["profile_scratch_size"]:
        raise _Refused(f"{launch.entry} takes scratch memory of Triton's own, which a launch does not have")
    assert facts["name"] == launch.entry, facts["name"]
    return Image(entry=launch.entry, code=code, shared_bytes=facts["shared"])


def _lowered(triton: Any, text: Any, capability: int, options: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Run Triton's stages one after another; return the code and the metadata that the stages collected.

    `triton.compile` does the same with a cache of its own, for which it hashes the package's half gigabyte: 2.5 s a
    process.
    """
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
    """Return the architecture, and its compute capability times ten; Triton itself chooses between sm_90 and sm_90a."""
    (found,) = (match for flag in flags if (match := _ARCH.fullmatch(flag)))
    return found[1], int(found[2])


def _aligned(parameters: dict[str, str | tuple[str, ...]]) -> Iterator[tuple[tuple[int, ...], list[list[object]]]]:
    """Yield Triton's attributes of every pointer by its place: a parameter's number, then the index in a tuple."""
    for number, types in enumerate(parameters.values()):
        if isinstance(types, str):
            yield (number,), _ALIGNED
        else:
            yield from (((number, index), _ALIGNED) for index in range(len(types)))


def _executed(text: str) -> ModuleType:
    """Execute the text as a module; Triton reads it through `inspect`, hence the line cache, under no path."""
    module = ModuleType("kernel")
    linecache.cache[_FILE] = (len(text), None, text.splitlines(keepends=True), _FILE)
    exec(compile(text, _FILE, "exec"), module.__dict__)
    return module


@contextlib.contextmanager
def _contained(triton: Any, folder: Path) -> Iterator[None]:
    """Run Triton with `folder` for its assembler's files, and without output."""
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
    """Return the error and its causes, the outermost first: a fault in a function is an error of its caller too."""
    said = f"{type(error).__name__}: {error}"
    return said if error.__cause__ is None else f"{said}\n{_said(error.__cause__)}"


@functools.cache
def _library() -> Any:
    try:
        triton = importlib.import_module("triton")
        for part in ("triton.backends.compiler", "triton.compiler.compiler"):
            importlib.import_module(part)
    except (ImportError, RuntimeError) as error:
        text, hint = f"Triton cannot be used: {error}", "install the CUDA extra: pip install 'agentcompile[cuda]'"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
    return triton
