"""The process that runs a written kernel, and nothing else: it holds no reference, no task and no expected result.

In: a shared object and files of buffers. Out: buffers written, and times. A kernel that hangs or crashes ends this
process alone.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from agentcompile.measure.clock import core_ns, interval, settle
from agentcompile.runtime.native import Call, Executor, Library, Program
from agentcompile.tasks.arena import mapped
from agentcompile.tasks.attending import STIR, Watch
from agentcompile.tasks.enclosing import enclose, restrict
from agentcompile.tasks.stirring import TABLE, warm_up
from agentcompile.tasks.wire import Bind, Done, Launch, Reply, Request, Timed, TimeKernel

_MOST_CALLS = 1 << 14
"""The most launches in one list; longer batches repeat it."""


class Runner:
    """A built kernel bound to its arenas."""

    def __init__(self) -> None:
        self._calls: list[list[Call]] = []
        self._threads = 1
        self._executor: Executor | None = None
        self._stirs: list[Call] = []
        self._watch: Watch | None = None
        self._programs: dict[tuple[int, bool], tuple[Program, int]] = {}

    def handle(self, request: Request) -> Reply:
        """Answer a request.

        Raises:
            TypeError: it is none for this process.
        """
        match request:
            case Bind():
                self._bind(request)
                return Done(changed=self._changed())
            case Launch():
                self._launch(request)
                return Done(changed=self._changed())
            case TimeKernel():
                return self._timed(request.batch, request.stirred)
            case _:
                raise TypeError(f"not for the process of a kernel: {request.kind}")

    def _bind(self, request: Bind) -> None:
        addresses = [mapped(file) for file in request.arenas]
        for one in addresses:
            one.update({name: addresses[0][name] for name in request.shared})
        files = (Path(request.binary), Path(request.executor), Path(request.attendants))
        enclose(files, memory_bytes=request.memory_bytes, fenced=request.fenced)  # before there is a second thread
        self._executor, self._threads = Executor(Path(request.executor), request.threads), request.threads
        self._executor.start()
        attendants = Library(Path(request.attendants))
        if request.stirred:
            self._stirs = [Call.of(attendants, STIR, [one[TABLE], one[request.stirred]]) for one in addresses]
        restrict(fenced=request.fenced)
        self._watch = Watch(attendants, self._executor)
        library = Library(Path(request.binary))
        self._calls = [
            [Call.of(library, entry, [one[name] if name else 0 for name in names]) for entry, names in request.launches]
            for one in addresses
        ]

    def _launch(self, request: Launch) -> None:
        calls = self._calls[request.arena]
        if request.order == "threads":
            assert self._executor is not None
            Program(self._executor, calls).run(request.repeat)
            return
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        ranks = range(self._threads) if request.order == "forwards" else reversed(range(self._threads))
        order = list(ranks)
        for call in calls:
            pointers = (ctypes.c_void_p * max(len(call.pointers), 1))(*call.pointers)
            for rank in order:
                kernel(call.address)(ctypes.addressof(pointers), rank, self._threads)

    def _timed(self, batch: int, stirred: bool) -> Timed:
        warm, _ = self._program(warm_up(batch), stirred)
        program, repeat = self._program(batch, stirred)
        settle()
        warm.run()
        before = sum(core_ns())
        found = interval(lambda: program.time(repeat, 1)[0])
        took_ns = sum(core_ns()) - before
        settle()
        return Timed(interval=found, took_ns=took_ns, changed=self._changed())

    def _changed(self) -> str:
        assert self._watch is not None
        return self._watch.changed()

    def _program(self, batch: int, stirred: bool) -> tuple[Program, int]:
        """Return a list of launches that walk over the arenas, and how often it is run."""
        if (batch, stirred) not in self._programs:
            assert self._executor is not None
            length = batch
            repeat = 1
            if batch > _MOST_CALLS:
                length = len(self._calls)
                repeat = max(1, batch // length)
            lists = [[*self._stirs[at : at + 1], *own] if stirred else own for at, own in enumerate(self._calls)]
            calls = [call for at in range(length) for call in lists[at % len(lists)]]
            self._programs[batch, stirred] = Program(self._executor, calls), repeat
        return self._programs[batch, stirred]
