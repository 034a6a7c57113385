"""Small regions, templates and targets for tests that need no capture and no compiler."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from agentcompile.ir.graph import Graph, Node, Use, Value
from agentcompile.ir.kind import KindFacts, PortFacts
from agentcompile.ir.region import Cost, Port, Regime, Region, Site
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Launch, Param, Template, Workspace
from agentcompile.ir.trial import BuildFailed, Comparison, Measured, Measurement, NumericReport, Trial

DECODE = Regime(phase="decode", context=(1, 2048))


def target(**changes: object) -> Target:
    """Two threads of an AVX-512 machine with bf16 dot products."""
    plain = Target(
        kind="cpu",
        device="Test CPU",
        arch="x86_64",
        isa=("avx", "avx2", "avx512_bf16", "avx512bw", "avx512f", "avx512vl", "fma"),
        threads=2,
        cache_bytes=(48 << 10, 1 << 20, 32 << 20),
        toolchain="g++ 12.2.0",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def linear_region(
    *, hidden: int = 1024, rows: int = 3072, dtype: str = "bf16", bias: bool = False, count: int = 1
) -> Region:
    """`linear`, or `linear-merged` with `count` weights of `rows` rows each."""
    merged = count > 1
    names = [f".{i}" for i in range(count)] if merged else [""]
    ports = [Port(name="x", role="activation", access="read", shape=(1, 1, hidden), dtype=dtype)]  # type: ignore[arg-type]
    for name in names:
        ports.append(Port(name=f"w{name}", role="weight", access="read", shape=(rows, hidden), dtype=dtype))  # type: ignore[arg-type]
    if bias:
        for name in names:
            ports.append(Port(name=f"b{name}", role="weight", access="read", shape=(rows,), dtype=dtype))  # type: ignore[arg-type]
    for name in names:
        ports.append(Port(name=f"y{name}", role="output", access="write", shape=(1, 1, rows), dtype=dtype))  # type: ignore[arg-type]
    roles = {"activation": "activation", "weight": "weight", "output": "activation"}
    values = tuple(Value(id=p.name, shape=p.shape, dtype=p.dtype, role=roles[p.role]) for p in ports)  # type: ignore[arg-type]
    nodes = tuple(
        Node(
            id=f"n{name}",
            op="linear",
            inputs=tuple(Use(value=v) for v in ("x", f"w{name}", *([f"b{name}"] if bias else []))),
            outputs=(f"y{name}",),
        )
        for name in names
    )
    inputs = tuple(p.name for p in ports if p.role != "output")
    outputs = tuple((f"y{name}", Use(value=f"y{name}")) for name in names)
    body = Graph(phase="decode", values=values, nodes=nodes, inputs=inputs, outputs=outputs)
    item = {"bf16": 2, "fp16": 2, "fp32": 4}.get(dtype, 4)
    total = rows * count
    cost = Cost(
        flops=2 * hidden * total,
        weight_bytes=hidden * total * item,
        state_bytes=0,
        activation_bytes=(hidden + total) * item,
    )
    return Region(
        kind="linear-merged" if merged else "linear",
        regime=DECODE,
        body=body,
        ports=tuple(ports),
        dims=(("hidden", hidden), ("rows", total), ("tokens", 1)),
        sites=(Site(nodes=tuple(n.id for n in nodes), bindings=()),),
        cost=cost,
    )


def linear_facts(*, merged: bool = False) -> KindFacts:
    """What a template of `linear` or `linear-merged` may name."""
    return KindFacts(
        name="linear-merged" if merged else "linear",
        ports=(
            PortFacts(family="x", role="activation", access="read"),
            PortFacts(family="w", role="weight", access="read", many=merged),
            PortFacts(family="b", role="weight", access="read", many=merged, optional=True),
            PortFacts(family="y", role="output", access="write", many=merged),
        ),
        dims=("hidden", "rows", "tokens"),
    )


def rows_template(**changes: object) -> Template:
    """A C++ template of `linear` with two parameters, two constraints and a workspace."""
    plain = Template(
        id="linear/rows",
        region="linear",
        language="cpp",
        about="blocks of rows",
        dtypes=("bf16", "fp32"),
        arch=("avx2", "fma"),
        layouts=(("w", "rows16-k2"),),
        requires=("hidden % (16 * UNROLL) == 0", "rows % ROWS == 0"),
        params=(
            Param(name="ROWS", domain=(1, 2, 4, 8), default=4, about="rows a thread computes at once"),
            Param(name="UNROLL", domain=(1, 2, 4), default=1, about="vectors of x in flight"),
        ),
        workspaces=(Workspace(name="partial", dtype="fp32", count="round_up(rows, ROWS) * threads"),),
        launches=(Launch(entry="linear_rows", arguments=("x", "w", "b", "y", "partial")),),
        source_name="kernel.cpp",
        source='#include "vec.h"\nextern "C" void linear_rows(const linear_rows_args& a, int rank, int size) {}\n',
        includes=(("vec.h", "#pragma once\nstatic inline int one() { return 1; }\n"),),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def measured(
    candidate: Candidate,
    log_ratio: float,
    *,
    comparison: Comparison | None = None,
    rounds: int = 5,
    fidelity: Literal["search", "confirm"] = "search",
    half_width: float = 0.002,
) -> Trial:
    """A trial that ran and was right; its comparison follows from the ratio unless it is given."""
    fair: Comparison = "FASTER" if log_ratio > half_width + 0.005 else "SLOWER" if log_ratio < -0.005 else "SAME"
    measurement = Measurement(
        median_ns=round(100_000 * math.exp(-log_ratio)),
        p95_ns=110_000,
        baseline_ns=100_000,
        baseline="pytorch",
        log_ratio=log_ratio,
        half_width=half_width,
        comparison=comparison or fair,
        rounds=rounds,
        dropped=0,
        processes=3 if fidelity == "confirm" else 1,
        batch=16,
        residency="dram",
        bytes_per_s=1e10,
    )
    verdict = Measured(report=RIGHT, measurement=measurement)
    return Trial(candidate=candidate, source=f"source of {candidate.id}", verdict=verdict, fidelity=fidelity)


RIGHT = NumericReport(checks=(), error_ratio=1.0, cases=1, repeats=16)


class RecordedEvaluator:
    """Answers by a table of true log ratios by label, with noise that shrinks with the rounds; others fail to build."""

    def __init__(self, truth: Mapping[str, float], *, noise: float = 0.0, seed: int = 0) -> None:
        self.truth = truth
        self.noise = noise
        self.generator = random.Random(seed)
        self.asked: list[tuple[str, int]] = []

    def evaluate(self, candidates: Sequence[Candidate], rounds: int) -> list[Trial]:
        """One search trial for each candidate."""
        trials = []
        for candidate in candidates:
            self.asked.append((candidate.label, rounds))
            if candidate.label in self.truth:
                seen = self.truth[candidate.label] + self.generator.gauss(0, self.noise) / math.sqrt(rounds)
                trials.append(measured(candidate, seen, rounds=rounds))
            else:
                trials.append(Trial(candidate=candidate, source="", verdict=BuildFailed(log="error: no such thing")))
        return trials
