"""Kernels of our own in the process of a written one, and what that one may not leave changed there.

One changes buffers between timed launches (`stirring`), one reads the floating-point modes of every thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from agentcompile.backends import backend_of
from agentcompile.build import Binary, Toolchain, compile
from agentcompile.ir.target import Target
from agentcompile.ir.template import Launch, Source
from agentcompile.materialize import cuda, isa_flags
from agentcompile.runtime.native import Call, Executor, Library, NativeProgram
from agentcompile.system.store import Store

STIR = "stir"
_MODES = "modes"
_LIMIT_S = 60.0
_TEXT = r"""
#include <cstdint>
#include <cstring>
struct stir_args { int64_t* table; const int64_t* places; };
extern "C" void stir(const stir_args& a, int rank, int size) {
    const int64_t swaps = a.places[0];
    for (int64_t s = 0; s < swaps; ++s) {
        const int64_t* swap = a.places + 1 + 3 * s;
        char* __restrict x = reinterpret_cast<char*>(swap[0]);
        char* __restrict y = reinterpret_cast<char*>(swap[1]);
        for (int64_t i = swap[2] * rank / size; i < swap[2] * (rank + 1) / size; ++i) {
            const char kept = x[i];
            x[i] = y[i];
            y[i] = kept;
        }
    }
    if (rank != 0) return;
    const int64_t* change = a.table + 2 + 2 * a.table[0];
    a.table[0] += a.table[1];
    for (int64_t i = 0; i < a.table[1]; ++i, change += 2) {
        char* buffer = reinterpret_cast<char*>(a.places[1 + 3 * swaps + (change[0] >> 52)]);
        std::memcpy(buffer + (change[0] & ((int64_t(1) << 48) - 1)), change + 1, change[0] >> 48 & 15);
    }
}
struct modes_args { uint64_t* out; };
extern "C" void modes(const modes_args& a, int rank, int size) {
    a.out[rank] = 0;
#if defined(__x86_64__)
    uint32_t control;
    asm volatile("stmxcsr %0" : "=m"(control));
    uint16_t word;
    asm volatile("fnstcw %0" : "=m"(word));
    a.out[rank] = (control & ~0x3fu) | uint64_t(word) << 32;  // the low bits only say what happened
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(a.out[rank]));
#endif
}
"""
_DEVICE_TEXT = r"""
struct stir_args { long long* table; const long long* places; };
extern "C" __global__ void stir(const __grid_constant__ stir_args a) {
    const long long swaps = a.places[0], made = a.table[0], rows = a.table[1];
    for (long long s = 0; s < swaps; ++s) {
        const long long* swap = a.places + 1 + 3 * s;
        char* x = (char*)swap[0];
        char* y = (char*)swap[1];
        for (long long i = threadIdx.x; i < swap[2]; i += blockDim.x) {
            const char kept = x[i];
            x[i] = y[i];
            y[i] = kept;
        }
    }
    for (long long at = threadIdx.x; at < rows; at += blockDim.x) {
        const long long* change = a.table + 2 + 2 * (made + at);
        char* place = (char*)a.places[1 + 3 * swaps + (change[0] >> 52)] + (change[0] & ((1ll << 48) - 1));
        const char* bytes = (const char*)(change + 1);
        for (long long i = 0; i < (change[0] >> 48 & 15); ++i) place[i] = bytes[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) a.table[0] = made + rows;
}
"""
DEVICE_STIR = Launch(entry=STIR, arguments=("table", "places"), grid=("1",), block=("256",))
"""The launch of our own kernel on a device, one block."""
_FACTS = {"Umask": "umask", "SigBlk": "blocked signals", "SigIgn": "signal handlers", "SigCgt": "signal handlers",
          "Threads": "threads"}  # fmt: skip
"""Lines of /proc/self/status, and what they are called."""


def build_attendants(store: Store, toolchain: Toolchain, target: Target) -> Path:
    """Build our own kernels; on a device there is but the one that changes buffers.

    Raises:
        RuntimeError: the compiler cannot build them.
    """
    launches = (Launch(entry=STIR, arguments=("table", "places")), Launch(entry=_MODES, arguments=("out",)))
    source = Source(language="cpp", text=_TEXT, launches=launches, workspaces=(), flags=isa_flags(target))
    if backend_of(target.kind).own_memory:
        flags = cuda.flags(target)
        source = Source(language="cuda", text=_DEVICE_TEXT, launches=(DEVICE_STIR,), workspaces=(), flags=flags)
    made = compile(source, store, toolchain=toolchain, limit_s=_LIMIT_S)
    if not isinstance(made, Binary):
        raise RuntimeError(f"kernels of our own do not build: {made}")
    return Path(made.path).resolve()


class LaunchWatch:
    """What a launch that only computes does not change in its process: modes, signals, threads, descriptors, umask."""

    def __init__(self, library: Library, executor: Executor) -> None:
        self._modes = (ctypes.c_uint64 * executor.threads)()
        call = Call.of(library, _MODES, [ctypes.addressof(self._modes)])
        self._read = NativeProgram(executor, [call])
        self._before = self._state()

    def changed(self) -> str:
        """Return what is not as it was when the watch began, in words; empty where nothing changed."""
        now = self._state()
        return ", ".join(sorted(name for name in now if now[name] != self._before[name]))

    def _state(self) -> dict[str, str]:
        self._read.run()
        found = {"floating point": " ".join(map(str, self._modes)), "descriptors": " ".join(_descriptors())}
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in _FACTS:
                found[_FACTS[name]] = found.get(_FACTS[name], "") + value
        return found


def _descriptors() -> list[str]:
    found = []
    for name in sorted(os.listdir("/proc/self/fd")):  # noqa: PTH208 - names alone
        with contextlib.suppress(OSError):  # the descriptor that listed the folder is closed
            found.append(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")  # noqa: PTH115
    return found
