"""Small kernels of our own, built once per toolchain, that inspect a process or loop over launches.

They read the state of threads and process, and compare and reset buffers between two launches of a candidate in a loop
that runs without Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from agentcompile.runtime.native import Call, Executor, Program
from agentcompile.worker.known import known_library
from agentcompile.worker.protocol import Setup

RANK_WORDS = 8
"""The number of int64s that a rank writes: a cache line."""
SIGNALS = 64
_TEXT = r"""
#include <csignal>
#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <unistd.h>

extern "C" char** environ;

struct state_args { int64_t* out; };
extern "C" void thread_state(const state_args& a, int rank, int size) {
    int64_t* mine = a.out + rank * 8;
#if defined(__x86_64__)
    uint32_t control;
    asm volatile("stmxcsr %0" : "=m"(control));
    mine[0] = control & ~0x3fu;  // the low bits only say what happened
    uint16_t word;
    asm volatile("fnstcw %0" : "=m"(word));
    mine[1] = word;
#elif defined(__aarch64__)
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    mine[0] = control;
#endif
    sigset_t blocked;
    sigemptyset(&blocked);
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    uint64_t bits = 0;
    for (int number = 1; number <= 64; ++number)
        if (sigismember(&blocked, number) == 1) bits |= uint64_t(1) << (number - 1);
    mine[2] = int64_t(bits);
}

// What is free of this thread's stack becomes NaN in every type: a kernel that reads what it never wrote shows it.
extern "C" __attribute__((noinline)) void spoil_stack(const state_args& a, int rank, int size) {
    char room[1 << 15];
    std::memset(room, 0xff, sizeof room);
    asm volatile("" : : "r"(room) : "memory");
}

extern "C" void process_state(const state_args& a, int rank, int size) {
    if (rank != 0) return;
    for (int number = 1; number <= 64; ++number) {
        struct sigaction now;
        std::memset(&now, 0, sizeof now);
        bool known = sigaction(number, nullptr, &now) == 0;
        const int64_t handler = int64_t(reinterpret_cast<intptr_t>(now.sa_handler));
        a.out[number - 1] = known ? handler ^ (int64_t(now.sa_flags) << 48) : -1;
    }
    uint64_t hash = 1469598103934665603u;
    for (char** entry = environ; entry && *entry; ++entry)
        for (const char* c = *entry;; ++c) {
            hash = (hash ^ uint8_t(*c)) * 1099511628211u;
            if (!*c) break;
        }
    a.out[64] = int64_t(hash);
}

// After a launch: what it wrote is compared, then spoiled, and the next launch's inputs are put where it looks.
struct span { const char* a; const char* b; int64_t count, stride, bytes; };
struct turn_args { int64_t* tally; const int64_t* table; };
extern "C" void turn(const turn_args& a, int rank, int size) {
    int64_t* mine = a.tally + rank * 8;  // launches, those that were wrong, the first of them
    const span* spans = reinterpret_cast<const span*>(a.table + 2);
    bool wrong = false;
    for (int64_t i = 0; i < a.table[0]; ++i)
        for (int64_t j = 0; j < spans[i].count; ++j) {
            int64_t begin = spans[i].bytes * rank / size, end = spans[i].bytes * (rank + 1) / size;
            const char* made = spans[i].a + j * spans[i].stride + begin;
            wrong |= std::memcmp(made, spans[i].b + j * spans[i].bytes + begin, end - begin) != 0;
        }
    for (int64_t i = a.table[0]; i < a.table[0] + a.table[1]; ++i)
        for (int64_t j = 0; j < spans[i].count; ++j) {
            int64_t begin = spans[i].bytes * rank / size, end = spans[i].bytes * (rank + 1) / size;
            char* to = const_cast<char*>(spans[i].a) + j * spans[i].stride + begin;
            std::memcpy(to, spans[i].b + j * spans[i].bytes + begin, end - begin);
        }
    ++mine[0];
    if (wrong && mine[1]++ == 0) mine[2] = mine[0];
}

// Launches with one rank after another on the caller's thread, which waits for nobody.
struct call { void (*kernel)(const void* args, int rank, int size); const void* args; };
extern "C" void in_turn(const call* calls, int64_t count, int64_t repeat, int64_t size) {
    for (int64_t r = 0; r < repeat; ++r)
        for (int64_t i = 0; i < count; ++i)
            for (int rank = 0; rank < size; ++rank) calls[i].kernel(calls[i].args, rank, int(size));
}

// After a step: the token that the next one reads is not the one that this one made.
struct stir_args { int64_t* tokens; const int64_t* table; int64_t* at; };
extern "C" void stir(const stir_args& a, int rank, int size) {
    if (rank != 0) return;
    const int64_t seats = a.at[1], rows = a.at[2], row = ++a.at[0] % rows;
    for (int64_t i = 0; i < seats; ++i) a.tokens[i] = a.table[row * seats + i];
}
"""


class Probes:
    """The kernels on an executor's threads."""

    def __init__(self, executor: Executor, setup: Setup) -> None:
        what = "the probe kernels do not build"
        self._library = known_library(setup, _TEXT, what, "turn", ("tally", "table"))
        self.executor = executor
        self._threads = torch.zeros(executor.threads * RANK_WORDS, dtype=torch.int64)
        self._process = torch.zeros(SIGNALS + 1, dtype=torch.int64)
        calls = [self.call("thread_state", [self._threads]), self.call("process_state", [self._process])]
        self._state = Program(executor, calls)
        self.spoil_stack = self.call("spoil_stack", [self._threads])
        """A launch that overwrites the free part of its threads' stacks."""
        self.awake: frozenset[int] = frozenset()  # the process's threads after PyTorch last started all of its own

    def call(self, entry: str, tensors: Sequence[torch.Tensor]) -> Call:
        """Return a launch of a kernel on tensors that the caller keeps alive."""
        return Call(address=self._library.entry(entry), pointers=tuple(tensor.data_ptr() for tensor in tensors))

    def in_turn(self, program: Program, repeat: int) -> None:
        """Run a program's launches with one rank after another on this thread."""
        run = self._library.handle.in_turn
        run.restype, run.argtypes = None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
        calls = program.calls
        run(ctypes.addressof(calls), len(calls), repeat, self.executor.threads)

    def state(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Return each thread's `RANK_WORDS` numbers (registers, blocked signals), handlers, and environment's hash."""
        self._state.run()
        process = self._process.tolist()
        return tuple(self._threads.tolist()), tuple(process[:-1]), process[-1]
