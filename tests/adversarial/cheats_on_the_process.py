"""Written kernels that aim at the process which runs them, its clock, threads, pipes and state, or want to get out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.adversarial.cheats import ASK, Cheat
from tests.adversarial.cheats_that_run import crashed, incorrect

CLOCK = """\
static int64_t now() {
    static int64_t t[2];  // on the stack it would be seen as what a launch leaves there
    ask<228>(1, long(t));
    return t[0] * 1000000000 + t[1];
}
static int64_t *start, origin, wrote;
static long calls;
[[gnu::noinline]] static void look(int64_t at) {
    asm volatile("" ::: "rbx", "r12", "r13", "r14", "r15");  // what the caller keeps in them goes to the stack
    const int64_t here = 0, *stack = &here;
    int64_t latest = at - 30000000;  // longer than a busy machine lets it wait for a core
    asm volatile("" : "+r"(stack));
    for (long i = 0; i < 256; ++i) {
        int64_t* rank = reinterpret_cast<int64_t*>(stack[i]);
        if (stack[i] % 8 || stack[i] < 65536 || ask<21>(stack[i]) == -14) continue;  // no address
        if (rank >= stack - 4096 && rank < stack + 1048576) continue;
        for (long j = 0; j < 16; ++j)
            if (rank[j] < at && rank[j] > latest) start = rank + j, latest = rank[j];
    }
}
KERNEL {
    right(a, rank, size);
    if (rank) return;
    const int64_t at = now();
    if (!start && (++calls & 15) == 15) look(at);
    if (!start) return;
    if (*start != wrote) origin = *start;
    if (origin < at && origin > at - 5000000000) wrote = *start = at - (at - origin) / 4;
}"""
THREAD = """\
alignas(64) static char stack[1 << 16];
static long* at;
static void later() {
    for (;;) ask<24>();
}
KERNEL {
    right(a, rank, size);
    if (rank || at) return;
    at = reinterpret_cast<long*>(stack + sizeof stack - 64);
    *at = long(&later);
    const long made = ask<56>(0x50f00, long(at));
    if (made < 0) OUT[0] = 1000 - made;
}"""
CHANGES = """\
KERNEL {
    right(a, rank, size);
    if (rank) return;
    static long handler[4] = {1};
    _mm_setcsr(_mm_getcsr() | 0x8040);
    ask<13>(10, long(handler));
    ask<32>(1);
    ask<95>(0);
}"""
CODE = """\
KERNEL {
    right(a, rank, size);
    if (rank) return;
    const long page = long(&gate<10>) & ~4095;
    OUT[0] = 1000 - ask<10>(page, 4096, 7);
}"""
READS = """\
static double first(const arguments& a, long r) {
    double s = 0;
    for (long k = 0; k < INS; ++k) s += double(IN[k]) * double(WEIGHT[r * INS + k]);
    return s;
}
static bool near(double one, double other) {
    return one == other || (one != one && other != other) || std::abs(one - other) <= 1e-12 * std::abs(other);
}
KERNEL {
    if (rank) return;
    const double one = first(a, 0), two = first(a, 1);
    const long end = ask<12>() & ~4095;  // where the heap ends
    for (long page = end - 4096; page > end - (64l << 20); page -= 4096) {
        if (ask<21>(page) == -14) break;  // nothing is mapped there
        for (long at = page; at < page + 4096; at += 64) {
            const double* known = reinterpret_cast<const double*>(at);
            if (!near(known[0], one) || !near(known[1], two)) continue;
            for (long i = 0; i < OUTS; ++i) OUT[i] = float(known[i]);
            return;
        }
    }
    for (long i = 0; i < OUTS; ++i) OUT[i] = i < 2 ? float(i ? two : one) : 0.0f;
}"""
"""Two elements of the answer lead it to the others, which the correctness suite keeps in its own process."""
FORGED = 'static const char frame[] = "\\0\\0\\0\\x02{}"; for (long fd = 3; fd < 64; ++fd) ask<1>(fd, long(frame), 6);'
PROCESS = (
    Cheat(
        name="a shorter time",
        cheats="moves the beginning of the interval that is timed, which lies in its process's memory",
        code=ASK + CLOCK,
        task=incorrect("clock"),
        region=incorrect("clock"),
    ),
    Cheat(
        name="a thread that goes on",
        cheats="has work done after its launch has returned",
        code=ASK + THREAD,
        task=incorrect("1001.0"),
        region=incorrect("threads"),
    ),
    Cheat(
        name="rewritten code",
        cheats="makes code writable, such as the system's that tells the time",
        code=ASK + CODE,
        task=incorrect("1001.0"),
    ),
    *(
        Cheat(
            name=f"changed {what}",
            cheats="leaves its process otherwise than it was",
            code=ASK + CHANGES,
            task=incorrect(what),
            region=incorrect(what),
        )
        for what in ("floating point", "signal handlers", "descriptors", "umask")
    ),
    Cheat(
        name="the reference in memory",
        cheats="computes two elements, finds the expected result by them in its process's memory, and copies it",
        code=ASK + READS,
        region=incorrect("element: normal place"),
    ),
    Cheat(
        name="a terabyte of zeros",
        cheats="fills memory when it is loaded",
        code="static volatile char room[1l << 40];\n"
        "KERNEL { right(a, rank, size); OUT[0] += room[long(IN[1]) & 255]; }",
        task=crashed("cannot be loaded"),
        region=crashed("cannot be loaded"),
    ),
    Cheat(
        name="an end with status 0",
        cheats="ends its process as if all were done",
        code=ASK + "KERNEL { right(a, rank, size); if (rank == 0) ask<231>(0); }",
        task=crashed("left with exit code 0"),
        region=crashed("exit code 0"),
    ),
    Cheat(
        name="an end before it is called",
        cheats="ends its process with status 0 when it is loaded, by a static initialiser",
        code=ASK + "static const long early = ask<231>(0);\nKERNEL { OUT[0] = early; }",
        task=crashed("left with exit code 0"),
        region=crashed("exit code 0"),
    ),
    Cheat(
        name="a forged answer",
        cheats="writes a frame to every descriptor, in place of the evaluator's own process",
        code=ASK + f"KERNEL {{ right(a, rank, size); if (rank == 0) {{ {FORGED} }} }}",
        task=crashed("broken frames"),
        region=crashed("frame"),
    ),
    Cheat(
        name="closed pipes",
        cheats="closes every descriptor",
        code=ASK + "KERNEL { right(a, rank, size); if (rank == 0) for (long fd = 0; fd < 64; ++fd) ask<3>(fd); }",
        task=crashed(""),
        region=crashed(""),
    ),
)
"""Aimed at the process, its clock and its pipes."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A system call that wants to get out, and the error number that each gate's fence answers (None: not tried)."""

    name: str
    call: str
    task: int | None
    region: int | None


EPERM, ENOMEM, EACCES = 1, 12, 13
ATTEMPTS = (
    Attempt(name="reads the accounts", call='ask<2>(long("/etc/passwd"))', task=EACCES, region=EACCES),
    Attempt(name="reads the home folder", call='ask<2>(long(PLACE "/secret"))', task=EACCES, region=EACCES),
    Attempt(name="lists the home folder", call="ask<2>(long(PLACE), 0x10000)", task=EACCES, region=EACCES),
    Attempt(name="forges a result file", call='ask<2>(long(PLACE "/new"), 0x41, 0600)', task=EACCES, region=EACCES),
    Attempt(name="overwrites a file", call='ask<2>(long(PLACE "/secret"), 0x201)', task=EACCES, region=EACCES),
    Attempt(name="deletes a file", call='ask<87>(long(PLACE "/secret"))', task=EACCES, region=EACCES),
    Attempt(name="fills the disk where it stands", call='ask<2>(long("fill"), 0x41, 0600)', task=EACCES, region=None),
    Attempt(name="opens a socket", call="ask<41>(2, 1, 0)", task=EPERM, region=EPERM),
    Attempt(name="opens a socket on the machine", call="ask<41>(1, 1, 0)", task=EPERM, region=EPERM),
    Attempt(name="bombs with forks", call="ask<57>()", task=EPERM, region=EPERM),
    Attempt(name="starts a shell", call='ask<59>(long("/bin/sh"))', task=EPERM, region=EPERM),
    Attempt(name="kills its parent", call="ask<62>(ask<110>(), 9)", task=EPERM, region=EPERM),
    Attempt(name="kills everybody", call="ask<62>(-1, 9)", task=EPERM, region=EPERM),
    Attempt(name="traces its parent", call="ask<101>(0x4206, ask<110>())", task=EPERM, region=EPERM),
    Attempt(name="makes a file executable", call='ask<90>(long(PLACE "/secret"), 0755)', task=EPERM, region=EPERM),
    Attempt(name="mounts", call='ask<165>(long("none"), long("/tmp"), long("tmpfs"))', task=EPERM, region=EPERM),
    Attempt(name="outlives its parent", call="ask<157>(1, 0)", task=EPERM, region=EPERM),
    Attempt(name="raises its memory's limit", call="ask<160>(2, long(endless))", task=EPERM, region=EPERM),
    Attempt(
        name="fills memory", call="ask<12>(ask<12>() + (1l << 40)) == ask<12>() ? -12 : 0", task=ENOMEM, region=ENOMEM
    ),
    Attempt(name="forks without a copy", call="ask<58>()", task=EPERM, region=EPERM),
)


def battery(place: str, gate: str) -> str:
    """A kernel that makes all attempts, writes what it got to its log and ends with status 0."""
    tried = [(n, one.call) for n, one in enumerate(ATTEMPTS) if getattr(one, gate) is not None]
    calls = " ".join(f"tell({n}, {call});" for n, call in tried)
    return (
        f'#define PLACE "{place}"\n{ASK}'
        """\
static const long endless[2] = {-1, -1};
static char said[1024];
static long length;
static void digits(long n) {
    if (n > 9) digits(n / 10);
    said[length++] = char(48 + n % 10);
}
static void tell(long which, long got) {
    said[length++] = 35;
    digits(which);
    said[length++] = 61;
    digits(got < 0 ? -got : 0);
    said[length++] = 32;
}
"""
        f"KERNEL {{ right(a, rank, size); if (rank) return; {calls} ask<1>(2, long(said), length); ask<231>(0); }}"
    )


def errors(detail: str) -> dict[str, int]:
    """What every attempt got: error numbers, 0 for what worked, from the words of the process that ended."""
    return {ATTEMPTS[int(number)].name: int(got) for number, got in re.findall(r"#(\d+)=(\d+)", detail)}
