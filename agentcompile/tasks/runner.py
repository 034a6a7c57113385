"""The process that runs a written kernel, and nothing else: it holds no reference, no task and no expected result.

In: a shared object and files of buffers. Out: buffers written, and times. A kernel that hangs or crashes ends this
process alone.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

from agentcompile.measure.clock import core_ns, interval, settle
from agentcompile.runtime.native import Call, Executor, Library, NativeProgram
from agentcompile.tasks.arena import mapped
from agentcompile.tasks.attending import STIR, LaunchWatch
from agentcompile.tasks.enclosing import enclose, restrict
from agentcompile.tasks.stirring import TABLE, Stirred, places_of, warm_up
from agentcompile.tasks.wire import Bind, Done, LaunchKernel, Reply, Request, Timed, TimeKernel

_MOST_CALLS = 1 << 14
"""The most launches in one list; longer batches repeat it."""


class Runner:
    """A built kernel bound to its arenas."""

    def __init__(self) -> None:
        self._calls: list[list[Call]] = []
        self._threads = 1
        self._executor: Executor | None = None
        self._stirs: list[Call] = []
        self._places = list[ctypes.Array[ctypes.c_int64]]()
        self._watch: LaunchWatch | None = None
        self._programs: dict[tuple[int, bool, bool], tuple[NativeProgram, int]] = {}

    def handle(self, request: Request) -> Reply:
        """Answer a request.

        Raises:
            TypeError: it is none for this process.
        """
        match request:
            case Bind():
                self._bind(request)
                return Done(changed=self._changed())
            case LaunchKernel():
                self._launch(request)
                return Done(changed=self._changed())
            case TimeKernel():
                return self._timed(request)
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
            ports = Stirred(elements=request.stirred, swapped=request.swapped)
            nbytes = {block.name: block.nbytes for block in request.arenas[0].blocks}
            listed = [places_of(ports, one, nbytes) for one in addresses]
            self._places = [(ctypes.c_int64 * len(one))(*one) for one in listed]
            self._stirs = [
                Call.of(attendants, STIR, [one[TABLE], ctypes.addressof(places)])
                for one, places in zip(addresses, self._places, strict=True)
            ]
        restrict(fenced=request.fenced)
        self._watch = LaunchWatch(attendants, self._executor)
        library = Library(Path(request.binary))
        self._calls = [
            [Call.of(library, entry, [one[name] if name else 0 for name in names]) for entry, names in request.launches]
            for one in addresses
        ]

    def _launch(self, request: LaunchKernel) -> None:
        calls = self._calls[request.arena]
        if request.order == "threads":
            assert self._executor is not None
            NativeProgram(self._executor, calls).run(request.repeat)
            return
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        ranks = range(self._threads) if request.order == "forwards" else reversed(range(self._threads))
        order = list(ranks)
        for call in calls:
            pointers = (ctypes.c_void_p * max(len(call.pointers), 1))(*call.pointers)
            for rank in order:
                kernel(call.address)(ctypes.addressof(pointers), rank, self._threads)

    def _timed(self, request: TimeKernel) -> Timed:
        stirred, launched = request.stirred, request.launched
        warm, _ = self._program(warm_up(request.batch), stirred, launched)
        program, repeat = self._program(request.batch, stirred, launched)
        settle()
        warm.run()
        before, begun = sum(core_ns()), time.perf_counter_ns()
        found = interval(lambda: program.time(repeat, 1)[0])
        # This thread may sleep until another rank is done, while no core is taken and the time passes.
        took_ns = max(time.perf_counter_ns() - begun, sum(core_ns()) - before)
        settle()
        return Timed(interval=found, took_ns=took_ns, changed=self._changed())

    def _changed(self) -> str:
        assert self._watch is not None
        return self._watch.changed()

    def _program(self, batch: int, stirred: bool, launched: bool) -> tuple[NativeProgram, int]:
        """Return a list of launches that walk over the arenas, and how often it is run."""
        if (batch, stirred, launched) not in self._programs:
            assert self._executor is not None
            length = batch
            repeat = 1
            if batch > _MOST_CALLS:
                length = len(self._calls)
                repeat = max(1, batch // length)
            own = self._calls if launched else [[] for _ in self._calls]
            lists = [[*self._stirs[at : at + 1], *one] if stirred else one for at, one in enumerate(own)]
            calls = [call for at in range(length) for call in lists[at % len(lists)]]
            self._programs[batch, stirred, launched] = NativeProgram(self._executor, calls), repeat
        return self._programs[batch, stirred, launched]
