"""Compiles the planted kernels, a file a kind, and launches them as the runtime does: on threads, or rank by rank."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from agentcompile.build import Binary, compile, compile_executor
from agentcompile.ir.region import Region
from agentcompile.ir.template import Launch, Params, Source, Template, Workspace
from agentcompile.materialize import specialise
from agentcompile.runtime.native import Call, Executor, Library, NativeProgram
from agentcompile.system.probe import probe
from agentcompile.system.store import Store
from agentcompile.validate import DeclaredArithmetic
from tests.cpu import jobs

KERNELS = Path(__file__).parent / "kernels"
THREADS = 2


def _float(name: str, count: str, initial: str = "undefined") -> Workspace:
    return Workspace(name=name, dtype="fp32", count=count, initial=initial)  # type: ignore[arg-type]


WORKSPACES: dict[str, tuple[Workspace, ...]] = {
    "linear": (_float("partial", "2 * rows"), _float("memory", "hidden + rows + 1", "zero")),
    "rmsnorm": (_float("scales", "groups"),),
    "rope-attention-decode": (_float("parts", "q_heads * 2 * (head_dim + 2)"),),
    "linear-argmax": (_float("best", "64"), Workspace(name="which", dtype="int64", count="64")),
    "rmsnorm-linear": (_float("n", "hidden"), _float("scales", "64")),
}
"""Scratch that every kernel of a file is given."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """All kernels of one kind, compiled for one region."""

    region: Region
    source: Source
    library: Library
    executor: Executor
    entries: tuple[str, ...]

    def facts(self, rounds: tuple[tuple[str, str], ...] = (), deterministic: bool = True) -> DeclaredArithmetic:
        """What a kernel of this file declares."""
        return DeclaredArithmetic(rounds=rounds, deterministic=deterministic, workspaces=self.source.workspaces)

    def run(self, entry: str, buffers: Mapping[str, Tensor]) -> None:
        """Launch on threads, with a barrier after every launch."""
        calls = [Call.of(self.library, launch.entry, _pointers(launch, buffers)) for launch in self._launches(entry)]
        NativeProgram(self.executor, calls).run()

    def serial(self, entry: str, buffers: Mapping[str, Tensor], backwards: bool) -> None:
        """Launch with one rank after another."""
        for launch in self._launches(entry):
            pointers = _pointers(launch, buffers)
            packed = (ctypes.c_void_p * len(pointers))(*pointers)
            kernel = getattr(self.library.handle, launch.entry)
            for rank in reversed(range(THREADS)) if backwards else range(THREADS):
                kernel(packed, ctypes.c_int(rank), ctypes.c_int(THREADS))

    def _launches(self, entry: str) -> list[Launch]:
        return [launch for launch in self.source.launches if launch.entry in (entry, f"{entry}_then")]


def _pointers(launch: Launch, buffers: Mapping[str, Tensor]) -> list[int]:
    return [buffers[name].data_ptr() if name else 0 for name in launch.arguments]


def plant(region: Region, root: Path, params: Params = ()) -> Planted:
    """Compile the file of a region's kind; binaries are kept under `root`."""
    template = _template(region.kind)
    names = tuple(dict.fromkeys(port.family for port in region.ports))
    spaces = tuple(space.name for space in template.workspaces)
    absent = ("b",) if region.kind == "linear" and "b" not in names else ()
    launches = tuple(Launch(entry=launch.entry, arguments=(*names, *absent, *spaces)) for launch in template.launches)
    store, toolchain = Store(root), jobs.toolchain()
    target = probe(toolchain=toolchain.name, threads=THREADS)
    source = specialise(replace(template, launches=launches), region, params, target)
    source = replace(source, flags=(*source.flags, "-O1"))  # many kernels, each run for milliseconds
    binary = compile(source, store, toolchain=toolchain, limit_s=120)
    assert isinstance(binary, Binary), binary
    executor = Executor(compile_executor(store, toolchain=toolchain), THREADS)
    entries = tuple(launch.entry for launch in launches if not launch.entry.endswith("_then"))
    return Planted(region=region, source=source, library=Library(Path(binary.path)), executor=executor, entries=entries)


@functools.cache
def _template(kind: str) -> Template:
    text = (KERNELS / f"{kind}.cpp").read_text()
    return Template(
        id=f"planted/{kind}",
        region=kind,
        language="cpp",
        about="Kernels that are wrong on purpose, and right ones that differ.",
        dtypes=("bf16", "fp32"),
        workspaces=WORKSPACES.get(kind, ()),
        launches=tuple(Launch(entry=name, arguments=()) for name in re.findall(r"^KERNEL\((\w+)\)", text, re.M)),
        source_name=f"{kind}.cpp",
        source=text,
        includes=(("common.h", (KERNELS / "common.h").read_text()),),
    )
