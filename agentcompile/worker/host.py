"""The host's processor as a worker uses it: kernels through the executor, with the correctness suite."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from agentcompile.build import compile_executor
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling
from agentcompile.ir.timing import Samples
from agentcompile.ir.trial import NumericReport
from agentcompile.materialize import isa_flags
from agentcompile.measure.selftest import SelfTest
from agentcompile.runtime.native import Executor
from agentcompile.runtime.openmp import fair_threads
from agentcompile.system.store import Store
from agentcompile.validate import validate
from agentcompile.validate.chunk import AnyChunk
from agentcompile.validate.rig import Instruments
from agentcompile.worker import protocol as p
from agentcompile.worker.box import Box
from agentcompile.worker.ceiling import alive, check_harness, measure_ceiling
from agentcompile.worker.feeding import Pulse, feed, host_model
from agentcompile.worker.housing import house
from agentcompile.worker.known import prove_builds
from agentcompile.worker.launch import binder, chunk_in_turn, chunk_runner, facts_of, in_turn, runner
from agentcompile.worker.looping import looper
from agentcompile.worker.probes import Probes
from agentcompile.worker.prompts import time_prompts
from agentcompile.worker.state import ProcessWatch
from agentcompile.worker.steps import time_steps
from agentcompile.worker.timing import time_arms


class Host:
    """The CPU threads that `Setup` allows; PyTorch is loaded first, so that both use one OpenMP runtime."""

    def __init__(self, setup: p.Setup, box: Box) -> None:
        self._setup, self._box = setup, box
        torch.set_num_threads(setup.torch_threads)
        path = compile_executor(Store(Path(setup.store)), toolchain=setup.toolchain, flags=isa_flags(setup.target))
        self._executor = Executor(path, setup.target.threads)

    def validate(self, request: p.Validate) -> NumericReport:
        """Run the correctness suite, then check that the process is in the state it was in before."""
        implementation, native = request.implementation, request.implementation.source.language != "library"
        watch = ProcessWatch(self._probes)
        runner(implementation, request.region, self._executor)
        watch.loaded()
        # On a busy machine each of the reference's many small operators would wait for a thread that has lost its core.
        # A library call's result may depend on the number of its threads, so it keeps all.
        with fair_threads() if native else nullcontext():
            report = self._validated(request, request.region, watch)
            for region in request.lengths:
                if report.ok:
                    shorter = replace(request, depth="search", repeats=2, launches=0, chunk=())
                    report = report.and_of(self._validated(shorter, region, watch), _tokens(region))
        return replace(report, checks=(*report.checks, watch.check()))

    def _validated(self, request: p.Validate, region: Region, watch: ProcessWatch) -> NumericReport:
        implementation, native = request.implementation, request.implementation.source.language != "library"
        spoil = self._probes.spoil_stack
        run = runner(implementation, region, self._executor, spoil)
        return validate(
            region,
            facts_of(implementation),
            watch.around(run) if native else run,
            seed=request.seed,
            repeats=request.repeats,
            depth=request.depth,
            serial=in_turn(implementation, region, self._setup.target.threads, spoil),
            tools=Instruments(beat=self._box.tick) if request.depth != "search" else None,
            house=house(),
            launches=request.launches if native else 0,
            loop=watch.within(looper(self._probes, binder(implementation, region))) if native else None,
            chunk=self._any_chunk(request) if native else None,
        )

    def _any_chunk(self, request: p.Validate) -> AnyChunk | None:
        """Return what launches on chunks of any length; None where their length is fixed."""
        if not request.chunk:
            return None
        longest = max(dict(one.dims)["tokens"] for one in (request.region, *request.lengths))
        implementation, spoil = request.implementation, self._probes.spoil_stack
        run = chunk_runner(implementation, self._executor, spoil)
        serial = chunk_in_turn(implementation, self._setup.target.threads, spoil)
        return AnyChunk(region=request.chunk[0], longest=longest, run=run, serial=serial)

    @functools.cached_property
    def _probes(self) -> Probes:
        return Probes(self._executor, self._setup)

    def time(self, request: p.Time) -> Samples:
        """Time arms in interleaved rounds."""
        return time_arms(request, self._executor, self._setup.target, self._box, ProcessWatch(self._probes))

    def steps(self, request: p.TimeSteps) -> Samples:
        """Time whole steps in interleaved rounds."""
        return time_steps(request, self._executor, self._box, self._probes)

    def prompts(self, request: p.TimePrompts) -> Samples:
        """Time whole prompts in interleaved rounds."""
        return time_prompts(request, self._executor, self._box, self._probes)

    def feed(self, request: p.FeedModel) -> p.Fed:
        """Run a whole model on sequences."""
        pulse = Pulse(self._box)
        return feed(request, host_model(request, self._executor, pulse), self._box, pulse)

    def ceiling(self) -> Ceiling:
        """Measure the machine's roofline limits."""
        return measure_ceiling(self._executor, self._setup)

    def furnish(self) -> None:
        """Build every kernel of our own that requests need, and one behind a compiler's fence.

        Raises:
            AgentCompileError: the compiler does not work there (environment).
        """
        Probes(self._executor, self._setup)
        prove_builds(self._setup)

    def alive(self) -> bool:
        """Return whether a kernel that is known to be right gives its answer on every thread."""
        return alive(self._executor, self._setup)

    def selftest(self, request: p.CheckHarness) -> SelfTest:
        """Run the timing harness's self-test on the real timer."""
        return check_harness(self._executor, self._setup, request)


def _tokens(region: Region) -> str:
    """Return the length of a region's chunk for people."""
    return f"{dict(region.dims)['tokens']} tokens"
