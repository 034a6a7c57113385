"""Runs the host's C++ compiler: a text in; out a shared object in the store, or a cleaned log."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from agentcompile.build.stateless import refusal, state_of_library, state_of_object
from agentcompile.build.toolchain import KERNEL_LINK_FLAGS, LINK_FLAGS, Toolchain
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.trial import BuildFailed, Disturbed, TimedOut
from agentcompile.sandbox import WallTimeExceeded, for_build
from agentcompile.sandbox import run as run_behind
from agentcompile.system.plain_files import read_plain
from agentcompile.system.store import Store

LOG_CHARACTERS = 8000
_MADE = {".o": "object file", ".so": "library"}
_BINARY_BYTES = 256 << 20
_MEMORY_BYTES = 4 << 30
_KILLED = re.compile(
    r"(Killed|Terminated) signal terminated program|terminated with signal (9|15)\b"
    r"|unable to execute command: (Killed|Terminated)"
)
"""Messages of g++ and clang++ when one of their programs was killed from outside, not by its own limits."""


def run_cxx(
    text: str,
    key: str,
    toolchain: Toolchain,
    flags: tuple[str, ...],
    limit_s: float,
    store: Store,
    *,
    fenced: bool = False,
    stateless: bool = True,
) -> Path | BuildFailed | TimedOut | Disturbed:
    """Compile and link `text`, and store the result under `key`.

    A text whose code keeps state between launches fails with `stateless` (`build.stateless`).

    It works in a scratch directory with relative names, so that neither log nor binary contains its path. Compiling and
    linking are two commands, because a single one that is killed leaves its object file in the system's temporary
    directory. A compiler that is `fenced` reaches nothing but that directory and its own files.

    Raises:
        AgentCompileError: the store cannot be written, or the compiler cannot be started or confined (environment).
    """
    deadline = time.monotonic() + limit_s
    with store.scratch() as folder:
        (folder / "kernel.cpp").write_text(text, encoding="utf-8")
        for command in (
            [toolchain.compiler, *flags, "-pipe", f"-frandom-seed={key[:16]}", "-c", "kernel.cpp", "-o", "kernel.o"],
            [toolchain.compiler, "kernel.o", *(KERNEL_LINK_FLAGS if stateless else LINK_FLAGS), "-o", "kernel.so"],
        ):
            if stateless and "kernel.o" in command[:2] and (why := _state(folder / "kernel.o", state_of_object)):
                return BuildFailed(log=why)
            run = _run_fenced if fenced else _run
            outcome = run(command, folder, deadline, limit_s)
            if isinstance(outcome, TimedOut):
                return outcome
            status, log = outcome
            if status == -signal.SIGXFSZ:
                return BuildFailed(log="the files that it makes are too large")
            if status in (-signal.SIGKILL, -signal.SIGTERM) or (status != 0 and _KILLED.search(log)):
                return Disturbed(stage="build", detail=f"the compiler was killed: {clean_log(log, folder)[-200:]}")
            if status != 0:
                return BuildFailed(log=clean_log(log, folder) or f"the compiler left with status {status} and no word")
        if stateless and (why := _state(folder / "kernel.so", state_of_library)):
            return BuildFailed(log=why)
        try:
            made = read_made(folder / "kernel.so", _BINARY_BYTES)
        except OSError as error:
            return BuildFailed(log=f"the compiler made no library: {error.strerror}")
        return store.write(key, made, ".so")


def _state(path: Path, state_of: Callable[[bytes], tuple[str, ...]]) -> str:
    """Return why the kernel in a file of the compiler is refused; empty when it keeps no state."""
    try:
        return refusal(state_of(read_made(path, _BINARY_BYTES)))
    except OSError as error:
        return f"the compiler made no {_MADE[path.suffix]}: {error.strerror}"
    except ValueError as error:
        return f"the compiler made no {_MADE[path.suffix]}: {error}"


def run_header(text: str, toolchain: Toolchain, flags: tuple[str, ...], limit_s: float, store: Store) -> bytes | None:
    """Precompile the header `text`; None when the compiler fails or takes longer than `limit_s` seconds."""
    with store.scratch() as folder:
        (folder / "prelude.h").write_text(text, encoding="utf-8")
        command = [toolchain.compiler, *flags, "-x", "c++-header", "prelude.h", "-o", "prelude.h.gch"]
        outcome = _run(command, folder, time.monotonic() + limit_s, limit_s)
        made = not isinstance(outcome, TimedOut) and outcome[0] == 0
        return (folder / "prelude.h.gch").read_bytes() if made else None


def clean_log(log: str, folder: Path | None = None) -> str:
    """Remove escapes, control characters and the scratch path from a log; keep the head and the tail of a long one."""
    log = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", log)
    log = log.replace(f"{folder}/", "") if folder else log
    log = "".join(c for c in log if c == "\n" or (c.isprintable() and not "\u202a" <= c <= "\u2069")).strip()
    if len(log) <= LOG_CHARACTERS:
        return log
    half = LOG_CHARACTERS // 2
    return f"{log[:half]}\n… {len(log) - 2 * half} characters left out …\n{log[-half:]}"


def _run(command: list[str], folder: Path, deadline: float, limit_s: float) -> tuple[int, str] | TimedOut:
    # In our own process group, so that killing the worker's group kills the compiler too.
    log = folder / "log"
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        except OSError as error:
            text = f"{command[0]}: the compiler does not start: {error.strerror}"
            hint = "check the compiler's installation, or set CXX to another one"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error
        with contextlib.suppress(ProcessLookupError):
            # The driver's children inherit the limits, so that compilers of a killed worker end by themselves.
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(limit_s) + 2, int(limit_s) + 2))
            resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        try:
            status = process.wait(timeout=max(deadline - time.monotonic(), 0.01))
        except BaseException as error:
            _kill_tree(process.pid)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return TimedOut(stage="build", limit_s=limit_s)
    return status, log.read_text(encoding="utf-8", errors="replace")


def _run_fenced(command: list[str], folder: Path, deadline: float, limit_s: float) -> tuple[int, str] | TimedOut:
    fence = for_build(command[0], folder, wall_s=max(deadline - time.monotonic(), 0.01))
    try:
        ended = run_behind(command, fence, folder=folder)
    except OSError as error:
        text = f"{command[0]}: the compiler does not start: {error.strerror}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="check Python's installation") from error
    if isinstance(ended, WallTimeExceeded):
        return TimedOut(stage="build", limit_s=limit_s)
    return ended.status, ended.log.decode("utf-8", "replace")


def read_made(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a plain file that an untrusted process made; no link is followed.

    Raises:
        OSError: it is missing, a link, something other than a plain file, or larger than `most_bytes`.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link")
    return read_plain(path, most_bytes)


def _kill_tree(pid: int) -> None:
    """Kill the compiler driver before its children, so that it starts no others."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for victim in (pid, *children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
