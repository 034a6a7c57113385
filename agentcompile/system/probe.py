"""The `Target` of this machine: processor, extensions, caches, threads, versions. Nothing here runs generated code.

All files about the processor are read below one `root`, so that tests can describe other machines with a folder of text
files.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import Json, canonical, digest
from agentcompile.ir.scope import ISA
from agentcompile.ir.target import Ceiling, Target
from agentcompile.system.store import Store

LIBRARIES = ("torch",)
"""The libraries whose versions affect references and library calls."""
_ROOT = Path("/")
_SHARED_BYTES = 228 << 10
"""Shared memory of a multiprocessor of compute capability 9.0 and 10.0, where PyTorch does not say."""
_SPELLED = {"asimd": "neon", "avx512vbmi": "avx512_vbmi"}
"""Names in /proc/cpuinfo that have a different spelling here."""
_CPUID = {"cpu_family": "cpu family", "cpu_model": "model"}
"""Numbers in /proc/cpuinfo that tell a processor's generation."""


def probe(*, toolchain: str, threads: int = 0, root: Path = _ROOT) -> Target:
    """Describe this machine's CPU; `toolchain` is the compiler and its version, `threads` 0 means `default_threads`."""
    info = _cpuinfo(root)
    return Target(
        kind="cpu",
        device=info.get("model name") or info.get("Model") or platform.processor() or platform.machine(),
        arch=platform.machine(),
        isa=_isa(info),
        threads=threads or default_threads(root=root),
        cache_bytes=_caches(root),
        line_bytes=_line_bytes(root),
        toolchain=toolchain,
        libraries=tuple((name, metadata.version(name)) for name in LIBRARIES),
    )


def probe_cuda(device: str, *, toolchain: str) -> Target:
    """Describe the CUDA device ``cuda:N``, as PyTorch sees it; `toolchain` is the compiler and its version.

    Raises:
        AgentCompileError: the device is not there (environment).
    """
    import torch

    index = int(device.partition(":")[2] or 0)
    try:
        found = torch.cuda.get_device_properties(index)
    except (AssertionError, RuntimeError) as error:
        raise AgentCompileError(
            f"{device}: {str(error).strip().partition(chr(10))[0] or 'there is no such device'}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="agentcompile doctor says what driver and devices are there; --target cpu needs neither",
        ) from error
    near = int(getattr(found, "shared_memory_per_multiprocessor", 0)) or _SHARED_BYTES
    return Target(
        kind="cuda",
        device=found.name,
        arch=f"sm_{found.major}{found.minor}" + ("a" if found.major >= 9 else ""),
        isa=(),
        threads=found.multi_processor_count,
        cache_bytes=(near, found.L2_cache_size),
        line_bytes=128,
        toolchain=toolchain,
        libraries=tuple(_versions(("torch", "triton", "nvidia-cublas", "nvidia-cublas-cu12"))),
    )


def _versions(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and version of those distributions of `names` that are installed."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def processor(*, root: Path = _ROOT) -> dict[str, Json]:
    """Return the system's report on the first allowed core: CPUID numbers, threads of a core, sharers of its caches.

    What it does not say is left out.
    """
    info, own = _cpuinfo(root), root / f"sys/devices/system/cpu/cpu{_first_cpu(root)}"
    numbers = {name: info[spelled] for name, spelled in _CPUID.items() if info.get(spelled, "").isdigit()}
    found: dict[str, Json] = {name: int(text) for name, text in numbers.items()}
    if siblings := _listed(_text(own / "topology/thread_siblings_list")):
        found["threads_a_core"] = siblings
    sharers: dict[int, int] = {}
    for folder in sorted(own.glob("cache/index*")):
        if _text(folder / "type") in ("Data", "Unified"):
            sharers[int(_text(folder / "level") or 0)] = _listed(_text(folder / "shared_cpu_list"))
    if sharers and all(sharers.values()):
        found["cpus_a_cache"] = [count for _, count in sorted(sharers.items())]
    return found


def core_mhz(*, root: Path = _ROOT) -> int | None:
    """Return the clock of a core now, in MHz, as the system says it; None where it does not."""
    text = _cpuinfo(root).get("cpu MHz", "")
    return round(float(text)) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None


def default_threads(*, root: Path = _ROOT, allowed: frozenset[int] = frozenset()) -> int:
    """Return the number of physical cores that this process may use, at least 1 and at most its quota of CPUs.

    `allowed` restricts the count to these logical processors.
    """
    cpus = allowed or frozenset(os.sched_getaffinity(0))
    cores = len({_core(root, cpu) for cpu in cpus})
    return max(1, min(cores, _quota(root) or cores))


def cpus_at_once(*, root: Path = _ROOT, allowed: frozenset[int] = frozenset()) -> int:
    """Return how many logical processors this process may keep busy, at least 1 and at most its quota of CPUs.

    `allowed` restricts the count to these logical processors.
    """
    cpus = len(allowed or os.sched_getaffinity(0))
    return max(1, min(cpus, _quota(root) or cpus))


def others_running(*, root: Path = _ROOT) -> int:
    """Return how many threads of other processes run, or are ready to, on this process's cores now; 0 if unknown."""
    load, tasks = root / "proc/loadavg", root / "proc/self/task"
    try:
        ready = _ready(load)
        if ready <= 1:  # only this thread; the usual case costs one read
            return 0
        states = [(task / "stat").read_bytes().rpartition(b")")[2].split()[0] for task in tasks.iterdir()]
        ready = min(ready, _ready(load))  # threads of our own may just have gone to sleep
    except (OSError, ValueError, IndexError):
        return 0
    # Where this process may use only some cores, other processes' threads are assumed to spread over all.
    cores = len(os.sched_getaffinity(0))
    return round(max(ready - states.count(b"R"), 0) * cores / (os.cpu_count() or 1))


def _ready(load: Path) -> int:
    return int(load.read_text("ascii").split()[3].partition("/")[0])


def ceiling_key(target: str) -> str:
    """Return the store's key for the ceilings of a target, given its digest."""
    return digest("ceiling/3", target)


def ceiling(target: Target, store: Store, measure: Callable[[], Ceiling]) -> Ceiling:
    """Return the ceilings of `target` from `store`, or call `measure` and keep the result if the machine was calm.

    A damaged file is deleted and its ceilings are measured again.
    """
    key = ceiling_key(target.digest)
    path = store.get(key, ".json")
    if path is not None:
        try:
            found: Ceiling = decode(Ceiling, json.loads(path.read_text(encoding="utf-8")))
            return found
        except (CodecError, ValueError, OSError):
            path.unlink(missing_ok=True)
    measured = measure()
    if measured.calm:
        store.write(key, canonical(encode(measured)), ".json")
    return measured


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the first processor's entries of /proc/cpuinfo by name; empty when it cannot be read."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {name.strip(): " ".join(value.split()) for name, value in pairs}


def _isa(info: dict[str, str]) -> tuple[str, ...]:
    """Return the extensions that templates may ask for; on ARM they are listed under `Features`."""
    words = set(info.get("flags", info.get("Features", "")).split())
    words |= {name for spelled, name in _SPELLED.items() if spelled in words}
    return tuple(sorted(words & set(ISA)))


def _caches(root: Path) -> tuple[int, ...]:
    """Return sizes of the first allowed core's data and unified caches, nearest first; empty when unknown."""
    sizes: dict[int, int] = {}
    for folder in sorted((root / "sys/devices/system/cpu").glob(f"cpu{_first_cpu(root)}/cache/index*")):
        if _text(folder / "type") in ("Data", "Unified"):
            sizes[int(_text(folder / "level") or 0)] = _bytes(_text(folder / "size"))
    return tuple(size for _, size in sorted(sizes.items()) if size)


def _line_bytes(root: Path) -> int:
    text = _text(root / f"sys/devices/system/cpu/cpu{_first_cpu(root)}/cache/index0/coherency_line_size")
    return int(text) if text.isdigit() else 64


def _first_cpu(root: Path) -> int:
    return min(os.sched_getaffinity(0)) if root == _ROOT else 0


def _core(root: Path, cpu: int) -> tuple[str, str]:
    """Return the package and physical core of a logical processor; one of its own when the system does not say."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    core = _text(topology / "core_id")
    return (_text(topology / "physical_package_id"), core) if core else ("", f"cpu{cpu}")


def _quota(root: Path) -> int:
    """Return how many whole CPUs a control group (version 2, then 1) allows, at least 1; 0 when there is no limit."""
    group = root / "sys/fs/cgroup"
    limit, _, period = _text(group / "cpu.max").partition(" ")
    if not limit:
        limit, period = _text(group / "cpu/cpu.cfs_quota_us"), _text(group / "cpu/cpu.cfs_period_us")
    if not (limit.isdigit() and period.isdigit() and int(period)):
        return 0
    return max(1, int(limit) // int(period))


def _listed(text: str) -> int:
    """Return how many CPUs a list in the notation of sysfs names, like ``0-3,8``; 0 for anything else."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return 0
    bounds = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in bounds)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _bytes(text: str) -> int:
    """Return the bytes of a size in the notation of sysfs, like ``48K`` or ``32M``; 0 for anything else."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    return int(number) * unit if number.isdigit() else 0
