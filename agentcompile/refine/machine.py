"""The machine as a contract shows it: its facts, and the rates that were measured on it, or why there are none.

In: a target, what the system reports on its processor, the measured ceilings. Out: JSON.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentcompile.backends import backend_of
from agentcompile.ir.digest import Json
from agentcompile.ir.target import Ceiling, Residency, Target, most_shared_bytes

_CPU = (
    "cache_bytes: of the first-level data cache, the second and the third level; cpus_a_cache: how many logical CPUs "
    "share a cache of each level, as the system says; threads_a_core: logical CPUs of a physical core, 1 where there "
    "is no simultaneous multithreading; threads: how many threads run a kernel, pinned; "
    "cpu_family and cpu_model: the processor's numbers in CPUID, which tell its generation"
)
_RATES = (
    "of all threads together, where nothing else ran: dram_gb_per_s, reads from memory; cache_gb_per_s, reads from the "
    "last cache; gflop_per_s, multiply-adds of the widest unit at two FLOPs each (on a CPU also bf16 dot products, "
    "where it has them). floor_by_bytes_us and floor_by_flops_us are the least times that these rates allow, that of "
    "the bytes where they come from; binds: the greater of the two"
)
_CLOCK = ". core_mhz: the clock of a core when the session began, as the system says it; under load it may be another"
_BUSY = (
    "other processes ran while the machine's rates were measured, so no rate and no floor is given. Count bytes and "
    "FLOPs instead: read every byte once, keep every thread busy. All times of this session were taken beside other "
    "processes: trust ratios of the same rounds (`beside_incumbent` of a node's feedback) more than microseconds, and "
    "take no difference of a few percent for an effect"
)


def machine(target: Target, processor: Mapping[str, Json]) -> dict[str, Json]:
    """Return a contract's facts about a target; `processor` is what `system.probe.processor` found of a CPU."""
    told: dict[str, Json] = {
        "kind": target.kind,
        "device": target.device,
        "arch": target.arch,
        "isa": list(target.isa),
        "threads": target.threads,
        "cache_bytes": list(target.cache_bytes),
        "line_bytes": target.line_bytes,
        "toolchain": target.toolchain,
    }
    if backend_of(target.kind).own_memory:
        return {**told, "shared_bytes_a_block": most_shared_bytes(target.arch)}
    return {**told, **processor, "about": _CPU}


def rates(
    ceiling: Ceiling, *, flops: int, nbytes: int, residency: Residency, core_mhz: int | None = None
) -> dict[str, Json]:
    """Return the machine's rates, the least times that they allow, in us, and which of the two binds.

    Rates that were taken beside other processes are too low: then there is none of this, and what to do instead.
    `core_mhz` is the clock of a core, where the system says it.
    """
    clock: dict[str, Json] = {"core_mhz": core_mhz} if core_mhz else {}
    if not ceiling.calm:
        return {"quiet": False, **clock, "about": _BUSY + (_CLOCK if clock else "")}
    by_bytes = ceiling.floor_ns(flops=0, bytes=nbytes, residency=residency)
    by_flops = ceiling.floor_ns(flops=flops, bytes=0, residency=residency)
    return {
        "quiet": True,
        "dram_gb_per_s": round(ceiling.dram_bytes_per_s / 1e9, 1),
        "cache_gb_per_s": round(ceiling.cache_bytes_per_s / 1e9, 1),
        "gflop_per_s": round(ceiling.flops_per_s / 1e9, 1),
        "floor_by_bytes_us": round(by_bytes / 1e3, 3),
        "floor_by_flops_us": round(by_flops / 1e3, 3),
        "binds": "bytes" if by_bytes >= by_flops else "flops",
        "bytes_come_from": residency,
        **clock,
        "about": _RATES + (_CLOCK if clock else ""),
    }
