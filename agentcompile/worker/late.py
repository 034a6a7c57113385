"""A late predecessor kernel: it lets its successors start at once, and writes what they read long after that.

With programmatic dependent launch a kernel runs beside the one before it until it waits. On an idle stream all its
inputs are there already, so a kernel that forgets to wait gives right results; in a step it would read what the launch
before it has not written yet.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentcompile.ir.region import Region
from agentcompile.ir.template import Launch, Source
from agentcompile.runtime.driver import Call, Module
from agentcompile.validate.production import Late
from agentcompile.worker.gpu_launch import Buffers, bind_all
from agentcompile.worker.known import known_kernels
from agentcompile.worker.protocol import Setup

_THREADS = 1024
_TEXT = """
struct late_args { const long long* table; const long long* rows; };
extern "C" __global__ void late(const __grid_constant__ late_args a) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < LATE_NS);
    for (long long row = 0; row < *a.rows; ++row) {
        volatile unsigned char* to = (volatile unsigned char*)a.table[3 * row];
        const unsigned char* from = (const unsigned char*)a.table[3 * row + 1];
        for (long long i = threadIdx.x; i < a.table[3 * row + 2]; i += blockDim.x) to[i] = from[i];
    }
}
"""
LATE_NS = 400_000
"""The delay: the host enqueues a candidate's launches within this time, and each starts before it is over."""


class Predecessor:
    """The late kernel on the current device, which has programmatic dependent launch."""

    def __init__(self, setup: Setup) -> None:
        text = f"constexpr unsigned long long LATE_NS = {LATE_NS};\n{_TEXT}"
        self._module = known_kernels(setup, text, "late", ("table", "rows"))

    def before(self, source: Source, region: Region, module: Module) -> Late:
        """Return a function that launches a candidate behind the late kernel, as early as it may, and waits."""
        # The runtime ensures that no kernel right before a launch writes what it reads before it waits.
        early = {name for launch in source.launches for name in launch.early}

        def run(buffers: Buffers, later: Mapping[str, Tensor]) -> None:
            for name in early & later.keys():
                buffers[name].copy_(later[name])
            written = sorted(later.keys() - early)
            rows = [(buffers[name].data_ptr(), later[name].data_ptr(), later[name].nbytes) for name in written]
            assert all(buffers[name].is_contiguous() and later[name].is_contiguous() for name in written)
            table, count = torch.tensor(rows, device="cuda"), torch.tensor([len(rows)], device="cuda")
            launch = Launch(entry="late", arguments=(), grid=("1",), block=(str(_THREADS),))
            late = Call.of(self._module, launch, [table.data_ptr(), count.data_ptr()], dependent=False)
            own = bind_all(source, region, module, [buffers], rotated=(), overlap=True, written=written)
            torch.cuda.synchronize()
            stream = torch.cuda.current_stream().cuda_stream
            for call in (late, *own):
                call.run(stream)
            torch.cuda.synchronize()

        return run
