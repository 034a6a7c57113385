"""The verb `doctor`: whether this machine has what compiling needs; each fact is a row with state, value and remedy.

The exit code depends on what every target needs, and on what CUDA needs only where CUDA would be the target.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from agentcompile import __version__
from agentcompile.backends import backend_of
from agentcompile.cli.flow import REAL, Flow
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import encode
from agentcompile.options import Options, resolve, visible_devices
from agentcompile.runs.tables import Table, amount
from agentcompile.sandbox import Method, methods
from agentcompile.system.gpus import Driver, Gpu, find_driver

OLDEST_SM = (8, 0)
"""The oldest compute capability for which CUDA templates compile."""
_LEAST_FREE_BYTES = 500_000_000
_NAMED = 4
"""Processes that a row names; further ones are counted."""
_EXTRA = "pip install 'agentcompile[cuda]'"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One fact; the remedy says what to do about a state that is not ok."""

    check: str
    state: Literal["ok", "missing", "warning"]
    value: str
    remedy: str = ""
    target: Literal["any", "cuda"] = "any"
    """The targets that need this fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """The parts of CUDA that this machine has, as far as the libraries tell."""

    driver: Driver | None = None
    nvrtc: tuple[int, int] | None = None
    nvrtc_problem: str = ""
    torch_cuda: str | None = None
    """The CUDA version that PyTorch was built for; None for a build without CUDA."""
    torch_sees: bool = False
    torch_said: str = ""
    """The warning that PyTorch gave while it looked for a device."""
    visible: str | None = None
    """The value of `CUDA_VISIBLE_DEVICES`; None when it is not set."""
    triton: str = ""


def doctor(
    flags: Mapping[str, object], *, screen: Screen, flow: Flow = REAL, cuda: Callable[[], Cuda] | None = None
) -> int:
    """Show whether this machine has what compiling needs; return 6 when something that its target needs is missing."""
    options = resolve(flags).options
    machine, kind = _machine(options, flow)
    here = [*_software(), *machine, containment(methods())]
    here += [_folder("cache", options.cache), _folder("runs", options.runs)]
    here += _user_templates(options)
    gpu = list(cuda_rows((cuda or find_cuda)()))
    rows = [*here, *gpu]
    table = [("MISSING" if row.state == "missing" else row.state, row.check, row.value) for row in rows]
    screen.table(Table(heads=("", "check", "found"), rows=table))
    for row in rows:
        if row.remedy:
            screen.text(f"{row.check}: {row.remedy}")
    if kind and not backend_of(kind).needs_driver and any(row.state == "missing" for row in gpu):
        screen.text("CUDA cannot be used here as it is; compiling for the CPU does not need it")
    screen.json([encode(row) for row in rows])
    needed = rows if kind and backend_of(kind).needs_driver else here
    if any(row.state == "missing" for row in needed):
        return ExitCode.ENVIRONMENT
    screen.next("agentcompile compile MODEL")
    return ExitCode.OK


def _software() -> list[DoctorCheck]:
    version = sys.version.split()[0]
    served = (3, 11) <= sys.version_info[:2] <= (3, 12)
    remedy = "" if served else "install Python 3.11 or 3.12"
    return [
        DoctorCheck("agentcompile", "ok", __version__),
        DoctorCheck("python", "ok" if served else "missing", version, remedy),
        *(_package(name) for name in ("torch", "transformers", "tokenizers", "safetensors")),
    ]


def _machine(options: Options, flow: Flow) -> tuple[list[DoctorCheck], str]:
    try:
        target = flow.target(options)
    except AgentCompileError as error:
        return [DoctorCheck("machine", "missing", error.message, error.hint)], ""
    count = f"{target.threads} {backend_of(target.kind).unit}"
    found = f"{count}, {' '.join(target.isa)}" if target.isa else f"{target.arch}, {count}"
    if target.toolchain:
        compiler = DoctorCheck("compiler", "ok", target.toolchain)
    else:
        compiler = DoctorCheck("compiler", "missing", "none found", "install g++ or clang++")
    return [compiler, DoctorCheck("machine", "ok", f"{target.device}, {found}")], target.kind


def _package(name: str) -> DoctorCheck:
    try:
        return DoctorCheck(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return DoctorCheck(name, "missing", "not installed", f"pip install {name}")


def containment(found: Sequence[Method]) -> DoctorCheck:
    """Return the row that says by which methods code that nobody has read is confined here; a pure function."""
    works = ", ".join(method.name for method in found if method.works) or "none"
    problems = [f"{method.name}: {method.problem}" for method in found if not method.works]
    if not problems:
        return DoctorCheck("sandbox", "ok", works)
    if all(method.works for method in found if method.needed):
        return DoctorCheck("sandbox", "warning", works, "; ".join(problems))
    remedy = f"{'; '.join(problems)}: written kernels run with --unsafe alone"
    return DoctorCheck("sandbox", "warning", f"{works}: nothing can be confined", remedy)


def _folder(name: str, path: Path) -> DoctorCheck:
    move = "name another place with AGENTCOMPILE_HOME"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
        free = shutil.disk_usage(path).free
    except OSError as error:
        said = error.strerror or str(error)
        return DoctorCheck(name, "missing", f"{path}: {said}", f"make {path} writable, or {move}")
    enough = free > _LEAST_FREE_BYTES
    remedy = "" if enough else f"free some space, or {move}"
    return DoctorCheck(name, "ok" if enough else "missing", f"{path}: {amount(free)} free", remedy)


def _user_templates(options: Options) -> Iterator[DoctorCheck]:
    """Yield the templates of the user's folders that are left out; nothing where there is no such folder."""
    if not options.templates and not (options.user_templates and options.written.is_dir()):
        return
    from agentcompile.tuning.prepared import templates_for

    try:
        for one in templates_for(options).quarantined:
            yield DoctorCheck("template", "warning", f"{one.folder} is left out: {one.reason}", one.hint)
    except AgentCompileError as error:
        yield DoctorCheck("templates", "warning", error.message, error.hint)


def find_cuda() -> Cuda:
    """Find out which parts of CUDA this machine has; never raises.

    The driver is asked before PyTorch looks for a device.
    """
    driver = find_driver()
    nvrtc, nvrtc_problem = _nvrtc()
    torch_cuda, torch_sees, torch_said = _torch()
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = ""
    return Cuda(
        driver=driver,
        nvrtc=nvrtc,
        nvrtc_problem=nvrtc_problem,
        torch_cuda=torch_cuda,
        torch_sees=torch_sees,
        torch_said=torch_said,
        visible=visible_devices(),
        triton=triton,
    )


def _nvrtc() -> tuple[tuple[int, int] | None, str]:
    from agentcompile.build.nvrtc import nvrtc_version

    try:
        return nvrtc_version(), ""
    except AgentCompileError as error:
        return None, error.message


def _torch() -> tuple[str | None, bool, str]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return None, False, str(error)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sees = torch.cuda.is_available()
    return torch.version.cuda, sees, str(said[0].message).split("(Triggered", 1)[0].strip() if said else ""


def cuda_rows(cuda: Cuda) -> Iterator[DoctorCheck]:
    """Yield what the CUDA target needs, one row for each fact; a pure function."""
    yield _driver(cuda.driver)
    if cuda.nvrtc is None:
        yield _missing("nvrtc", cuda.nvrtc_problem or "not installed", _EXTRA)
    else:
        yield _ok("nvrtc", _dotted(cuda.nvrtc))
    if cuda.nvrtc is not None and cuda.driver is not None and cuda.driver.cuda is not None:
        yield _fit(cuda.driver.cuda, cuda.nvrtc)
    yield from _pytorch(cuda)
    yield _visible(cuda.visible)
    yield from _devices(cuda.driver)
    if cuda.triton:
        yield _ok("triton", cuda.triton)
    else:
        yield _warning("triton", "not installed: Triton templates are left out", _EXTRA)


def _driver(driver: Driver | None) -> DoctorCheck:
    if driver is None:
        remedy = "install NVIDIA's driver; in a container, start it with its GPUs (docker run --gpus all)"
        return _missing("nvidia-driver", "neither libnvidia-ml.so.1 nor libcuda.so.1 answers", remedy)
    cuda = f"CUDA {_dotted(driver.cuda)}" if driver.cuda else "CUDA version unknown"
    if driver.problem:
        remedy = "let the container manage as well: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return _warning("nvidia-driver", f"{cuda}; {driver.problem}", remedy)
    return _ok("nvidia-driver", ", ".join(part for part in (driver.version, cuda) if part))


def _fit(driver: tuple[int, int], nvrtc: tuple[int, int]) -> DoctorCheck:
    """Return the row that says whether the driver is new enough for NVRTC: of its CUDA major version, or newer."""
    if driver[0] >= nvrtc[0]:
        return _ok("driver for nvrtc", f"CUDA {_dotted(driver)} runs what NVRTC {_dotted(nvrtc)} compiles")
    text = f"CUDA {_dotted(driver)} is older than NVRTC {_dotted(nvrtc)}: what it compiles cannot be loaded"
    return _missing("driver for nvrtc", text, f"install a driver for CUDA {nvrtc[0]}.0 or later")


def _pytorch(cuda: Cuda) -> Iterator[DoctorCheck]:
    newest = _dotted(cuda.nvrtc) if cuda.nvrtc else "13.0"
    if cuda.torch_cuda is None:
        remedy = f"install PyTorch's build for CUDA {newest}: its site gives the command"
        yield _missing("torch cuda build", "built without CUDA", remedy)
    else:
        yield _ok("torch cuda build", f"CUDA {cuda.torch_cuda}")
    if cuda.torch_sees:
        yield _ok("torch sees a gpu", "yes")
    elif cuda.torch_cuda is None:
        yield _missing("torch sees a gpu", "no", "install a build of PyTorch with CUDA first")
    elif _hides(cuda.visible):
        yield _missing("torch sees a gpu", "no: CUDA_VISIBLE_DEVICES hides all", "unset CUDA_VISIBLE_DEVICES")
    else:
        said = f"no: {cuda.torch_said}" if cuda.torch_said else "no"
        yield _missing("torch sees a gpu", said, f"a driver of CUDA {cuda.torch_cuda} or later and a device are needed")


def _hides(visible: str | None) -> bool:
    return visible is not None and visible.strip() in ("", "-1")


def _visible(visible: str | None) -> DoctorCheck:
    name = "CUDA_VISIBLE_DEVICES"
    if visible is None:
        return _ok(name, "not set: every GPU may be used")
    if _hides(visible):
        return _warning(name, f"{visible!r} hides every GPU", f"unset {name}, or name a GPU in it")
    return _ok(name, visible)


def _devices(driver: Driver | None) -> Iterator[DoctorCheck]:
    if driver is None or driver.gpus == ():
        remedy = "give this machine or container a GPU (docker run --gpus all), or compile for the CPU"
        yield _missing("gpu", "none", remedy)
        return
    if driver.gpus is None:
        yield _warning("gpu", "not listed: NVML does not answer", "`nvidia-smi` on the host lists them")
        return
    for gpu in driver.gpus:
        yield _device(gpu)
        yield _others(gpu)


def _device(gpu: Gpu) -> DoctorCheck:
    name, parts = f"gpu {gpu.index}", [gpu.name or "unnamed"]
    if gpu.capability is not None:
        parts.append(f"sm_{gpu.capability[0]}{gpu.capability[1]}")
    if gpu.memory_bytes is not None and gpu.free_bytes is not None:
        parts.append(f"{amount(gpu.free_bytes)} of {amount(gpu.memory_bytes)} free")
    if gpu.clock_mhz is not None:
        most = f" of {gpu.most_clock_mhz}" if gpu.most_clock_mhz is not None else ""
        parts.append(f"SM clock {gpu.clock_mhz}{most} MHz")
    if gpu.capability is not None and gpu.capability < OLDEST_SM:
        least = f"sm_{OLDEST_SM[0]}{OLDEST_SM[1]}"
        return _warning(name, ", ".join(parts), f"CUDA templates need {least} or later: use another GPU")
    return _ok(name, ", ".join(parts))


def _others(gpu: Gpu) -> DoctorCheck:
    """Return the row that names other processes on a GPU: they take its memory and disturb every measurement."""
    name = f"gpu {gpu.index} in use by"
    if gpu.processes is None:
        return _warning(name, "not told by the driver", "`nvidia-smi` on the host lists them")
    if not gpu.processes:
        return _ok(name, "nobody else")
    others = [
        f"pid {other.pid}" + (f" ({amount(other.memory_bytes)})" if other.memory_bytes is not None else "")
        for other in gpu.processes[:_NAMED]
    ]
    if len(gpu.processes) > _NAMED:
        others.append(f"{len(gpu.processes) - _NAMED} more")
    remedy = "wait for them, stop them, or choose another GPU with CUDA_VISIBLE_DEVICES: they disturb what is measured"
    return _warning(name, ", ".join(others), remedy)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _ok(check: str, value: str) -> DoctorCheck:
    return DoctorCheck(check, "ok", value, target="cuda")


def _missing(check: str, value: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(check, "missing", value, remedy, target="cuda")


def _warning(check: str, value: str, remedy: str) -> DoctorCheck:
    return DoctorCheck(check, "warning", value, remedy, target="cuda")
