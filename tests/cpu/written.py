"""A small region as a written kernel meets it: its task, its contract, and templates that were written for it."""

from __future__ import annotations

from collections.abc import Sequence

from agentcompile.ir.advice import Advice
from agentcompile.ir.attempt import Contract, Times, Written
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.template import Template
from agentcompile.refine.contract import contract_of
from agentcompile.space import Space
from agentcompile.tuning.tasks import TuneTask
from tests.cpu import jobs

CEILING = Ceiling(dram_bytes_per_s=1e12, cache_bytes_per_s=1e13, flops_per_s=1e14)
"""More than any machine has: no kernel is called impossible by it."""
SLOW = Times(reference_ns=1e9, incumbent_ns=1e9)
MANIFEST = """\
region = "linear"
language = "cpp"
about = "each thread computes its share of the rows, eight sums at a time"
dtypes = ["fp32"]

[[launch]]
entry = "matvec"
arguments = ["x", "w", "y"]
"""
KERNEL = """\
static float row(const float* x, const float* w) {
    float s[8] = {};
    for (long k = 0; k < hidden; k += 8)
        for (long i = 0; i < 8; ++i) s[i] += x[k + i] * w[k + i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

extern "C" void matvec(const matvec_args& a, int rank, int size) {
    for (long r = rank; r < rows; r += size) a.y[r] = row(a.x, a.w + r * hidden);
}
"""
"""Written from the contract alone: the head declares `hidden`, `rows` and `matvec_args`."""


def task(region: Region | None = None, templates: Sequence[Template] = (), target: Target | None = None) -> TuneTask:
    """The task of a region, with nothing known about it."""
    found = region or jobs.region()
    return TuneTask(
        region=found,
        space=Space(found, templates, target or jobs.target()),
        advice=Advice(label="none"),
        residency="cache",
        floor_ns=0.0,
    )


def contract(asked: TuneTask | None = None, times: Times = SLOW) -> Contract:
    """The contract of a C++ kernel for it."""
    return contract_of(asked or task(), "cpp", CEILING, times)


def written(kernel: str = KERNEL, manifest: str = MANIFEST) -> Written:
    """A template as a model writes one."""
    return Written(manifest=manifest, kernel=kernel)
