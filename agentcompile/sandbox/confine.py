"""Puts a process, or a program that is started for it, behind a fence, by every method that works on this machine.

Landlock and seccomp must work; namespaces are added where they do. All of it holds until the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import decode, encode
from agentcompile.sandbox import landlock, namespaces, seccomp
from agentcompile.sandbox import syscalls as sys_
from agentcompile.sandbox.fence import Fence

_LAUNCHER = Path(__file__).with_name("__main__.py")
_LOOK_S = 0.02
_PATH = "/usr/local/bin:/usr/bin:/bin"
_DIE_WITH_PARENT = 1
_DEVICES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to confine a process, and why it does not work here; `needed` without it nothing is confined."""

    name: str
    needed: bool
    problem: str = ""

    @property
    def works(self) -> bool:
        """Whether this machine has it."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a program ended, its exit code or minus its signal, and what it said."""

    status: int
    log: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTimeExceeded:
    """The program outlasted its wall time, in seconds, and was killed with all that it started."""

    limit_s: float


def methods() -> tuple[Method, ...]:
    """Return the methods that there are, each with its problem on this machine."""
    return (
        Method(name="landlock", needed=True, problem=landlock.available()),
        Method(name="seccomp", needed=True, problem=seccomp.available()),
        Method(name="namespaces", needed=False, problem=namespaces.available()),
    )


def require() -> None:
    """Check that what confining needs works here.

    Raises:
        AgentCompileError: it does not (environment); the message names what is missing.
    """
    missing = [f"{name}: {why}" for name, why in _needed() if why]
    if missing:
        raise AgentCompileError(
            f"code that nobody has read cannot be confined on this machine: {'; '.join(missing)}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="use Linux 5.13 or later with Landlock and seccomp, or run it unconfined with --unsafe",
        )


def _needed() -> Iterator[tuple[str, str]]:
    yield "landlock", landlock.available()
    yield "seccomp", seccomp.available()


def confine(fence: Fence) -> None:
    """Confine this process for ever; it has one thread now, and has loaded what it needs from elsewhere.

    Its environment is emptied, and its working directory becomes its scratch, or the root.

    Raises:
        AgentCompileError: a method that is needed does not work (environment).
    """
    require()
    assert len(os.listdir("/proc/self/task")) == 1, "other threads would stay outside the fence"  # noqa: PTH208
    try:
        other, disk = _moved(namespaces.ALL, fence)
        _close(replace(fence, writable=fence.writable if disk else fence.writable[1:]), other, forget=True)
    except OSError as error:
        raise AgentCompileError(
            f"this process cannot be confined: {error}",
            exit_code=ExitCode.ENVIRONMENT,
            hint="agentcompile doctor says what works here; --unsafe runs it unconfined",
        ) from error


def _moved(kinds: int, fence: Fence) -> tuple[int | None, bool]:
    """Enter namespaces where that works; return the user to become (None: no namespaces), and if the scratch stands."""
    try:
        other = namespaces.enter(kinds)
    except OSError:
        return None, not fence.private
    if not fence.private:
        return other, True
    try:
        namespaces.own_disk(fence.writable[0], fence.disk_bytes)
    except OSError:
        return other, False
    return other, True


def _close(fence: Fence, other: int | None, *, forget: bool = False) -> None:
    """Set limits, become user `other` of the namespaces that were entered (None: of none), and close the fence.

    Raises:
        OSError: the kernel refuses a part.
    """
    if forget:
        _forget_environment()
        os.chdir(fence.writable[0] if fence.writable else "/")
        # The kernel's folders of this process are known by their nodes, which live as long as somebody has them open.
        for folder in ("/proc/self", *fence.written):
            os.open(folder, os.O_PATH | os.O_CLOEXEC)
    _limit(fence, counted=other is not None)
    namespaces.become(other or 0)
    sys_.prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # the kernel forgets the wish when a process gets another user
    landlock.restrict(fence)
    devices = len(fence.devices) > 1
    seccomp.install(seccomp.rules(pid=os.getpid(), programs=bool(fence.executable), devices=devices))


def settle() -> None:
    """Close the fence further, once a worker's threads have their cores: from now on only its main thread moves."""
    seccomp.install(seccomp.placing(os.getpid()))


def only_compute() -> None:
    """Close the fence further, before a kernel is loaded: no thread starts any more, and no memory becomes code."""
    seccomp.install(seccomp.computing())


def _limit(fence: Fence, *, counted: bool) -> None:
    """Set limits that cannot be raised; processes are `counted` apart from others' in a user namespace alone."""
    fixed = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: fence.file_bytes,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    if stack != resource.RLIM_INFINITY:
        fixed[resource.RLIMIT_STACK] = stack
    if counted:
        fixed[resource.RLIMIT_NPROC] = fence.processes
    if fence.cpu_s:
        fixed[resource.RLIMIT_CPU] = fence.cpu_s
    if fence.memory_bytes:  # not address space, which PyTorch reserves
        fixed[resource.RLIMIT_DATA] = _private_bytes() + fence.memory_bytes
    for kind, most in fixed.items():
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _forget_environment() -> None:
    """Empty the environment, and overwrite the text that the kernel and `/proc/self/environ` still show.

    Which devices are hidden from the process, and how they are numbered, stays.

    Copies elsewhere in memory stay: what holds secrets starts a process without them, as the evaluator does.
    """
    environ = vars(os)["environ"]
    kept = {name: environ[name] for name in _DEVICES if name in environ}
    environ.clear()  # Python's copy
    sys_.libc().clearenv()
    environ.update(kept)  # the driver numbers devices by them, and without would take another than was asked for
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        begin, end = int(words[47]), int(words[48])
        if 0 < begin < end:
            ctypes.memset(begin, 0, end - begin)


def _contained(argv: Sequence[str], fence: Fence) -> list[str]:
    """Return a command that runs `argv` behind `fence`: a small process enters it, then becomes the program."""
    words = json.dumps(encode(fence))
    return [sys.executable, "-I", "-S", str(_LAUNCHER), words, *argv]


def run(argv: Sequence[str], fence: Fence, *, folder: Path) -> Run | WallTimeExceeded:
    """Run a program behind `fence` in `folder`, without input and with an environment that names its scratch alone.

    It is killed when it outlasts the fence's wall time, and with SIGXFSZ when its scratch grows too large.

    Raises:
        AgentCompileError: it cannot be confined (environment).
        OSError: it does not start.
    """
    require()
    environment = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder)}
    begin, full = time.monotonic(), False
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            _contained(argv, fence), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while (status := _ended(process)) is None:
                full = _size(fence.writable) > fence.disk_bytes
                if full or (fence.wall_s and time.monotonic() - begin > fence.wall_s):
                    break
        finally:
            if process.poll() is None:
                _kill_all(process.pid)
                process.wait()
        log.seek(0)
        said = log.read(1 << 20)
    if full:
        return Run(status=-signal.SIGXFSZ, log=said)
    return WallTimeExceeded(limit_s=fence.wall_s) if status is None else Run(status=status, log=said)


def apart(work: Callable[[], None], fence: Fence) -> int | WallTimeExceeded:
    """Run `work` behind `fence` in a fork of this process, which leaves its result in the scratch; return its status.

    Raises:
        AgentCompileError: nothing can be confined here (environment).
    """
    require()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads; those here wait for a pipe, and hold no lock
        child = os.fork()
    if child == 0:
        try:
            _within(fence, work, forget=True)
        except BaseException:  # noqa: BLE001 - nothing may return into the parent's code
            traceback.print_exc()
        os._exit(126)
    begin = time.monotonic()
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return os.waitstatus_to_exitcode(status)
            if fence.wall_s and time.monotonic() - begin > fence.wall_s:
                return WallTimeExceeded(limit_s=fence.wall_s)
            if _size(fence.writable) > fence.disk_bytes:
                return -signal.SIGXFSZ
            time.sleep(_LOOK_S / 4)
    finally:
        if child:
            _kill_all(child)
            os.waitpid(child, 0)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=_LOOK_S)
    except subprocess.TimeoutExpired:
        return None


def _size(folders: Sequence[str]) -> int:
    """Return what the files in these folders take on the disk, in bytes."""
    total = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118
    return total


def _kill_all(pid: int) -> None:
    """Kill a process before its children, so that it starts no others."""
    children: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        children = [int(word) for word in words]
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in children:
        _kill_all(child)


def launch(argv: Sequence[str]) -> int:
    """Enter the fence in `argv[0]` and become the program in the rest; return an exit code where it cannot."""
    fence: Fence = decode(Fence, json.loads(argv[0]))
    try:
        require()
        _within(fence, lambda: os.execv(argv[1], list(argv[1:])), forget=False)
    except (AgentCompileError, OSError) as error:
        os.write(2, f"sandbox: {argv[1]}: {error}\n".encode())
    return 126


def _within(fence: Fence, work: Callable[[], object], *, forget: bool) -> None:
    """Run `work` behind `fence` and end this process as that ended, with all that it started.

    In namespaces it runs in a child of the first process there, whose end ends all others; this process waits.

    Raises:
        OSError: the kernel refuses a part of the fence, or `work` raised it in this process.
    """
    other, _ = _moved(namespaces.ALL | namespaces.PROCESSES, fence)
    if other is None:
        _closed(fence, None, work, forget=forget)
    sys_.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    told, tells = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(told)
        _first(tells, lambda: _closed(fence, other, work, forget=forget))
    os.close(tells)
    data = os.read(told, 4)
    os.waitpid(first, 0)
    _end(int.from_bytes(data, "little") if len(data) == 4 else signal.SIGKILL)


def _first(tells: int, work: Callable[[], None]) -> None:
    """Be the first process of a process namespace: start the work, reap what ends, and leave when the work ends."""
    try:
        sys_.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        program = os.fork()
        if program == 0:
            os.close(tells)
            work()
        ended = status = 0
        while ended != program:
            ended, status = os.wait()
        os.write(tells, status.to_bytes(4, "little"))
    finally:
        os._exit(0)


def _closed(fence: Fence, other: int | None, work: Callable[[], object], *, forget: bool) -> None:
    """Close the fence around this process, in a session of its own, and do the work; never returns."""
    code = 126
    try:
        with contextlib.suppress(PermissionError):  # it leads its group already
            os.setsid()
        _close(fence, other, forget=forget)
        work()
        code = 0
    except OSError as error:
        os.write(2, f"sandbox: {error}\n".encode())
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's code
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def _end(status: int) -> None:
    """End this process as another ended; never returns."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
