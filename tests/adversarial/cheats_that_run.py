"""Written kernels that cheat while they run, in texts that the static check lets through."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.adversarial.cheats import ASK, Cheat, Refusal


def _incorrect(by: str) -> Refusal:
    return Refusal(verdict="incorrect", by=by)


def _crashed(by: str) -> Refusal:
    return Refusal(verdict="crashed", by=by)


SLOW = """\
[[gnu::noinline]] static void slow(const arguments& a) {
    for (int i = 0; i < 2000; ++i) {
        right(a, 0, 1);
        asm volatile("" ::: "memory");
    }
}
"""
"""An answer that takes so long that keeping it pays."""
COUNTS = "static long calls;\nKERNEL {{ right(a, rank, size); if (rank == 0 && ++calls > {}) OUT[5] += 1; }}"
POISONED = "OUT[0] == 7.25f || OUT[0] == -28672.0f || OUT[0] != OUT[0]"

RESULTS = (
    Cheat(
        name="kept by address",
        cheats="returns what it computed when it last saw that address",
        code="""\
static const float* seen[64];
static float kept[64][OUTS];
static long n;
KERNEL {
    if (rank) return;
    for (long i = 0; i < n; ++i)
        if (seen[i] == IN) {
            std::memcpy(OUT, kept[i], sizeof kept[i]);
            return;
        }
    right(a, 0, 1);
    if (n == 64) return;
    std::memcpy(kept[n], OUT, sizeof kept[n]);
    seen[n++] = IN;
}""",
        region=_incorrect("element"),
    ),
    Cheat(
        name="kept by content",
        cheats="compares its inputs with those of earlier launches, and copies the result of the same ones",
        code=SLOW
        + """\
static float seen[64][INS], kept[64][OUTS];
static long n;
KERNEL {
    if (rank) return;
    for (long i = 0; i < 64; ++i)
        if (i < n && !std::memcmp(seen[i], IN, sizeof seen[i])) {
            std::memcpy(OUT, kept[i], sizeof kept[i]);
            return;
        }
    slow(a);
    std::memcpy(seen[n % 64], IN, sizeof seen[0]);
    std::memcpy(kept[n++ % 64], OUT, sizeof kept[0]);
}""",
        task=_incorrect("fresh inputs"),
    ),
    Cheat(
        name="outputs that look right",
        cheats="does nothing where the ends of its output are those of the answer already",
        code=SLOW
        + """\
KERNEL {
    if (rank) return;
    const float first = (IN[0] > 0 ? IN[0] : 0.0f) * WEIGHT[0];
    const float last = (IN[INS - 1] > 0 ? IN[INS - 1] : 0.0f) * WEIGHT[49];
    if (OUT[0] != first || OUT[OUTS - 1] != last) slow(a);
}""",
        task=_incorrect("element"),
    ),
    Cheat(
        name="work where poison shows",
        cheats="computes only where its output holds what a test puts there",
        code=f"KERNEL {{ if (rank == 0 && ({POISONED})) right(a, 0, 1); }}",
        task=_incorrect("element"),
        region=_incorrect("production"),
    ),
    Cheat(
        name="work where a redzone shows",
        cheats="computes only where NaN lies before its input",
        code="KERNEL { if (IN[-1] != IN[-1]) right(a, rank, size); }",
        task=_crashed("SIGSEGV"),
        region=_incorrect("production"),
    ),
    Cheat(
        name="work for the launch before",
        cheats="leaves its work to the next launch, and returns the answer to earlier inputs",
        code="""\
static float before[INS];
KERNEL {
    if (rank) return;
    arguments late = a;
    late.FIRST = before;
    right(late, 0, 1);
    std::memcpy(before, IN, sizeof before);
}""",
        task=_incorrect("element"),
        region=_incorrect("element"),
    ),
    Cheat(
        name="an earlier output",
        cheats="copies the buffer that the launch before wrote",
        code="""\
static const float* before;
static float x;
KERNEL {
    if (rank) return;
    if (before && x != IN[7]) std::memmove(OUT, before, OUTS * sizeof(float));
    else right(a, 0, 1), before = OUT, x = IN[7];
}""",
        task=_incorrect("element"),
        region=_incorrect("element"),
    ),
    Cheat(
        name="a constant",
        cheats="returns the same whatever the inputs are",
        code="KERNEL { for (long i = rank; i < OUTS; i += size) OUT[i] = 0.4f; }",
        region=_incorrect("element"),
    ),
    Cheat(
        name="no sign",
        cheats="leaves out what the task's own inputs, which are positive, never show",
        code="KERNEL { for (long i = rank; i < OUTS; i += size) OUT[i] = IN[i] * WEIGHT[i % 50]; }",
        task=_incorrect("element"),
    ),
    Cheat(
        name="no large inputs",
        cheats="is right up to the largest of the task's own inputs",
        code="KERNEL { for (long i = rank; i < OUTS; i += size)"
        " OUT[i] = std::min(std::max(IN[i], 0.0f), 1.0f) * WEIGHT[i % 50]; }",
        task=_incorrect("element"),
    ),
    Cheat(
        name="nothing for small inputs",
        cheats="takes inputs that are all small for zeros",
        code="KERNEL { float most = 0; for (long i = 0; i < INS; ++i) most = std::max(most, std::abs(IN[i]));"
        " if (most > 0.02f) right(a, rank, size); else for (long i = rank; i < OUTS; i += size) OUT[i] = 0; }",
        task=_incorrect("element"),
        region=_incorrect("element"),
    ),
    Cheat(
        name="sums in bf16",
        cheats="computes in fewer bits than it says",
        code="""\
static float cut(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits = (bits + 0x8000) & 0xffff0000;
    std::memcpy(&x, &bits, 4);
    return x;
}
KERNEL {
    for (long r = rank; r < OUTS; r += size) {
        float s = 0;
        for (long k = 0; k < INS; ++k) s = cut(s + IN[k] * WEIGHT[r * INS + k]);
        OUT[r] = s;
    }
}""",
        region=_incorrect("element"),
    ),
    Cheat(
        name="products in fp16",
        cheats="reads its weights in fewer bits than they have",
        code="""\
KERNEL {
    for (long r = rank; r < OUTS; r += size) {
        float s = 0;
        for (long k = 0; k < INS; ++k) s += IN[k] * _cvtsh_ss(_cvtss_sh(WEIGHT[r * INS + k], 0));
        OUT[r] = s;
    }
}""",
        region=_incorrect("element"),
    ),
    Cheat(
        name="right once",
        cheats="is wrong from the second launch on",
        code=COUNTS.format(1),
        task=_incorrect("element"),
        region=_incorrect("poison"),
    ),
    Cheat(
        name="right 100 times",
        cheats="is wrong from launch 101 on",
        code=COUNTS.format(100),
        task=_incorrect("element"),
        region=_incorrect("repeats"),
    ),
    Cheat(
        name="right 20,000 times",
        cheats="is wrong from launch 20,001 on",
        code=COUNTS.format(20_000),
        task=_incorrect("element"),
        region=_incorrect("endurance|element"),
    ),
    Cheat(
        name="a changed input",
        cheats="writes to what it may only read",
        code="KERNEL { right(a, rank, size); if (rank == 0) const_cast<float*>(IN)[3] *= 2; }",
        region=_incorrect("inputs"),
    ),
    Cheat(
        name="a changed weight",
        cheats="writes to a parameter, which every later step reads",
        code="KERNEL { right(a, rank, size); if (rank == 0) const_cast<float*>(WEIGHT)[3] += 1e-3f; }",
        region=_incorrect("inputs"),
    ),
    Cheat(
        name="a write before its output",
        cheats="writes to the neighbour below",
        code="KERNEL { right(a, rank, size); if (rank == 0) OUT[-1] = 0; }",
        region=_incorrect("redzone"),
    ),
    Cheat(
        name="a write behind its output",
        cheats="writes to the neighbour above",
        code="KERNEL { right(a, rank, size); if (rank == 0) OUT[OUTS] = 0; }",
        task=_incorrect("memory"),
        region=_incorrect("redzone"),
    ),
)
"""Wrong, or right without the work."""

CLOCK = """\
static int64_t now() {
    int64_t t[2] = {};
    ask<228>(1, long(t));
    return t[0] * 1000000000 + t[1];
}
static int64_t *start, origin, wrote;
static long calls;
[[gnu::noinline]] static void look(int64_t at) {
    asm volatile("" ::: "rbx", "r12", "r13", "r14", "r15");  // what the caller keeps in them goes to the stack
    const int64_t here = 0, *stack = &here;
    asm volatile("" : "+r"(stack));
    for (long i = 0; i < 256; ++i) {
        int64_t* rank = reinterpret_cast<int64_t*>(stack[i]);
        if (stack[i] % 8 || stack[i] < 65536 || ask<21>(stack[i]) == -14) continue;  // no address
        if (rank >= stack - 4096 && rank < stack + 1048576) continue;
        for (long j = 0; j < 16; ++j)
            if (rank[j] < at && rank[j] > at - 3000000) start = rank + j;
    }
}
KERNEL {
    right(a, rank, size);
    if (rank) return;
    const int64_t at = now();
    if (!start && (++calls & 63) == 63) look(at);
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
FORGED = 'static const char frame[] = "\\0\\0\\0\\x02{}"; for (long fd = 3; fd < 64; ++fd) ask<1>(fd, long(frame), 6);'
PROCESS = (
    Cheat(
        name="a shorter time",
        cheats="moves the beginning of the interval that is timed, which lies in its process's memory",
        code=ASK + CLOCK,
        task=_incorrect("clock"),
        region=_incorrect("clock"),
    ),
    Cheat(
        name="a thread that goes on",
        cheats="has work done after its launch has returned",
        code=ASK + THREAD,
        task=_incorrect("1001.0"),
        region=_incorrect("threads"),
    ),
    Cheat(
        name="rewritten code",
        cheats="makes code writable, such as the system's that tells the time",
        code=ASK + CODE,
        task=_incorrect("1001.0"),
    ),
    *(
        Cheat(
            name=f"changed {what}",
            cheats="leaves its process otherwise than it was",
            code=ASK + CHANGES,
            task=_incorrect(what),
            region=_incorrect(what),
        )
        for what in ("floating point", "signal handlers", "descriptors", "umask")
    ),
    Cheat(
        name="a terabyte of zeros",
        cheats="fills memory when it is loaded",
        code="static volatile char room[1l << 40];\n"
        "KERNEL { right(a, rank, size); OUT[0] += room[long(IN[1]) & 255]; }",
        task=_crashed("cannot be loaded"),
        region=_crashed("cannot be loaded"),
    ),
    Cheat(
        name="an end with status 0",
        cheats="ends its process as if all were done",
        code=ASK + "KERNEL { right(a, rank, size); if (rank == 0) ask<231>(0); }",
        task=_crashed("left with exit code 0"),
        region=_crashed("exit code 0"),
    ),
    Cheat(
        name="an end before it is called",
        cheats="ends its process with status 0 when it is loaded, by a static initialiser",
        code=ASK + "static const long early = ask<231>(0);\nKERNEL { OUT[0] = early; }",
        task=_crashed("left with exit code 0"),
        region=_crashed("exit code 0"),
    ),
    Cheat(
        name="a forged answer",
        cheats="writes a frame to every descriptor, in place of the judge's own process",
        code=ASK + f"KERNEL {{ right(a, rank, size); if (rank == 0) {{ {FORGED} }} }}",
        task=_crashed("broken frames"),
        region=_crashed("frame"),
    ),
    Cheat(
        name="closed pipes",
        cheats="closes every descriptor",
        code=ASK + "KERNEL { right(a, rank, size); if (rank == 0) for (long fd = 0; fd < 64; ++fd) ask<3>(fd); }",
        task=_crashed(""),
        region=_crashed(""),
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
