"""What a confined process may reach: files, devices, memory, time and processes; a network never."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_LIBRARIES = (
    "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/lib", "/lib", "/lib64", "/etc/ld.so.cache",
)  # fmt: skip
_HEADERS = ("/usr/include", "/usr/local/include", "/usr/libexec", "/etc/alternatives")
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
"""The dynamic loader is executed with every program that it loads."""
_PROGRAMS = ("cc1plus", "collect2", "as", "ld", "lto-wrapper", "lto1")
"""What a compiler's driver starts."""
_FACTS = (
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system", "/dev/urandom",
)  # fmt: skip
"""What Python, PyTorch and the watch over a worker's state read."""
_FACTS_OF_DEVICES = (
    "/proc/devices", "/proc/driver/nvidia", "/proc/driver/nvidia-uvm", "/proc/modules", "/sys/devices", "/sys/bus/pci",
    "/sys/module", "/usr/local/nvidia", "/usr/local/cuda", "/dev/zero",
)  # fmt: skip
"""What the CUDA driver reads besides."""
_WRITTEN_FOR_DEVICES = ("/proc/self/task",)
"""Where the CUDA driver writes the names of its threads; without, it does not start."""
_NULL = "/dev/null"
_PASSED_ON = re.compile(r"PATH|LANG|LC_\w+|TZ|LD_LIBRARY_PATH|(CUDA|NVIDIA|OMP|GOMP|KMP|MKL|OPENBLAS|ATEN|DNNL)_\w+")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The limits of one process and its children. Paths are absolute; a folder stands for all that is below it."""

    readable: tuple[str, ...]
    writable: tuple[str, ...] = ()
    """Folders in which files may be made, read and written: its scratch alone."""
    written: tuple[str, ...] = ()
    """Folders whose files may be written as they are; none is made there."""
    executable: tuple[str, ...] = ()
    """Programs that may be started. Without any, the process has no children either."""
    devices: tuple[str, ...] = (_NULL,)
    """Device nodes that may be opened and controlled."""
    private: bool = False
    """Whether the scratch is a disk in memory of the process's own, which nobody else sees and ends with it."""
    memory_bytes: int = 0
    """Private memory beyond what the process has when it is confined, or of each program; 0: no limit."""
    cpu_s: int = 0
    """Processor time of each process, in seconds; 0: no limit."""
    wall_s: float = 0.0
    """Time after which `run` ends a program, in seconds; 0: no limit."""
    file_bytes: int = 256 << 20
    """Size of one file."""
    disk_bytes: int = 512 << 20
    """Size of all files in the scratch together."""
    processes: int = 64
    """Processes and threads together."""


def for_build(compiler: str, scratch: Path, *, wall_s: float = 60.0) -> Fence:
    """Return the fence of a C++ compiler: its own programs and headers, the system's libraries, and `scratch`."""
    home = Path(compiler).resolve().parent.parent
    parts = ("lib", "lib64", "libexec", "include", "share")
    own = [] if str(home) in ("/", "/usr") else [str(home / part) for part in parts]
    programs = _programs_of(compiler)
    return Fence(
        readable=(*_LIBRARIES, *_HEADERS, *own, *programs),
        writable=(str(scratch.resolve()),),
        executable=(*programs, *_LOADERS),
        memory_bytes=4 << 30,
        cpu_s=int(wall_s) + 2,
        wall_s=wall_s,
        processes=32,
    )


def for_worker(
    scratch: Path | None = None,
    *,
    readable: Iterable[Path] = (),
    writable: Iterable[Path] = (),
    devices: Iterable[str] = (),
    memory_bytes: int = 0,
    file_bytes: int = 8 << 20,
) -> Fence:
    """Return the fence of a Python process that runs kernels: Python, PyTorch, agentcompile and `readable` to read.

    `scratch` is an empty folder over which each worker has a small disk of its own; where that cannot be made, and
    without `scratch`, it writes nothing but to `writable`: where a whole model runs, the folder of its logits, as the
    checkpoint's is `readable`. `devices` are those of an accelerator, whose driver shares memory with the process.
    """
    devices, paths = tuple(devices), sysconfig.get_paths()
    python = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    python += [str(Path(sys.base_prefix) / "lib"), *(path for path in sys.path if path.endswith("-packages"))]
    own = str(Path(__file__).resolve().parents[1])
    facts = (*_FACTS, *_FACTS_OF_DEVICES) if devices else _FACTS
    return Fence(
        readable=(*_LIBRARIES, *facts, *dict.fromkeys(python), own, *(str(path.resolve()) for path in readable)),
        writable=tuple(str(path.resolve()) for path in (*((scratch,) if scratch else ()), *writable)),
        written=_WRITTEN_FOR_DEVICES if devices else (),
        devices=(_NULL, *devices),
        private=scratch is not None,
        memory_bytes=memory_bytes,
        file_bytes=file_bytes,
        disk_bytes=16 << 20,
    )


def harmless(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that confined processes may have."""
    return {name: environment[name] for name in environment if _PASSED_ON.fullmatch(name) and not _SECRET.search(name)}


def device_nodes() -> tuple[str, ...]:
    """Return the device nodes of NVIDIA's driver on this machine."""
    named = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidiactl", "/dev/nvidia-caps")
    numbered = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(path for path in (*named, *numbered) if Path(path).exists())


@functools.cache
def _programs_of(compiler: str) -> tuple[str, ...]:
    """Return the paths of a compiler and of the programs that it starts."""
    found = [compiler, str(Path(compiler).resolve())]
    for name in _PROGRAMS:
        command = [compiler, f"-print-prog-name={name}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        path = shutil.which(done.stdout.strip(), path=os.defpath)
        if path is not None:
            found += [path, str(Path(path).resolve())]
    return tuple(dict.fromkeys(found))
