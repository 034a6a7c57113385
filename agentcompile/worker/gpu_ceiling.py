"""Measurement of a CUDA device's roofline limits and health, through the driver calls that candidates use."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Launch
from agentcompile.ir.timing import Interval
from agentcompile.measure.policy import POLICY
from agentcompile.measure.residency import rotation_bytes
from agentcompile.measure.selftest import SelfTest
from agentcompile.runtime.device_step import captured
from agentcompile.runtime.driver import Call
from agentcompile.worker.ceiling import tested
from agentcompile.worker.gpu_timing import QUANTUM_NS, DeviceTimer
from agentcompile.worker.known import known_kernels
from agentcompile.worker.protocol import CheckHarness, Setup

_TRIES = 8
_DRAM_BYTES = 2 << 30  # the size of the DRAM read: a tuned read of 2 GiB reaches the rate of longer ones
_MATRIX = 8192
_TEXT = """
struct read_args { const uint4* x; const long long* count; unsigned* y; };
extern "C" __global__ void __launch_bounds__(512) read(const __grid_constant__ read_args a) {
    const long long n = *a.count, stride = (long long)gridDim.x * 512;
    uint4 s = {0, 0, 0, 0};
    for (long long i = (long long)blockIdx.x * 512 + threadIdx.x; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = __ldcg(a.x + i + j * stride);
#pragma unroll
        for (int j = 0; j < 8; ++j) s.x ^= v[j].x, s.y ^= v[j].y, s.z ^= v[j].z, s.w ^= v[j].w;
    }
    if ((s.x ^ s.y ^ s.z ^ s.w) == 0x12345678u) a.y[0] = 1;
}
struct canary_args { const float* x; float* y; };
extern "C" __global__ void canary(const __grid_constant__ canary_args a) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    a.y[i] = a.x[i] * 3.0f + 1.0f;
}
"""


class CeilingProbe:
    """Kernels of our own that measure and check the current device."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._module = known_kernels(setup, _TEXT, "canary", ("x", "y"))

    def alive(self) -> bool:
        """Run a kernel that is known to be right and return whether its answer was."""
        x = torch.arange(4096, dtype=torch.float32, device="cuda")
        y = torch.zeros_like(x)
        launch = Launch(entry="canary", arguments=(), grid=("16",), block=("256",))
        self._bound(launch, [x, y]).run(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        return bool(torch.equal(y, x * 3 + 1))

    def ceiling(self) -> Ceiling:
        """Measure the rates of reading from DRAM and the shared cache, and of dense bf16 products (two FLOPs each)."""
        data = torch.randint(0, 1 << 30, (_DRAM_BYTES // 8,), dtype=torch.int64, device="cuda")
        near = rotation_bytes("cache", self._setup.target, POLICY) // 128 * 128
        dram = max(self._rate(data, _DRAM_BYTES, per, 1) for per in (1, 2, 3, 4))
        cache = max(self._rate(data, near, per, 16) for per in (1, 2, 4))
        a = torch.randn(_MATRIX, _MATRIX, device="cuda").bfloat16()
        out = torch.empty_like(a)

        def multiply() -> None:
            torch.mm(a, a, out=out)

        product, watch = captured(multiply), DeviceTimer()
        ns = min(watch.elapsed(product.replay).ns for _ in range(_TRIES))
        return Ceiling(dram_bytes_per_s=dram, cache_bytes_per_s=max(cache, dram), flops_per_s=2e9 * _MATRIX**3 / ns)

    def selftest(self, request: CheckHarness) -> SelfTest:
        """Run the harness's self-test on a kernel of some microseconds; the planted difference is extra launches."""
        data = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
        call, keep = self._reads(data, data.numel() * 8, 1)

        found = tested(request, lambda factor: _DeviceRepeated(call, factor), QUANTUM_NS)
        del keep
        return found

    def _rate(self, data: torch.Tensor, nbytes: int, blocks: int, repeat: int) -> float:
        call, keep = self._reads(data, nbytes, blocks)
        graph = captured(lambda: call.run(torch.cuda.current_stream().cuda_stream), times=repeat)
        watch = DeviceTimer()
        ns = min(watch.elapsed(graph.replay).ns for _ in range(_TRIES))
        del keep
        return 1e9 * nbytes * repeat / ns

    def _reads(self, data: torch.Tensor, nbytes: int, blocks: int) -> tuple[Call, list[torch.Tensor]]:
        """Return a launch that reads `nbytes`, and the tensors that must outlive it."""
        count = torch.tensor([nbytes // 16], device="cuda")
        out = torch.zeros(4, dtype=torch.int32, device="cuda")
        grid = (str(self._setup.target.threads * blocks),)
        tensors = [data, count, out]
        return self._bound(Launch(entry="read", arguments=(), grid=grid, block=("512",)), tensors), tensors

    def _bound(self, launch: Launch, tensors: Sequence[torch.Tensor]) -> Call:
        return Call.of(self._module, launch, [tensor.data_ptr() for tensor in tensors], dependent=False)


class _DeviceRepeated:
    def __init__(self, call: Call, factor: float) -> None:
        self._call, self._factor = call, factor
        self._watch = DeviceTimer()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def interval(self, batch: int) -> Interval:
        times = max(1, round(batch * self._factor))
        if times not in self._graphs:
            run = self._call.run
            self._graphs[times] = captured(lambda: run(torch.cuda.current_stream().cuda_stream), times=times)
        return self._watch.elapsed(self._graphs[times].replay)
