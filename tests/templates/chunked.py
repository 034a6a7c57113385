"""A CPU template of a prefill built once, and run on chunks of any length, for tests that compare it with float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from agentcompile.build import Binary, compile, compile_executor, find_toolchain
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Source, Template
from agentcompile.materialize import specialise
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.native import Executor, Library, NativeProgram
from agentcompile.system.probe import probe
from agentcompile.system.store import Store
from agentcompile.worker.launch import bind
from agentcompile.worker.protocol import Implementation
from tests.templates.shapes import Extents, any_chunk
from tests.templates.suite import problems

TOKENS = 256
"""The length that a chunk's kernels are made at."""
WIDE = ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16")
EMULATED = """
inline float emulated_reduce(__m512 v) {
    float lanes[16], total = 0;
    std::memcpy(lanes, &v, 64);
    for (float lane : lanes) total += lane;
    return total;
}
inline float emulated_wide(uint16_t half) {
    uint32_t bits = uint32_t(half) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline __m512 emulated_dot(__m512 acc, __m512bh a, __m512bh b) {
    float sums[16];
    uint16_t x[32], y[32];
    std::memcpy(sums, &acc, 64), std::memcpy(x, &a, 64), std::memcpy(y, &b, 64);
    for (int i = 0; i < 32; ++i) sums[i / 2] += emulated_wide(x[i]) * emulated_wide(y[i]);
    std::memcpy(&acc, sums, 64);
    return acc;
}
inline __m512 emulated_fused(__m512 a, __m512 b, __m512 c) {
    float x[16], y[16], z[16];
    std::memcpy(x, &a, 64), std::memcpy(y, &b, 64), std::memcpy(z, &c, 64);
    for (int i = 0; i < 16; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
    std::memcpy(&c, z, 64);
    return c;
}
struct emulated_halves { uint16_t bits[16]; };
inline emulated_halves emulated_narrow(__m512 v) {
    uint32_t bits[16];
    emulated_halves made;
    std::memcpy(bits, &v, 64);
    for (int i = 0; i < 16; ++i) made.bits[i] = uint16_t((bits[i] + 0x7fff + ((bits[i] >> 16) & 1)) >> 16);
    return made;
}
inline __m512i emulated_pair(int32_t pair) {
    int32_t pairs[16];
    __m512i v;
    for (int32_t& one : pairs) one = pair;
    std::memcpy(&v, pairs, 64);
    return v;
}
inline __m512i emulated_load(const void* p) {
    __m512i v;
    std::memcpy(&v, p, 64);
    return v;
}
inline float emulated_top(__m512 v) {
    float lanes[16], top = -INFINITY;
    std::memcpy(lanes, &v, 64);
    for (float lane : lanes) top = lane > top ? lane : top;
    return top;
}
inline __m512 emulated_max(__m512 a, __m512 b) {
    float x[16], y[16];
    std::memcpy(x, &a, 64), std::memcpy(y, &b, 64);
    for (int i = 0; i < 16; ++i) y[i] = x[i] > y[i] ? x[i] : y[i];
    std::memcpy(&b, y, 64);
    return b;
}
inline __mmask16 emulated_compare(__m512 a, __m512 b, int not_less) {
    float x[16], y[16];
    std::memcpy(x, &a, 64), std::memcpy(y, &b, 64);
    unsigned mask = 0;
    for (int i = 0; i < 16; ++i) mask |= unsigned(!(x[i] < y[i])) << i;
    return not_less == _CMP_NLT_UQ ? __mmask16(mask) : __mmask16(0);
}
inline __m512 emulated_scale(__mmask16 kept, __m512 a, __m512 powers) {
    float x[16], n[16];
    std::memcpy(x, &a, 64), std::memcpy(n, &powers, 64);
    for (int i = 0; i < 16; ++i) x[i] = !(kept >> i & 1) ? 0.0f : n[i] != n[i] ? n[i] : std::ldexp(x[i], int(n[i]));
    std::memcpy(&a, x, 64);
    return a;
}
inline __m512i emulated_permute(__m512i a, __m512i places, __m512i b) {
    uint16_t from[64], at[32], made[32];
    std::memcpy(from, &a, 64), std::memcpy(from + 32, &b, 64), std::memcpy(at, &places, 64);
    for (int i = 0; i < 32; ++i) made[i] = from[at[i] % 64];
    std::memcpy(&a, made, 64);
    return a;
}
#define _mm512_reduce_max_ps emulated_top
#define _mm512_max_ps emulated_max
#define _mm512_cmp_ps_mask emulated_compare
#define _mm512_maskz_scalef_ps emulated_scale
#define _mm512_permutex2var_epi16 emulated_permute
#define _mm512_loadu_si512 emulated_load
#define _mm512_fmadd_ps emulated_fused
#define _mm512_reduce_add_ps emulated_reduce
#define _mm512_dpbf16_ps emulated_dot
#define _mm512_cvtneps_pbh emulated_narrow
#define _mm512_set1_epi32 emulated_pair
"""
"""The AVX-512 instructions that kernels name, in plain C++, for a host that lacks them; the rest is the compiler's."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A template at one point, made for chunks of up to `TOKENS` tokens."""

    template: Template
    region: Region
    source: Source
    binary: Binary
    library: Library

    @property
    def implementation(self) -> Implementation:
        """What a worker is given of it."""
        return Implementation(
            label=self.template.id,
            source=self.source,
            binary=self.binary,
            rounds=self.template.rounds,
            accumulation=self.template.accumulation,
            deterministic=self.template.deterministic,
            layouts=self.template.layouts,
        )


class Workshop:
    """This host's toolchain, executors of several sizes, and a store of binaries."""

    def __init__(self, root: Path) -> None:
        self.store, self.toolchain = Store(root), find_toolchain()
        self.target = probe(toolchain=self.toolchain.name, threads=2)
        self._path = compile_executor(self.store, toolchain=self.toolchain)

    def executor(self, threads: int) -> Executor:
        """The pool of that many threads."""
        return Executor(self._path, threads)

    def having(self, *isa: str) -> Target:
        """A machine with these instruction sets and this one's caches."""
        return replace(self.target, isa=isa, arch="x86_64")

    def build(
        self,
        template: Template,
        at: Extents,
        *,
        params: Params = (),
        target: Target | None = None,
        change: tuple[str, str] | None = None,
    ) -> Built:
        """A legal point of `template`, by default its default; `change` is a text in it and what takes its place.

        Instructions of `target` that this host lacks are emulated.
        """
        region, here = any_chunk(template.region, replace(at, tokens=TOKENS)), target or self.target
        params = params or template.defaults
        assert problems(region, template, params, here) == ()
        source = specialise(template, region, params, here)
        if change is not None:
            assert source.text.count(change[0]) == 1, change[0]
            source = replace(source, text=source.text.replace(*change))
        lacking = {*here.isa} - {*self.target.isa}
        emulated = {"avx512": EMULATED, "amx": "#define TILES_EMULATED\n"}
        for family in (family for family in emulated if any(name.startswith(family) for name in lacking)):
            before, after = source.text.split("#include <immintrin.h>\n")
            text = f"{before}#include <immintrin.h>\n{emulated[family]}{after}"
            source = replace(source, text=text, flags=tuple(f for f in source.flags if family not in f))
        binary = compile(source, self.store, toolchain=self.toolchain, limit_s=120)
        assert isinstance(binary, Binary), binary
        return Built(template=template, region=region, source=source, binary=binary, library=Library(Path(binary.path)))

    def run(self, built: Built, buffers: Mapping[str, torch.Tensor], n: int, threads: int = 2) -> None:
        """Run a chunk of `n` tokens; workspaces hold NaN before."""
        scratch = {
            name: torch.full((count,), float("nan") if dtype in ("fp32", "bf16") else -1, dtype=DTYPES[dtype])
            for name, dtype, count, _ in built.source.workspaces
        }
        every = {**buffers, **scratch, "count": torch.tensor([n])}
        NativeProgram(self.executor(threads), bind(built.source, built.library, every)).run()
