"""Small tasks in KernelBench's format, right kernels for them, and ways to be wrong."""

from __future__ import annotations

import os
from pathlib import Path

from agentcompile.evaluation.machine import Machine
from agentcompile.ir.attempt import Written
from agentcompile.ir.target import Ceiling
from agentcompile.system.probe import probe
from agentcompile.system.store import Store
from agentcompile.tasks.load import TaskLimits
from agentcompile.tasks.open import OpenedTask
from tests.cpu import jobs

CEILING = Ceiling(dram_bytes_per_s=1e12, cache_bytes_per_s=1e13, flops_per_s=1e14)
"""More than any machine has: no kernel is called impossible by it."""
LIMITS = TaskLimits(launch_s=4.0, memory_bytes=4 << 30)

_HEAD = """\
import torch
from torch import nn


class Model(nn.Module):
"""
SCALED = (
    _HEAD
    + """\
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.relu(x) * self.weight


def get_inputs():
    return [torch.randn(6, 50)]


def get_init_inputs():
    return [50]
"""
)
"""A parameter that is 1 at first, rows that end within a vector."""
UNCOMPILED = "import torch._inductor.config as config\n\nconfig.cpp.cxx = ('no-such-compiler',)\n" + SCALED
"""The same, which torch.compile fails on at once."""
NORMED = (
    _HEAD
    + """\
    def forward(self, x, ids):
        return torch.softmax(x, dim=-1), x.argmax(-1), x[:, ids]


def get_inputs():
    return [torch.randn(5, 70), torch.randint(0, 70, (9,))]


def get_inputs_at(scale):
    width = 3 + int(scale * 67)
    return [torch.randn(5, width), torch.randint(0, width, (9,))]


def get_init_inputs():
    return []
"""
)
"""Three outputs, one of them of whole numbers, an input of whole numbers, and other widths."""
PRODUCT = (
    _HEAD
    + """\
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(96, 33, dtype=torch.bfloat16)

    def forward(self, x):
        return torch.nn.functional.gelu(self.layer(x))


def get_inputs():
    return [torch.randn(4, 96, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
"""
)
"""A narrow type and a product."""

QUANTIZED = (
    _HEAD
    + """\
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (24, 40), dtype=torch.int8))
        self.register_buffer("shift", torch.randint(256, (24,), dtype=torch.uint8))

    def forward(self, x):
        return x @ self.weight.to(x.dtype).T - self.shift.to(x.dtype)


def get_inputs():
    return [torch.randn(3, 40)]


def get_init_inputs():
    return []
"""
)
"""Buffers of bytes, with a sign and without."""

KERNEL_SCALED = """\
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    for (long r = rank; r < in0_d0; r += size)
        for (long i = 0; i < in0_d1; ++i) {
            const float x = a.in0[r * in0_d1 + i];
            a.out0[r * in0_d1 + i] = (x > 0 ? x : 0.0f) * a.weight[i];
        }
}
"""
KERNEL_NORMED = """\
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    for (long r = rank; r < in0_d0; r += size) {
        const float* x = a.in0 + r * in0_d1;
        float* y = a.out0 + r * in0_d1;
        long best = 0;
        double sum = 0;
        for (long i = 1; i < in0_d1; ++i) best = x[i] > x[best] ? i : best;
        for (long i = 0; i < in0_d1; ++i) sum += std::exp(double(x[i]) - x[best]);
        for (long i = 0; i < in0_d1; ++i) y[i] = float(std::exp(double(x[i]) - x[best]) / sum);
        a.out1[r] = best;
        for (long i = 0; i < in1_d0; ++i) a.out2[r * in1_d0 + i] = x[a.in1[i]];
    }
}
"""
KERNEL_PRODUCT = """\
static float wide(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
static bf16 narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return bf16{0x7fc0};
    return bf16{uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    for (long r = rank; r < in0_d0; r += size)
        for (long n = 0; n < out0_d1; ++n) {
            float s = wide(a.layer_bias[n]);
            for (long k = 0; k < in0_d1; ++k) s += wide(a.in0[r * in0_d1 + k]) * wide(a.layer_weight[n * in0_d1 + k]);
            a.out0[r * out0_d1 + n] = narrow(0.5f * s * (1.0f + std::erf(s * 0.70710678f)));
        }
}
"""

KERNEL_QUANTIZED = """\
extern "C" void kernel_main(const kernel_main_args& a, int rank, int size) {
    for (long r = rank; r < in0_d0; r += size)
        for (long n = 0; n < out0_d1; ++n) {
            double s = 0;
            for (long k = 0; k < in0_d1; ++k) s += double(a.in0[r * in0_d1 + k]) * a.weight[n * in0_d1 + k];
            a.out0[r * out0_d1 + n] = float(s - a.shift[n]);
        }
}
"""


def here(folder: Path) -> Machine:
    """This machine, with a store in `folder`."""
    toolchain = jobs.toolchain(os.environ.get("CXX_REAL", ""))  # a fence lets no script compile
    target = probe(toolchain=toolchain.name, threads=2)
    return Machine(target=target, toolchain=toolchain, store=Store(folder / "store"), hashes=folder / "hashes.json")


def manifest(opened: OpenedTask) -> str:
    """The manifest that the contract shows."""
    interface = opened.contract.interface
    assert isinstance(interface, dict)
    shown = interface["manifest"]
    assert isinstance(shown, dict)
    return str(shown["example"])


def written(opened: OpenedTask, kernel: str) -> Written:
    """A kernel with that manifest."""
    return Written(manifest=manifest(opened), kernel=kernel)
