"""What a worker does for each request. Stages meet here as they do in the flow: build, validate, measure, run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from agentcompile.build import compile, compile_executor
from agentcompile.ir.trial import BuildFailed, TimedOut
from agentcompile.store import Store
from agentcompile.worker import protocol as p
from agentcompile.worker.box import Box
from agentcompile.worker.limits import limit_memory

if TYPE_CHECKING:
    from agentcompile.runtime.native import Executor


class Desk:
    """Handles one request after another; PyTorch and the executor are loaded by the first that needs them."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._setup: p.Setup | None = None
        self._executor: Executor | None = None

    def handle(self, request: p.Request) -> p.Reply:
        """Answer one request; raises whatever the candidate makes PyTorch raise."""
        match request:
            case p.Setup():
                return self._begin(request)
            case p.Build():
                return self._build(request)
            case p.Validate():
                return self._validate(request)
            case p.Time():
                return self._time(request)
            case p.TimeSteps():
                from agentcompile.worker.steps import time_steps

                return p.Timed(samples=time_steps(request, self.executor, self._box))
            case p.MeasureCeiling():
                from agentcompile.worker.ceiling import measure_ceiling

                return p.CeilingMeasured(ceiling=measure_ceiling(self.executor, self.setup))
            case p.CheckHarness():
                from agentcompile.worker.ceiling import check_harness

                return p.HarnessChecked(result=check_harness(self.executor, self.setup, request))
            case p.Canary():
                from agentcompile.worker.ceiling import sing

                return sing(self.executor, self.setup)
            case _:
                assert_never(request)

    @property
    def setup(self) -> p.Setup:
        """What the first request said."""
        assert self._setup is not None, "the first request is Setup"
        return self._setup

    @property
    def executor(self) -> Executor:
        """The thread pool; PyTorch comes first, so that both use one OpenMP runtime."""
        if self._executor is None:
            import torch

            from agentcompile.runtime.native import Executor

            torch.set_num_threads(self.setup.torch_threads)
            path = compile_executor(self._store, toolchain=self.setup.toolchain)
            self._executor = Executor(path, self.setup.target.threads)
        return self._executor

    @property
    def _store(self) -> Store:
        return Store(Path(self.setup.store))

    def _begin(self, setup: p.Setup) -> p.Ready:
        self._setup = setup
        limit_memory(setup.memory_bytes)
        return p.Ready()

    def _build(self, request: p.Build) -> p.Built | BuildFailed | TimedOut:
        toolchain = self.setup.toolchain
        made = compile(request.source, self._store, toolchain=toolchain, limit_s=request.limit_s)
        return made if isinstance(made, (BuildFailed, TimedOut)) else p.Built(binary=made)

    def _validate(self, request: p.Validate) -> p.Report:
        from agentcompile.validate import Facts, validate
        from agentcompile.worker.launch import in_turn, runner

        implementation = request.implementation
        launch = runner(implementation, request.region, self.executor)
        facts = Facts(
            rounds=implementation.rounds,
            accumulation=implementation.accumulation,
            deterministic=implementation.deterministic,
            layouts=implementation.layouts,
            workspaces=implementation.source.workspaces,
        )
        report = validate(
            request.region,
            facts,
            launch,
            seed=request.seed,
            repeats=request.repeats,
            depth=request.depth,
            serial=in_turn(implementation, self.setup.target.threads),
        )
        return p.Report(report=report)

    def _time(self, request: p.Time) -> p.Timed:
        from agentcompile.worker.timing import time_arms

        return p.Timed(samples=time_arms(request, self.executor, self.setup.target, self._box))
