"""A CUDA device as a worker uses it: the same requests as on the host, answered on the device.

The correctness suite runs there too: its tensors, including the float64 reference's, lie on the device, because a host
takes seconds for what a device does in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling
from agentcompile.ir.timing import Samples
from agentcompile.ir.trial import NumericReport
from agentcompile.measure.selftest import SelfTest
from agentcompile.runtime.device_step import overlaps_launches
from agentcompile.runtime.driver import Module
from agentcompile.runtime.library import bind as bind_library
from agentcompile.runtime.memory import Memory
from agentcompile.validate import validate
from agentcompile.validate.endurance import MakeLoop
from agentcompile.validate.production import Late
from agentcompile.validate.rig import Instruments
from agentcompile.worker import protocol as p
from agentcompile.worker.box import Box
from agentcompile.worker.feeding import Pulse, device_model, feed
from agentcompile.worker.gpu_ceiling import CeilingProbe
from agentcompile.worker.gpu_launch import Buffers, device_binder, device_runner
from agentcompile.worker.gpu_looping import device_looper
from agentcompile.worker.gpu_timing import gpu_time_arms, gpu_time_steps
from agentcompile.worker.housing import house
from agentcompile.worker.late import Predecessor
from agentcompile.worker.launch import facts_of, inputs_of, store_outputs
from agentcompile.worker.steps import constants


class GpuDevice:
    """The device that `Setup` names."""

    def __init__(self, setup: p.Setup, box: Box) -> None:
        self._setup, self._box = setup, box
        self._weights: tuple[str, Memory] | None = None
        self._predecessor: Predecessor | None = None
        try:
            torch.cuda.set_device(setup.device)
            torch.zeros(1, device="cuda")  # makes the device's context current in this thread
        except (RuntimeError, AssertionError) as error:
            text = f"{setup.device} cannot be used: {str(error).strip().partition(chr(10))[0]}"
            hint = "agentcompile doctor says what driver and devices are there"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint) from error

    def validate(self, request: p.Validate) -> NumericReport:
        """Run the correctness suite on the device."""
        implementation, region = request.implementation, request.region
        late: Late | None = None
        loop: MakeLoop | None = None
        if implementation.source.language == "library":
            run = _library_runner(implementation, region)
        else:
            module, arch = Module(Path(implementation.binary.path)), self._setup.target.arch
            run = device_runner(implementation.source, region, module, arch)
            loop = device_looper(device_binder(implementation.source, region, module, arch), torch.cuda.synchronize)
            if overlaps_launches(arch):
                self._predecessor = self._predecessor or Predecessor(self._setup)
                late = self._predecessor.before(implementation.source, region, module)
        with torch.device("cuda"):
            return validate(
                region,
                facts_of(implementation),
                run,
                seed=request.seed,
                repeats=request.repeats,
                depth=request.depth,
                tools=Instruments(beat=self._box.tick) if request.depth != "search" else None,
                house=house("cuda"),
                late=late,
                launches=request.launches if implementation.source.language != "library" else 0,
                loop=loop,
            )

    def time(self, request: p.Time) -> Samples:
        """Time arms in interleaved rounds."""
        return self._freed(gpu_time_arms(request, self._setup.target, self._box))

    def steps(self, request: p.TimeSteps) -> Samples:
        """Time whole steps in interleaved rounds."""
        return self._freed(gpu_time_steps(request, self._memory(request), self._setup.target, self._box))

    def feed(self, request: p.FeedModel) -> p.Fed:
        """Run a whole model on sequences."""
        self._weights = None  # frees the weights of timed steps: this model needs the memory
        torch.cuda.empty_cache()
        pulse = Pulse(self._box, torch.cuda.synchronize)
        return feed(request, device_model(request, self._setup.target, pulse), self._box, pulse)

    def ceiling(self) -> Ceiling:
        """Measure the device's roofline limits."""
        return CeilingProbe(self._setup).ceiling()

    def furnish(self) -> None:
        """Build every kernel of our own that requests need."""
        if overlaps_launches(self._setup.target.arch):
            Predecessor(self._setup)

    def alive(self) -> bool:
        """Return whether a kernel that is known to be right gives its answer."""
        return CeilingProbe(self._setup).alive()

    def selftest(self, request: p.CheckHarness) -> SelfTest:
        """Run the timing harness's self-test on the device's clock."""
        return CeilingProbe(self._setup).selftest(request)

    def _memory(self, request: p.TimeSteps) -> Memory:
        """Return the checkpoint's weights on the device, kept from one request to the next of the same model."""
        programs = request.programs
        known = self._weights
        if known is None or known[0] != request.checkpoint or not known[1].holds(programs):
            self._weights = None
            read = Checkpoint.open(request.checkpoint).tensor
            known = (request.checkpoint, Memory(programs, read, constants(request.constants), "cuda"))
            known[1].furnish()
            self._weights = known
        return known[1]

    def _freed(self, samples: Samples) -> Samples:
        """Release the memory that the request took, as other workers use the same device; return `samples`."""
        torch.cuda.empty_cache()
        return samples


def _library_runner(implementation: p.Implementation, region: Region) -> Callable[[Buffers], None]:
    call = bind_library(implementation.source.call, region, implementation.source.settings)
    return lambda buffers: store_outputs(call(inputs_of(region, buffers)), buffers)
