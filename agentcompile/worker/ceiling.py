"""Measurement of a CPU's roofline limits and health, through the executor that candidates use.

Each rate is the best of several short runs: a ceiling is what the machine can do, not what it does on average.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from agentcompile.ir.target import Ceiling
from agentcompile.ir.timing import Interval
from agentcompile.measure.clock import interval, quantum_ns, settle
from agentcompile.measure.policy import POLICY
from agentcompile.measure.residency import block, rotation_bytes
from agentcompile.measure.rounds import Arm
from agentcompile.measure.selftest import SelfTest, selftest
from agentcompile.runtime.native import Call, Executor, NativeProgram
from agentcompile.worker.known import known_library
from agentcompile.worker.protocol import CheckHarness, Setup

_ARCH_PRCTL, _GET_PERMITTED, _TILE_DATA = 158, 0x1022, 18
"""Numbers of Linux on x86-64 (arch/x86/xstate.rst): the call, its request, and the bit of the tiles' data."""
_CALM_TRIES = 4
_TRY_S = 0.4
_TEXT = """
#include <cstdint>
// As wide as a register: compilers keep the elements of wider vectors in memory, at a fraction of the rate.
#if defined(__AVX512F__)
constexpr int WIDTH = 64;
#elif defined(__AVX__)
constexpr int WIDTH = 32;
#else
constexpr int WIDTH = 16;
#endif
constexpr int LANES = WIDTH / 4, SUMS = 8;
typedef float vec __attribute__((vector_size(WIDTH)));
struct args { const char* data; const int64_t* bytes; float* out; };

static void store(const args& a, int rank, vec t) {
    for (int i = 0; i < LANES; ++i) a.out[rank * 16 + i] = t[i];
}

template <int AHEAD>
static void read(const args& a, int rank, int size) {
    const int64_t chunks = *a.bytes / 512, first = chunks * rank / size, last = chunks * (rank + 1) / size;
    vec s[SUMS] = {};
    for (int64_t c = first; c < last; ++c) {
        const char* p = a.data + c * 512;
#pragma GCC unroll 32
        for (int i = 0; i < 512 / WIDTH; ++i) {
            if (AHEAD && i * WIDTH % 64 == 0) __builtin_prefetch(p + AHEAD + i * WIDTH, 0, 2);
            s[i % SUMS] += *reinterpret_cast<const vec*>(p + i * WIDTH);
        }
    }
    store(a, rank, ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
}
extern "C" void read_plain(const args& a, int rank, int size) { read<0>(a, rank, size); }
extern "C" void read_near(const args& a, int rank, int size) { read<1024>(a, rank, size); }
extern "C" void read_far(const args& a, int rank, int size) { read<4096>(a, rank, size); }

// Independent chains hide the latency of the multiply-add; every step is 2 * 16 * CHAINS operations.
constexpr int CHAINS = 12;
extern "C" void multiply_add(const args& a, int rank, int size) {
    const vec* in = reinterpret_cast<const vec*>(a.data);
    vec s[CHAINS], x = in[0] + 0.5f, y = in[1];
    for (int i = 0; i < CHAINS; ++i) s[i] = y + float(i);
    for (int64_t n = *a.bytes * (16 / LANES); n > 0; --n) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; ++i) s[i] = s[i] * x + y;
    }
    vec t = s[0];
    for (int i = 1; i < CHAINS; ++i) t += s[i];
    store(a, rank, t);
}

#ifdef __AVX512BF16__
#include <immintrin.h>
extern "C" void dot_bf16(const args& a, int rank, int size) {
    const __m512bh x = (__m512bh)_mm512_loadu_si512(a.data), y = (__m512bh)_mm512_loadu_si512(a.data + 64);
    __m512 s[CHAINS];
    for (int i = 0; i < CHAINS; ++i) s[i] = _mm512_set1_ps(float(i));
    for (int64_t n = *a.bytes; n > 0; --n) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; ++i) s[i] = _mm512_dpbf16_ps(s[i], x, y);
    }
    __m512 t = s[0];
    for (int i = 1; i < CHAINS; ++i) t = _mm512_add_ps(t, s[i]);
    _mm512_storeu_ps(a.out + rank * 16, t);
}
#endif

#ifdef __AMX_BF16__
#include <immintrin.h>
#include <cstring>
// Four sums in flight, as products of tiles in kernels have: TDPBF16PS takes two tiles of 16 x 32 numbers.
extern "C" void dot_tiles(const args& a, int rank, int size) {
    alignas(64) volatile uint8_t config[64] = {};
    config[0] = 1;
    for (int tile = 0; tile < 8; ++tile) {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    _tile_loadconfig(const_cast<const uint8_t*>(config));
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    _tile_loadd(4, a.data, 64); _tile_loadd(5, a.data + 1024, 64);
    _tile_loadd(6, a.data + 2048, 64); _tile_loadd(7, a.data + 3072, 64);
    for (int64_t n = *a.bytes; n > 0; --n) {
        _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
    alignas(64) float sums[4][256];
    _tile_stored(0, sums[0], 64); _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64); _tile_stored(3, sums[3], 64);
    _tile_release();
    __atomic_signal_fence(__ATOMIC_SEQ_CST);  // the intrinsic does not say that it writes memory
    std::memcpy(a.out + rank * 16, sums[rank % 4], 64);
}
#endif

extern "C" void canary(const args& a, int rank, int size) {
    const float* in = reinterpret_cast<const float*>(a.data);
    for (int64_t i = rank; i < *a.bytes; i += size) a.out[i] = in[i] * 3.0f + 1.0f;
}
"""
_CHAINS = 12
_OPERATIONS = {"multiply_add": 2 * 16 * _CHAINS, "dot_bf16": 4 * 16 * _CHAINS, "dot_tiles": 4 * 2 * 16 * 16 * 32}


def measure_ceiling(executor: Executor, setup: Setup) -> Ceiling:
    """Measure read bandwidth from DRAM and from the shared cache with all threads, and the multiply-add rate."""
    probe = _Probe(executor, setup)
    dram = rotation_bytes("dram", setup.target, POLICY)
    data = block(dram)
    data.fill_(1)
    reads = ("read_plain", "read_near", "read_far")
    near = max(rotation_bytes("cache", setup.target, POLICY), 1 << 20) // 512 * 512
    dram_rate = max(probe.rate(name, data, dram, dram) for name in reads)
    cache_rate = max(probe.rate(name, data, near, near, repeat=16) for name in reads)
    data[:4096].zero_()  # numbers that neither grow nor become denormal
    steps = 500_000
    found = [name for name in _OPERATIONS if probe.library.find(name) and (name != "dot_tiles" or _tiles_given())]
    work = {name: steps * _OPERATIONS[name] * executor.threads for name in found}
    flops = max(probe.rate(name, data, steps, operations) for name, operations in work.items())
    return Ceiling(
        dram_bytes_per_s=dram_rate.per_s,
        # A cloud machine's share of the cache may be smaller than reported; it is never slower than DRAM.
        cache_bytes_per_s=max(cache_rate.per_s, dram_rate.per_s),
        flops_per_s=flops.per_s,
        calm=dram_rate.calm and cache_rate.calm and flops.calm,
    )


def _tiles_given() -> bool:
    """Return whether Linux gave this process the data of AMX tiles; the executor has asked for them."""
    given = ctypes.c_uint64()
    libc = ctypes.CDLL(None)
    return libc.syscall(_ARCH_PRCTL, _GET_PERMITTED, ctypes.byref(given)) == 0 and bool(given.value >> _TILE_DATA & 1)


class _Rate(NamedTuple):
    per_s: float
    calm: bool


def alive(executor: Executor, setup: Setup) -> bool:
    """Run the canary, a kernel known to be right, on every thread; return whether its answer is the known one."""
    data = torch.arange(4099, dtype=torch.float32)
    out = _Probe(executor, setup).run("canary", data, data.numel(), data.numel())
    return torch.equal(out, data * 3 + 1)


def check_harness(executor: Executor, setup: Setup, request: CheckHarness) -> SelfTest:
    """Run the harness's self-test on a kernel of some microseconds; the planted difference is extra launches."""
    probe, data = _Probe(executor, setup), block(1 << 16)
    quantum = quantum_ns()
    call, keep = probe.bound("read_plain", data, data.numel(), torch.zeros(16 * executor.threads))
    found = tested(request, lambda factor: _Repeated(executor, call, factor), quantum)
    del keep
    return found


def tested(request: CheckHarness, arm: Callable[[float], Arm], quantum: int) -> SelfTest:
    """Run the harness's self-test as `request` asks on arms that do `factor` times the work of one."""
    return selftest(
        lambda difference: (arm(1.0), arm(1.0 + difference)),
        trials=request.trials,
        rounds=request.rounds,
        policy=request.policy,
        quantum_ns=quantum,
        seed=request.seed,
        planted=request.planted,
    )


class _Repeated:
    def __init__(self, executor: Executor, call: Call, factor: float) -> None:
        self._program, self._factor = NativeProgram(executor, [call]), factor

    def interval(self, batch: int) -> Interval:
        settle()
        self._program.run(max(1, batch // 4))
        return interval(lambda: self._program.time(max(1, round(batch * self._factor)), 1)[0])


def _calm(timed: Interval) -> bool:
    return timed.waited_ns <= POLICY.max_wait_share * timed.ns


class _Probe:
    def __init__(self, executor: Executor, setup: Setup) -> None:
        what = "the probe kernel does not build"
        self.library = known_library(setup, _TEXT, what, "canary", ("data", "bytes", "out"))
        self._executor = executor

    def rate(self, name: str, data: torch.Tensor, count: int, work: int, repeat: int = 1) -> _Rate:
        """Return the best rate of a few undisturbed runs, or of all in the time limit, in `work` a second."""
        call, keep = self.bound(name, data, count, torch.zeros(16 * self._executor.threads))
        program = NativeProgram(self._executor, [call])
        program.run()
        tries: list[Interval] = []
        calm = 0
        until = time.monotonic() + _TRY_S
        while calm < _CALM_TRIES and (not tries or time.monotonic() < until):
            tries.append(interval(lambda: program.time(repeat, 1)[0]))
            calm += _calm(tries[-1])
        del keep
        best = min(tries, key=lambda one: one.ns)
        return _Rate(per_s=work * repeat / max(best.ns, 1) * 1e9, calm=calm == _CALM_TRIES or _calm(best))

    def run(self, name: str, data: torch.Tensor, count: int, outputs: int) -> torch.Tensor:
        out = torch.zeros(outputs)
        call, keep = self.bound(name, data, count, out)
        NativeProgram(self._executor, [call]).run()
        del keep
        return out

    def bound(self, name: str, data: torch.Tensor, count: int, out: torch.Tensor) -> tuple[Call, list[torch.Tensor]]:
        """Return a launch of kernel `name`, and the tensors that must outlive it."""
        size = torch.tensor([count])
        pointers = (data.data_ptr(), size.data_ptr(), out.data_ptr())
        return Call(address=self.library.entry(name), pointers=pointers), [data, size, out]
