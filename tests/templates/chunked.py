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
from agentcompile.runtime.native import Executor, Library, Program
from agentcompile.system.probe import probe
from agentcompile.system.store import Store
from agentcompile.worker.launch import bind
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
#define _mm512_loadu_si512 emulated_load
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
        Program(self.executor(threads), bind(built.source, built.library, every)).run()
