"""Written kernels that cheat while they run, in texts that the static check lets through."""

from __future__ import annotations

from tests.adversarial.cheats import Cheat, Refusal


def incorrect(by: str) -> Refusal:
    """Its numbers, or what it did to its process, are wrong."""
    return Refusal(verdict="incorrect", by=by)


def crashed(by: str) -> Refusal:
    """Its process ended, or could not be trusted any longer."""
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
        region=incorrect("element"),
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
        task=incorrect("fresh inputs"),
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
        task=incorrect("element|fresh inputs"),
    ),
    Cheat(
        name="work where poison shows",
        cheats="computes only where its output holds what a test puts there",
        code=f"KERNEL {{ if (rank == 0 && ({POISONED})) right(a, 0, 1); }}",
        task=incorrect("element"),
        region=incorrect("production"),
    ),
    Cheat(
        name="work where a redzone shows",
        cheats="computes only where NaN lies before its input",
        code="KERNEL { if (IN[-1] != IN[-1]) right(a, rank, size); }",
        task=crashed("SIGSEGV"),
        region=incorrect("production"),
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
        task=incorrect("element"),
        region=incorrect("element"),
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
        task=incorrect("element"),
        region=incorrect("element"),
    ),
    Cheat(
        name="a constant",
        cheats="returns the same whatever the inputs are",
        code="KERNEL { for (long i = rank; i < OUTS; i += size) OUT[i] = 0.4f; }",
        region=incorrect("element"),
    ),
    Cheat(
        name="a parameter at its default",
        cheats="takes a parameter for the 1 that the task's model begins with",
        code="KERNEL { for (long i = rank; i < OUTS; i += size) OUT[i] = std::max(IN[i], 0.0f); }",
        task=incorrect("element"),
    ),
    Cheat(
        name="no sign",
        cheats="leaves out what the task's own inputs, which are positive, never show",
        code="KERNEL { for (long i = rank; i < OUTS; i += size) OUT[i] = IN[i] * WEIGHT[i % 50]; }",
        task=incorrect("element"),
    ),
    Cheat(
        name="no large inputs",
        cheats="is right up to the largest of the task's own inputs",
        code="KERNEL { for (long i = rank; i < OUTS; i += size)"
        " OUT[i] = std::min(std::max(IN[i], 0.0f), 1.0f) * WEIGHT[i % 50]; }",
        task=incorrect("element"),
    ),
    Cheat(
        name="nothing for small inputs",
        cheats="takes inputs that are all small for zeros",
        code="KERNEL { float most = 0; for (long i = 0; i < INS; ++i) most = std::max(most, std::abs(IN[i]));"
        " if (most > 0.02f) right(a, rank, size); else for (long i = rank; i < OUTS; i += size) OUT[i] = 0; }",
        task=incorrect("element"),
        region=incorrect("element"),
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
        region=incorrect("element"),
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
        region=incorrect("element"),
    ),
    Cheat(
        name="right once",
        cheats="is wrong from the second launch on",
        code=COUNTS.format(1),
        task=incorrect("element"),
        region=incorrect("poison"),
    ),
    Cheat(
        name="right 100 times",
        cheats="is wrong from launch 101 on",
        code=COUNTS.format(100),
        task=incorrect("element"),
        region=incorrect("repeats"),
    ),
    Cheat(
        name="right 20,000 times",
        cheats="is wrong from launch 20,001 on",
        code=COUNTS.format(20_000),
        task=incorrect("element"),
        region=incorrect("endurance|element"),
    ),
    Cheat(
        name="a changed input",
        cheats="writes to what it may only read",
        code="KERNEL { right(a, rank, size); if (rank == 0) const_cast<float*>(IN)[3] *= 2; }",
        region=incorrect("inputs"),
    ),
    Cheat(
        name="a changed weight",
        cheats="writes to a parameter, which every later step reads",
        code="KERNEL { right(a, rank, size); if (rank == 0) const_cast<float*>(WEIGHT)[3] += 1e-3f; }",
        region=incorrect("inputs"),
    ),
    Cheat(
        name="a write before its output",
        cheats="writes to the neighbour below",
        code="KERNEL { right(a, rank, size); if (rank == 0) OUT[-1] = 0; }",
        region=incorrect("redzone"),
    ),
    Cheat(
        name="a write behind its output",
        cheats="writes to the neighbour above",
        code="KERNEL { right(a, rank, size); if (rank == 0) OUT[OUTS] = 0; }",
        task=incorrect("memory"),
        region=incorrect("redzone"),
    ),
)
"""Wrong, or right without the work."""
