"""The one place where the process of a written kernel is confined before any of its code runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentcompile.sandbox import confine, for_worker, only_compute
from agentcompile.worker.limits import limit_memory


def enclose(readable: Iterable[Path], *, memory_bytes: int = 0, fenced: bool, nodes: Iterable[str] = ()) -> None:
    """Limit this process's memory, and where it is `fenced` confine it for ever: it may read `readable`, no more.

    With the device `nodes` of an accelerator its memory has no limit: a driver maps far more than it uses.

    It has one thread now, and has opened what it needs from elsewhere.

    Raises:
        AgentCompileError: nothing can be confined on this machine (environment).
    """
    if fenced:
        confine(for_worker(readable=readable, devices=nodes, memory_bytes=memory_bytes))
    elif memory_bytes:
        limit_memory(memory_bytes)


def restrict(*, fenced: bool) -> None:
    """Allow no more threads than there are, and no more code but that of files, before a kernel is loaded.

    Raises:
        OSError: the kernel of the system takes no filter.
    """
    if fenced:
        only_compute()
