"""The machine that a program is compiled for: facts that are part of candidates' identity, and measured ceilings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.digest import Json, digest

SHARED_BYTES = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_87": 163 << 10, "sm_89": 99 << 10,
    "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_103": 227 << 10, "sm_120": 99 << 10,
}  # fmt: skip
"""Shared memory that a block may ask for, by architecture (CUDA C++ Programming Guide, compute capabilities)."""
LEAST_SHARED_BYTES = 48 << 10
"""Shared memory that a block has on every architecture, without asking."""


def most_shared_bytes(arch: str) -> int:
    """Return the bytes of shared memory that a block may ask for on `arch`; `LEAST_SHARED_BYTES` for an unknown one."""
    return SHARED_BYTES.get(arch.rstrip("af"), LEAST_SHARED_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One device and toolchain; its digest keys trials, binaries and locks."""

    kind: Literal["cpu", "cuda"]
    device: str
    """Model name as the system reports it."""
    arch: str
    """`x86_64`, `sm_90a`, …."""
    isa: tuple[str, ...]
    """Sorted extensions that templates may ask for: `avx2`, `fma`, `avx512f`, `avx512_bf16`, `amx_bf16`, …."""
    threads: int
    """Worker threads on CPU; multiprocessors on CUDA."""
    cache_bytes: tuple[int, ...]
    """Per-level sizes seen by one thread, nearest first (L1d, L2, L3); L3 is the whole shared cache."""
    line_bytes: int = 64
    toolchain: str = ""
    """Compiler and version: `g++ 12.2.0`."""
    libraries: tuple[tuple[str, str], ...] = ()
    """Versions that shape code or references: (`torch`, `2.13.0`)."""

    @property
    def digest(self) -> str:
        """The identity of device, instruction set, thread count, caches, toolchain and library versions."""
        libraries: Json = [[name, version] for name, version in sorted(self.libraries)]
        isa: Json = sorted(self.isa)  # type: ignore[assignment]
        caches: Json = [self.threads, list(self.cache_bytes), self.line_bytes]
        return digest("target/1", self.kind, self.device, self.arch, isa, caches, self.toolchain, libraries)


Residency = Literal["dram", "cache"]
"""Where the real step reads its weights from: `dram` when the step's bytes exceed the last-level cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Measured limits of the machine; rates are decimal (1e9 bytes = 1 GB)."""

    dram_bytes_per_s: float
    cache_bytes_per_s: float
    """Reads that hit the last-level cache, all threads together."""
    flops_per_s: float
    """Dense multiply-add rate of the widest unit at the model's dtype, two FLOPs each."""
    calm: bool = True
    """Whether the threads had their cores to themselves; rates measured on a busy machine are too low."""

    def floor_ns(self, *, flops: int, bytes: int, residency: Residency) -> float:
        """Return the roofline in ns: no program with these FLOPs and bytes is faster (Williams et al. 2009)."""
        rate = self.dram_bytes_per_s if residency == "dram" else self.cache_bytes_per_s
        return 1e9 * max(bytes / rate, flops / self.flops_per_s)
