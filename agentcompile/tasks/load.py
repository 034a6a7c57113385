"""A task file, loaded in a process of its own with limits on time and memory.

In: the path of a ``.py`` file in KernelBench's format (Ouyang et al. 2025, arXiv 2502.10517). Out: what it asks for,
and the process that holds it; every fault of the file is an error that names the file, what is wrong and the remedy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from agentcompile.backends import backend_of
from agentcompile.errors import AgentCompileError
from agentcompile.ir.kind import TASK
from agentcompile.tasks.files import digest_of
from agentcompile.tasks.process import Child
from agentcompile.tasks.wire import Load, Loaded, ProcessFault, Reply, TaskRefused, TaskRequest
from agentcompile.worker.process import Expired, Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """How long each step may take, in seconds, and the memory that each process may have beyond its start."""

    load_s: float = 120.0
    """Import, model, inputs, and the few runs that show whether a task is sound."""
    check_s: float = 120.0
    """Drawing inputs and computing what must come out, or comparing it."""
    compile_s: float = 300.0
    """``torch.compile`` in one mode."""
    build_s: float = 60.0
    bind_s: float = 60.0
    launch_s: float = 10.0
    """One launch of a written kernel, or a few hundred that take no longer than one may."""
    measure_s: float = 60.0
    """One timed batch."""
    memory_bytes: int = 16 << 30


class LoadedTask:
    """A task and the process that holds it; it belongs to one thread at a time and is closed at the end of a block."""

    def __init__(self, path: Path, *, threads: int, seed: int, limits: TaskLimits, device: str = "cpu") -> None:
        """Load the task; its model and inputs lie on `device`.

        Raises:
            AgentCompileError: the file is no sound task (usage); no process can be started (environment).
        """
        self.path, self.limits, self.device = path, limits, device
        self.digest = digest_of(path)
        self._child = Child("task")
        request = Load(
            path=str(path.resolve()), seed=seed, threads=threads, memory_bytes=limits.memory_bytes, device=device
        )
        try:
            told = self.ask(request, limits.load_s)
        except BaseException:
            self.close()
            raise
        assert isinstance(told, Loaded)
        self.told = told

    def __enter__(self) -> Self:
        """Return the task itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End its process."""
        self.close()

    @property
    def kind(self) -> str:
        """What the task is called as a kind of region: ``task-`` and the file's name in small letters."""
        return f"{TASK}{re.sub(r'[^a-z0-9]+', '-', self.path.stem.lower()).strip('-') or 'file'}"

    @property
    def on_device(self) -> bool:
        """Whether its model lies in a device's memory, as its kernels' buffers do."""
        return backend_of(self.device).own_memory

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether its process still answers, as far as is known."""
        return self._child.alive

    def ask(self, request: TaskRequest, limit_s: float) -> Reply:
        """Return the reply of the task's process.

        Raises:
            AgentCompileError: the task fails, hangs or ends its process (usage).
        """
        outcome = self._child.ask(request, limit_s=limit_s)
        match outcome:
            case Lost():
                text = f"{self.path}: its process ended in {_DOING[request.kind]}: {outcome.detail}"
                hint = "a task may not end its process; if memory ran out, make its tensors smaller"
                raise AgentCompileError(text, hint=hint)
            case Expired():
                text = f"{self.path}: {_DOING[request.kind]} took longer than {outcome.limit_s:g} s"
                raise AgentCompileError(text, hint="nothing in a task may wait; make its tensors smaller if it is slow")
            case TaskRefused():
                raise AgentCompileError(f"{self.path}: {outcome.error}", hint=outcome.hint)
            case ProcessFault():
                last = outcome.error.strip().rpartition("\n")[2]
                words = ("can't allocate memory", "MemoryError", "out of memory")
                memory = any(one in outcome.error for one in words)
                hint = "make its tensors smaller" if memory else "run the file with PyTorch alone"
                raise AgentCompileError(f"{self.path}: {_DOING[request.kind]} failed: {last[:300]}", hint=hint)
            case _:
                return outcome

    def close(self) -> None:
        """End the process; calling it again does nothing."""
        self._child.close()


_DOING = {
    "load": "loading it",
    "attach": "sharing buffers",
    "draw": "drawing inputs and computing the reference",
    "spoil": "filling buffers",
    "stir": "changing inputs",
    "renew": "computing the reference of changed inputs",
    "examine": "comparing results",
    "baseline": "running it in PyTorch",
    "time-baseline": "timing PyTorch",
}
