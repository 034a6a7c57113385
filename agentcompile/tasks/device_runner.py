"""The process that runs a written kernel on a device, and nothing else: it holds no task and no expected result.

In: a binary for the device and files of buffers. Out: buffers written, and times. The kernel's code runs on the device
alone, so that this process is ours: it copies an arena to the device, launches, waits, and copies everything back,
redzones included. A kernel that hangs or faults ends this process alone.
"""

from __future__ import annotations

from pathlib import Path

import torch

from agentcompile.errors import AgentCompileError
from agentcompile.runtime.device_step import overlaps_launches
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.sites import Action
from agentcompile.system.exhausted import exhausted, first_line
from agentcompile.tasks.arena import mapped
from agentcompile.tasks.attending import DEVICE_STIR
from agentcompile.tasks.enclosing import enclose
from agentcompile.tasks.graphs import GraphBatches
from agentcompile.tasks.mirror import Mirror
from agentcompile.tasks.stirring import TABLE, Stirred, places_of, warm_up
from agentcompile.tasks.wire import BindDevice, Done, LaunchKernel, ProcessFault, Reply, Request, Timed, TimeKernel
from agentcompile.worker.gpu_launch import Buffers, bind_all


class DeviceRunner:
    """A built kernel bound to copies of its arenas."""

    def __init__(self) -> None:
        self._mirrors: list[Mirror] = []
        self._calls: list[list[Call]] = []
        self._stirs: list[Call] = []
        self._places: list[torch.Tensor] = []
        self._batches: dict[tuple[bool, bool], GraphBatches] = {}

    def handle(self, request: Request) -> Reply:
        """Answer a request.

        Raises:
            TypeError: it is none for this process.
        """
        if isinstance(request, BindDevice):
            try:
                self._prepare(request)
            except (AgentCompileError, AssertionError, RuntimeError) as error:  # no kernel is loaded yet
                return ProcessFault(error=f"{request.device} cannot be used: {first_line(error)}", environment=True)
        try:
            return self._answered(request)
        except (AgentCompileError, RuntimeError) as error:  # a kernel takes no memory of a device but what it is given
            return ProcessFault(error=first_line(error), environment=exhausted(error) == "gpu")

    def _answered(self, request: Request) -> Reply:
        match request:
            case BindDevice():
                self._bind(request)
            case LaunchKernel():
                self._launch(request)
            case TimeKernel():
                return self._timed(request)
            case _:
                raise TypeError(f"not for the process of a kernel on a device: {request.kind}")
        return Done()

    def _prepare(self, request: BindDevice) -> None:
        addresses = [mapped(file) for file in request.arenas]
        files = (Path(request.binary), Path(request.attendants))
        enclose(files, fenced=request.fenced, nodes=request.nodes)  # before the driver has threads
        torch.zeros(1, device=request.device)  # says what is wrong where there is none
        torch.cuda.set_device(request.device)
        torch.zeros(1, device="cuda")  # makes the device's context current in this thread
        self._mirrors = [Mirror(file, one) for file, one in zip(request.arenas, addresses, strict=True)]
        if request.stirred:
            own, ports = Module(Path(request.attendants)), Stirred(elements=request.stirred, swapped=request.swapped)
            nbytes = {block.name: block.nbytes for block in request.arenas[0].blocks}
            first = {name: self._mirrors[0].buffers[name] for name in request.shared}
            for one in self._mirrors:
                held = {name: tensor.data_ptr() for name, tensor in {**one.buffers, **first}.items()}
                places = torch.tensor(places_of(ports, held, nbytes), device="cuda")
                self._places.append(places)
                self._stirs.append(Call.of(own, DEVICE_STIR, [held[TABLE], places.data_ptr()], dependent=False))

    def _bind(self, request: BindDevice) -> None:
        module, source, region = Module(Path(request.binary)), request.source, request.region
        first = {name: self._mirrors[0].buffers[name] for name in request.shared}
        slots: list[Buffers] = [{**one.buffers, **first} for one in self._mirrors]
        rotated = [name for name in slots[0] if name not in first]
        overlap = overlaps_launches(request.arch)
        self._calls = [bind_all(source, region, module, [one], rotated=(), overlap=overlap) for one in slots]
        apart = [bind_all(source, region, module, [one], rotated=(), overlap=False) for one in slots]

        def launches(count: int) -> Action:
            turn = [slots[at % len(slots)] for at in range(count)]
            return _queue(bind_all(source, region, module, turn, rotated=rotated, overlap=overlap))

        def stirred(count: int) -> Action:
            pairs = list(zip(self._stirs, apart, strict=True))
            turn = [pairs[at % len(pairs)] for at in range(count)]
            return _queue([call for stir, calls in turn for call in (stir, *calls)])

        def changes(count: int) -> Action:
            return _queue([self._stirs[at % len(self._stirs)] for at in range(count)])

        # A launch reads no memory that nothing was written to, and no change of a buffer beyond the last one.
        self._batches = {(False, True): GraphBatches(launches, ready=self._load)}
        if self._stirs:
            self._batches[True, True] = GraphBatches(stirred, ready=self._load)
            self._batches[True, False] = GraphBatches(changes, ready=self._load)

    def _load(self) -> None:
        for mirror in self._mirrors:
            mirror.load()

    def _launch(self, request: LaunchKernel) -> None:
        mirror = self._mirrors[request.arena]
        mirror.load()
        launch = _queue(self._calls[request.arena])
        for _ in range(request.repeat):
            launch()
        torch.cuda.synchronize()
        mirror.store()

    def _timed(self, request: TimeKernel) -> Timed:
        batches = self._batches[request.stirred, request.launched]
        warm, shown = batches.of(warm_up(request.batch)), request.shown or request.stirred
        batches.of(request.batch)  # a capture launches, too, and what follows counts the changes of buffers

        def before() -> None:
            if shown:
                self._load()
            warm()

        found = batches.timed(request.batch, before=before)
        for mirror in self._mirrors if shown else ():
            mirror.store()
        return found


def _queue(calls: list[Call]) -> Action:
    """Return what queues launches in order on the current stream."""

    def queue() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for call in calls:
            call.run(stream)

    return queue
