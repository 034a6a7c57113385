"""Written kernels that cheat: each a small text with what it cheats, and what each of the two gates makes of it.

`KERNEL` stands for the signature of the entry. The heads declare `right`, which computes the answer, and the names IN,
INS, OUT and OUTS of the first input, the output and their extents, so that one text serves both gates: a template for a
region of a model, and a kernel for a task file. FIRST is the first input's name among the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gate = Literal["task", "region"]
GATES: tuple[Gate, ...] = ("task", "region")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The kind of a verdict, and words of its reason, as a pattern: a check, a rule, a part of a log."""

    verdict: str
    by: str


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """A text in C++, and how each gate refuses it; None where the gate is shown elsewhere, or has no such case."""

    name: str
    cheats: str
    code: str
    manifest: str = ""
    """A line at the head of the manifest."""
    task: Refusal | None = None
    region: Refusal | None = None

    def refusal(self, gate: Gate) -> Refusal | None:
        """What a gate makes of it."""
        return self.task if gate == "task" else self.region

    def kernel(self, gate: Gate) -> str:
        """The whole text."""
        return text(gate, self.code)

    def over(self, manifest: str) -> str:
        """The manifest, with the cheat's own line."""
        return f"{self.manifest}\n{manifest}"


SIGNATURES: dict[Gate, str] = {
    "task": 'extern "C" void kernel_main(const kernel_main_args& a, int rank, int size)',
    "region": 'extern "C" void matvec(const matvec_args& a, int rank, int size)',
}
HEADS: dict[Gate, str] = {
    "task": """\
#define FIRST in0
#define IN a.in0
#define OUT a.out0
#define WEIGHT a.weight
typedef kernel_main_args arguments;
constexpr long INS = 300, OUTS = 300;
static void right(const arguments& a, int rank, int size) {
    for (long r = rank; r < 6; r += size)
        for (long i = 0; i < 50; ++i) {
            const float x = a.in0[r * 50 + i];
            a.out0[r * 50 + i] = (x > 0 ? x : 0.0f) * a.weight[i];
        }
}
""",
    "region": """\
#define FIRST x
#define IN a.x
#define OUT a.y
#define WEIGHT a.w
typedef matvec_args arguments;
constexpr long INS = 64, OUTS = 32;
static void right(const arguments& a, int rank, int size) {
    for (long r = rank; r < rows; r += size) {
        float s[8] = {};
        for (long k = 0; k < hidden; k += 8)
            for (long i = 0; i < 8; ++i) s[i] += a.x[k + i] * a.w[r * hidden + k + i];
        a.y[r] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}
""",
}
RIGHT = "KERNEL { right(a, rank, size); }"


def text(gate: Gate, code: str) -> str:
    """A kernel for a gate."""
    return HEADS[gate] + code.replace("KERNEL", SIGNATURES[gate])


def _both(verdict: str, by: str) -> dict[str, Refusal]:
    return {"task": Refusal(verdict=verdict, by=by), "region": Refusal(verdict=verdict, by=by)}


def _said(name: str, cheats: str, before: str, by: str) -> Cheat:
    """A text that the static check refuses, before a compiler reads it."""
    return Cheat(name=name, cheats=cheats, code=f"{before}\n{RIGHT}", **_both("rejected", by))


def _within(name: str, cheats: str, statement: str, by: str) -> Cheat:
    """The same of a statement beside the right answer."""
    return Cheat(
        name=name, cheats=cheats, code=f"KERNEL {{ right(a, rank, size); {statement} }}", **_both("rejected", by)
    )


def _asked(name: str, cheats: str, manifest: str, by: str) -> Cheat:
    return Cheat(name=name, cheats=cheats, code=RIGHT, manifest=manifest, **_both("rejected", by))


TEXTS = (
    _said(
        "a clock of its own",
        "defines the function that reads the time",
        'extern "C" int clock_gettime(int, long* to) { to[0] = to[1] = 0; return 0; }',
        "clock_gettime",
    ),
    _said(
        "a copy that copies nothing",
        "defines a function of the C library for the whole process",
        'extern "C" void* memcpy(void* to, const void*, unsigned long) { return to; }',
        "an entry takes its struct of arguments",
    ),
    _within(
        "a library call by name",
        "asks the loader for BLAS",
        'reinterpret_cast<void (*)()>(dlsym(nullptr, "cblas_sgemv"))();',
        "`dlsym`",
    ),
    _said("a declared function of BLAS", "calls what the process has", 'extern "C" void cblas_sgemv(int);', "`extern`"),
    _within("a look at the environment", "detects the harness", 'OUT[0] += getenv("PYTEST") != nullptr;', "`getenv`"),
    _within("a look at who called", "detects the harness", "OUT[0] += !__builtin_return_address(0);", "return_address"),
    _within("a look at the stack", "detects the harness", "OUT[0] += !__builtin_frame_address(1);", "frame_address"),
    _within("a look at the cycles", "detects the harness", "OUT[0] += __rdtsc() == 1;", "`__rdtsc`"),
    _within("a look at the core", "detects the harness", "unsigned c; __rdtscp(&c); OUT[0] += c > 99;", "`__rdtscp`"),
    _said("the accounts as a header", "reads a file while it is compiled", '#include "/etc/passwd"', "/etc/passwd"),
    _said("the accounts in brackets", "reads a file while it is compiled", "#include </etc/passwd>", "/etc/passwd"),
    _said("a device as a header", "never stops to be compiled", '#include "/dev/zero"', "/dev/zero"),
    _said("a header upwards", "leaves its folder", '#include "../../../secret.h"', "../../../secret.h"),
    _said("a header by a macro", "hides which file it reads", "#define H </etc/passwd>\n#include H", "`#include H`"),
    _said("embedded data", "reads a file while it is compiled", "#embed </etc/passwd>", "only #include"),
    _said("an assembled file", "reads a file while it is compiled", 'asm(".incbin \\"/etc/passwd\\"");', "asm"),
    _within("an assembled file inside", "reads a file at build", 'asm volatile(".incbin \\"x\\"");', "no character"),
    _said("a constructor", "runs when it is loaded", "[[gnu::constructor]] static void early() {}", "`constructor`"),
    _said("a section of constructors", "runs when it is loaded", '[[gnu::section(".init_array")]] int x;', "`section`"),
    _said("a header of threads", "goes on after its launch", "#include <thread>", "<thread>"),
    _said("a header of sockets", "opens a connection", "#include <sys/socket.h>", "<sys/socket.h>"),
    _within("a heap", "fills memory", "OUT[0] += malloc(1l << 40) == nullptr;", "`malloc`"),
    _within("a fork", "makes children", "fork();", "`fork`"),
    _within("a signal's handler", "leaves the process changed", "sigaction(11, nullptr, nullptr);", "`sigaction`"),
    _within("a system call in assembly", "calls the system", 'asm volatile("syscall");', "`syscall` leaves"),
    _said("a word of two parts", "hides a word", "#define JOIN(a, b) a##b\nauto f = JOIN(dl, sym);", "`##`"),
    _said("a word over two lines", "hides a word", "auto f = dl\\\nsym;", "`dlsym`"),
    _said("a word by its numbers", "hides a word", "auto f = \\u0064lsym;", "no character is written by its number"),
    _asked("flags in the manifest", "chooses its compiler's flags", 'flags = ["-fplugin=x.so"]', "flags"),
    _asked("libraries in the manifest", "is linked with others", 'libraries = ["torch_cpu"]', "libraries"),
    _asked("a file in the manifest", "names a text elsewhere", 'kernel = "../../secret.cpp"', "kernel"),
    _asked("a call in the manifest", "has PyTorch compute it", 'call = "torch.linear"', "call"),
    Cheat(
        name="the bounds of a library",
        cheats="asks for wide bounds, which nobody knows how to narrow",
        code=RIGHT,
        manifest='accumulation = "library"',
        region=Refusal(verdict="rejected", by="accumulation"),
    ),
)
"""Refused before a compiler reads them."""

BUILDS = (
    Cheat(
        name="a function of PyTorch without its header",
        cheats="calls what the process has, by the name that the linker sees",
        code="namespace at { void mv(const float*, float*); }\nKERNEL { at::mv(IN, OUT); }",
        **_both("build-failed", "undefined reference"),
    ),
    Cheat(
        name="templates without end",
        cheats="takes a compiler for ever, and all memory",
        code="template <long N> struct deep { static constexpr long v = deep<N + 1>::v; };\n"
        "KERNEL { OUT[0] = deep<0>::v; }",
        **_both("build-failed", "instantiation depth"),
    ),
    Cheat(
        name="a loop without end for the compiler",
        cheats="takes a compiler for ever",
        code="constexpr long spin() { long n = 0; for (;;) ++n; return n; }\nconstexpr long never = spin();\n" + RIGHT,
        **_both("build-failed", "constexpr"),
    ),
)
"""Refused by the compiler, whose own limits and fence hold."""
BOMB = "\n".join(
    [
        "#define A0 x = x * 3 + 1;",
        *(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}" for n in range(1, 14)),
        "static int bomb(int x) { A13 return x; }",
        "KERNEL { right(a, rank, size); if (rank == 0) OUT[0] += bomb(int(IN[0])) == 7; }",
    ]
)
"""A text that takes a compiler far longer than it may: 67 million statements in one function."""

ASK = """\
// Machine code within a constant: `xor eax, eax; mov al, NUMBER; syscall; ret`. No word of it stands in the text.
template <long NUMBER>
[[gnu::noinline]] static uint64_t gate() {
    return 0x00c3050f00b0c031 | NUMBER << 24;
}
template <long NUMBER>
static long ask(long a = 0, long b = 0, long c = 0) {
    const unsigned char* at = reinterpret_cast<const unsigned char*>(&gate<NUMBER>);
    while (at[0] != 0x31 || at[1] != 0xc0 || at[2] != 0xb0) ++at;
    asm volatile("movl $8, %%r10d" ::: "r10");
    return reinterpret_cast<long (*)(long, long, long)>(at)(a, b, c);
}
"""
"""System calls by number on x86-64, with the fourth argument 8, in a text that the static check lets through."""
