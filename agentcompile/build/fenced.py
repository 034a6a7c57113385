"""Compiles what this process would compile itself in a fork behind a fence: Python texts, and texts for NVRTC.

The fork leaves its result in a scratch folder, as bytes that are only read: nothing in it is believed or executed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentcompile.build.cxx import clean_log, read_made
from agentcompile.errors import AgentCompileError
from agentcompile.ir.template import Source
from agentcompile.ir.trial import BuildFailed, TimedOut
from agentcompile.sandbox import WallTimeExceeded, apart, for_worker
from agentcompile.system.store import Store

_MOST_BYTES = 64 << 20
_LOG_BYTES = 1 << 20
_MEMORY_BYTES = 8 << 30
_PARTS = ("made-0", "made-1")
_FAILED = "failed"

Make = Callable[[Source, Path], tuple[bytes, bytes] | BuildFailed]
"""A function of a source and a folder for temporary files to the parts of its binary."""


def compile_apart(
    make: Make, source: Source, store: Store, limit_s: float, *, programs: tuple[str, ...] = ()
) -> tuple[bytes, bytes] | BuildFailed | TimedOut:
    """Return what `make` returns of `source`, in a fork that reaches Python, a scratch folder and `programs` alone.

    Raises:
        AgentCompileError: nothing can be confined here, or the store cannot be written (environment).
    """
    with store.scratch() as folder:
        loaders = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if programs else ()
        fence = replace(
            for_worker(writable=[folder], memory_bytes=_MEMORY_BYTES),
            executable=(*programs, *loaders),
            wall_s=limit_s,
            cpu_s=int(limit_s) + 2,
            file_bytes=_MOST_BYTES,
            disk_bytes=4 * _MOST_BYTES,
        )

        def work() -> None:
            try:
                made = make(source, folder)
            except AgentCompileError as error:
                made = BuildFailed(log=error.message)
            if isinstance(made, BuildFailed):
                (folder / _FAILED).write_text(made.log, encoding="utf-8")
                return
            for name, data in zip(_PARTS, made, strict=True):
                (folder / name).write_bytes(data)

        status = apart(work, fence)
        if isinstance(status, WallTimeExceeded):
            return TimedOut(stage="build", limit_s=limit_s)
        if (folder / _FAILED).exists():
            return BuildFailed(log=clean_log(read_made(folder / _FAILED, _LOG_BYTES).decode(errors="replace")))
        if status != 0:
            why = "its files are too large" if status == -signal.SIGXFSZ else f"it ended with status {status}"
            return BuildFailed(log=f"compiling behind the fence failed: {why}")
        try:
            first, second = (read_made(folder / name, _MOST_BYTES) for name in _PARTS)
        except OSError as error:
            return BuildFailed(log=f"compiling behind the fence left no binary: {error.strerror}")
        return first, second
