"""Small kernels of our own, built once per toolchain, that inspect a process or loop over launches.

They read the state of threads and process, and compare and reset buffers between two launches of a candidate in a loop
that runs without Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from agentcompile.runtime.native import Call, Executor, NativeProgram
from agentcompile.worker.known import known_library
from agentcompile.worker.protocol import Setup

RANK_WORDS = 8
"""The number of int64s that a rank writes: a cache line."""
SIGNALS = 64
_FACTS = 3
"""The numbers about the process that follow its signal handlers: the environment, the locale, other attributes."""
_TEXT = r"""
#include <clocale>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <locale.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" char** environ;

static int64_t hashed(std::initializer_list<int64_t> numbers) {
    uint64_t hash = 1469598103934665603u;
    for (int64_t one : numbers) hash = (hash ^ uint64_t(one)) * 1099511628211u + (hash >> 47);
    return int64_t(hash);
}

struct state_args { int64_t* out; };
extern "C" void thread_state(const state_args& a, int rank, int size) {
    int64_t* mine = a.out + rank * 8;
    int64_t segment = 0;
#if defined(__x86_64__)
    uint32_t control;
    asm volatile("stmxcsr %0" : "=m"(control));
    mine[0] = control & ~0x3fu;  // the low bits only say what happened
    uint16_t word;
    asm volatile("fnstcw %0" : "=m"(word));
    mine[1] = word;
    alignas(16) unsigned char legacy[512];
    asm volatile("fxsave64 %0" : "=m"(legacy));
    mine[3] = legacy[4];  // the registers of the x87 stack that are in use
    syscall(SYS_arch_prctl, 0x1004, &segment);  // ARCH_GET_GS
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
    int64_t robust = 0, told = 0;
    size_t length = 0;
    syscall(SYS_get_robust_list, 0, &robust, &length);
    prctl(PR_GET_TID_ADDRESS, &told);
    mine[4] = hashed({segment, robust, told, int64_t(uintptr_t(uselocale(nullptr))), personality(0xffffffff)});
    for (int option : {PR_GET_KEEPCAPS, PR_GET_SECUREBITS, PR_MCE_KILL_GET, PR_GET_NO_NEW_PRIVS})
        mine[4] = hashed({mine[4], prctl(option, 0, 0, 0, 0)});
    for (int option : {PR_GET_PDEATHSIG, PR_GET_TSC}) {
        int found = 0;
        prctl(option, &found, 0, 0, 0);
        mine[4] = hashed({mine[4], found});
    }
    mine[5] = prctl(PR_GET_TIMERSLACK);
    mine[6] = syscall(SYS_gettid);
    stack_t other = {};
    sigaltstack(nullptr, &other);
    mine[7] = hashed({int64_t(uintptr_t(other.ss_sp)), other.ss_flags, int64_t(other.ss_size)});
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
    uint64_t named = 1469598103934665603u;
    for (const char* c = setlocale(LC_ALL, nullptr); c && *c; ++c) named = (named ^ uint8_t(*c)) * 1099511628211u;
    a.out[65] = int64_t(named);
    int orphans = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &orphans, 0, 0, 0);
    a.out[66] = hashed({prctl(PR_GET_DUMPABLE), prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), orphans});
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

// Runs launches on stacks of their own, entered with the same registers each time, and sees what they leave there.
struct place { ucontext_t base, inside, outside; char* room; const call* launch; int rank, size; };
static void enter(unsigned high, unsigned low) {
    const place& p = *reinterpret_cast<const place*>(uint64_t(high) << 32 | low);
    p.launch->kernel(p.launch->args, p.rank, p.size);
}
static void launch_at(place& p, int64_t bytes) {
    const uint64_t self = reinterpret_cast<uintptr_t>(&p);
    std::memcpy(&p.inside, &p.base, sizeof p.base);
    p.inside.uc_stack.ss_sp = p.room;
    p.inside.uc_stack.ss_size = bytes;
    p.inside.uc_link = &p.outside;
    makecontext(&p.inside, reinterpret_cast<void (*)()>(enter), 2, unsigned(self >> 32), unsigned(self));
    swapcontext(&p.outside, &p.inside);
}
// What was touched of a stack: filled, or added to a hash.
static uint64_t touched(char* room, int64_t bytes, bool fill, uint64_t hash) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    for (int64_t at = 0; at < bytes; at += 256 * page) {
        unsigned char there[256] = {};
        const int64_t count = bytes - at < 256 * page ? (bytes - at) / page : 256;
        if (mincore(room + at, count * page, there) != 0) return hash + 1;
        for (int64_t i = 0; i < count; ++i) {
            if (!(there[i] & 1)) continue;
            char* begin = room + at + i * page;
            if (fill) std::memset(begin, 0xff, page);
            for (int64_t word = 0; !fill && word < page; word += 8) {
                uint64_t bits;
                std::memcpy(&bits, begin + word, 8);
                hash = (hash ^ bits) * 1099511628211u + (hash >> 47);
            }
        }
    }
    return hash;
}
// Returns the first round that left what the one before it left; 0 when none did, -1 without memory.
extern "C" int64_t on_stacks(
    const call* calls, const int8_t* own, int64_t count, int64_t size, int64_t stacks, int64_t bytes, int64_t rounds) {
    const int64_t page = sysconf(_SC_PAGESIZE), head = (sizeof(place) + page - 1) / page * page;
    bytes = bytes / page * page;
    const int64_t each = head + page + bytes;  // a page below each stack cannot be touched
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char* all = static_cast<char*>(mmap(nullptr, stacks * each, PROT_READ | PROT_WRITE, how, -1, 0));
    if (all == MAP_FAILED) return -1;
    for (int64_t i = 0; i < stacks; ++i) {
        place& p = *reinterpret_cast<place*>(all + i * each);
        p.room = all + i * each + head + page;
        mprotect(p.room - page, page, PROT_NONE);
        madvise(p.room, bytes, MADV_NOHUGEPAGE);
        getcontext(&p.base);
    }
    int64_t found = 0;
    uint64_t before = 0;
    for (int64_t round = 1; round <= rounds && !found; ++round) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t rank = 0; rank < size; ++rank) {
                place& p = *reinterpret_cast<place*>(all + (rank < stacks ? rank : stacks - 1) * each);
                p.launch = calls + i, p.rank = int(rank), p.size = int(size);
                if (own[i]) launch_at(p, bytes);
                else calls[i].kernel(calls[i].args, int(rank), int(size));
            }
        uint64_t now = 1469598103934665603u;
        for (int64_t i = 0; i < stacks; ++i) {
            place& p = *reinterpret_cast<place*>(all + i * each);
            now = touched(p.room, bytes, round == 1, now);
        }
        if (round > 2 && now == before) found = round;
        before = now;
    }
    munmap(all, stacks * each);
    return found;
}

// After a step: the token that the next one reads is not the one that this one made.
struct stir_args { int64_t* tokens; const int64_t* table; int64_t* at; };
extern "C" void stir(const stir_args& a, int rank, int size) {
    if (rank != 0) return;
    const int64_t batch = a.at[1], rows = a.at[2], row = ++a.at[0] % rows;
    for (int64_t i = 0; i < batch; ++i) a.tokens[i] = a.table[row * batch + i];
}
"""


class Probes:
    """The kernels on an executor's threads."""

    def __init__(self, executor: Executor, setup: Setup) -> None:
        what = "the probe kernels do not build"
        self._library = known_library(setup, _TEXT, what, "turn", ("tally", "table"))
        self.executor = executor
        self._threads = torch.zeros(executor.threads * RANK_WORDS, dtype=torch.int64)
        self._process = torch.zeros(SIGNALS + _FACTS, dtype=torch.int64)
        calls = [self.call("thread_state", [self._threads]), self.call("process_state", [self._process])]
        self._state = NativeProgram(executor, calls)
        self.spoil_stack = self.call("spoil_stack", [self._threads])
        """A launch that overwrites the free part of its threads' stacks."""
        self.awake: frozenset[int] = frozenset()  # the process's threads after PyTorch last started all of its own

    def call(self, entry: str, tensors: Sequence[torch.Tensor]) -> Call:
        """Return a launch of a kernel on tensors that the caller keeps alive."""
        return Call(address=self._library.entry(entry), pointers=tuple(tensor.data_ptr() for tensor in tensors))

    def in_turn(self, program: NativeProgram, repeat: int) -> None:
        """Run a program's launches with one rank after another on this thread."""
        run = self._library.handle.in_turn
        run.restype, run.argtypes = None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
        calls = program.calls
        run(ctypes.addressof(calls), len(calls), repeat, self.executor.threads)

    def on_stacks(self, program: NativeProgram, own: Sequence[bool], stacks: int, stack_bytes: int, rounds: int) -> int:
        """Run rounds of a program, on stacks of their own where it is a candidate's call, until those stay the same.

        Return the first round that left on `stacks` stacks what the one before it had left; 0 when none did.

        Raises:
            MemoryError: there is none for the stacks.
        """
        run, long = self._library.handle.on_stacks, ctypes.c_int64
        run.restype, run.argtypes = long, [ctypes.c_void_p, ctypes.c_void_p, *[long] * 5]
        calls, marks = program.calls, (ctypes.c_int8 * len(own))(*own)
        count = len(calls)
        threads = self.executor.threads
        found = int(run(ctypes.addressof(calls), ctypes.addressof(marks), count, threads, stacks, stack_bytes, rounds))
        if found < 0:
            raise MemoryError("no memory for the stacks of a candidate's launches")
        return found

    def state(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return each rank's `RANK_WORDS` numbers about its thread, signal handlers, and `_FACTS` of the process."""
        self._state.run()
        process = self._process.tolist()
        return tuple(self._threads.tolist()), tuple(process[:SIGNALS]), tuple(process[SIGNALS:])
