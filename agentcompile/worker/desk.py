"""The worker's answer to each request: build, validate, measure, run a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from agentcompile.backends import backend_of
from agentcompile.build import compile
from agentcompile.ir.trial import BuildFailed, Disturbed, TimedOut
from agentcompile.sandbox import settle
from agentcompile.system.exhausted import exhausted, first_line
from agentcompile.system.store import Store
from agentcompile.worker import protocol as p
from agentcompile.worker.limits import limit_memory

if TYPE_CHECKING:
    from agentcompile.ir.timing import Samples
    from agentcompile.worker.box import Box
    from agentcompile.worker.gpu import GpuDevice
    from agentcompile.worker.host import Host


class Desk:
    """A handler of one request after another; PyTorch and the device are loaded by the first that needs them."""

    def __init__(self, box: Box, *, confined: bool = False) -> None:
        self._box, self._confined = box, confined
        self._setup: p.Setup | None = None
        self._device: GpuDevice | Host | None = None

    def handle(self, request: p.Request) -> p.Reply:
        """Answer one request; whatever the candidate makes PyTorch raise passes through."""
        match request:
            case p.Setup():
                return self._begin(request)
            case p.Build():
                return self._build(request)
            case p.Validate():
                return p.SuiteReport(report=self.device.validate(request))
            case p.Time() | p.TimeSteps() | p.TimePrompts():
                return self._timed(request)
            case p.FeedModel():
                return self._fed(request)
            case p.MeasureCeiling():
                return p.CeilingMeasured(ceiling=self.device.ceiling())
            case p.CheckHarness():
                return p.HarnessChecked(result=self.device.selftest(request))
            case p.Furnish():
                return self._furnish()
            case p.Canary():
                if self.device.alive():
                    return p.Alive()
                return p.WorkerFault(error="a kernel that is known to be right gave a wrong answer")
            case _:
                assert_never(request)

    @property
    def setup(self) -> p.Setup:
        """The first request."""
        assert self._setup is not None, "the first request is Setup"
        return self._setup

    @property
    def device(self) -> GpuDevice | Host:
        """The device that `Setup` names, ready to use."""
        if self._device is None:
            if backend_of(self.setup.device).queued:
                from agentcompile.worker.gpu import GpuDevice

                self._device = GpuDevice(self.setup, self._box)
            else:
                from agentcompile.worker.host import Host

                self._device = Host(self.setup, self._box)
            if self._confined:
                self._device.alive()  # starts the executor's threads, each on a core of its own
                settle()
        return self._device

    def _begin(self, setup: p.Setup) -> p.Ready:
        self._setup = setup
        # A CUDA context maps far more than it uses, and its memory is the device's.
        if not backend_of(setup.device).own_memory:
            limit_memory(setup.memory_bytes)
        return p.Ready()

    def _furnish(self) -> p.Alive | p.WorkerFault:
        self.device.furnish()
        return p.Alive() if self.device.alive() else p.WorkerFault(error="a kernel that is known to be right is wrong")

    def _timed(self, request: p.Timer) -> p.RoundsTimed | p.Wrong:
        try:
            return p.RoundsTimed(samples=self._samples(request))
        except p.WrongOutput as wrong:
            return p.Wrong(arm=wrong.arm, report=wrong.report)

    def _samples(self, request: p.Timer) -> Samples:
        device = self.device
        match request:
            case p.Time():
                return device.time(request)
            case p.TimeSteps():
                return device.steps(request)
            case p.TimePrompts():
                assert not backend_of(self.setup.device).queued, "chunks on a GPU have the lengths of their programs"
                return device.prompts(request)  # type: ignore[union-attr]

    def _fed(self, request: p.FeedModel) -> p.Fed | p.Lacking:
        try:
            return self.device.feed(request)
        except Exception as error:
            if (resource := exhausted(error)) is None:
                raise
            return p.Lacking(resource=resource, detail=first_line(error))

    def _build(self, request: p.Build) -> p.BinaryBuilt | BuildFailed | TimedOut | Disturbed:
        store, toolchain = Store(Path(self.setup.store)), self.setup.toolchain
        try:
            made = compile(request.source, store, toolchain=toolchain, limit_s=request.limit_s, fenced=request.fenced)
        except OSError:
            store.prove()
            raise
        if isinstance(made, BuildFailed):  # a full disk, too, makes a compiler fail; temporary files are gone by now
            store.prove()
        return made if isinstance(made, (BuildFailed, TimedOut, Disturbed)) else p.BinaryBuilt(binary=made)
