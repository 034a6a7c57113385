"""Jobs for a evaluator: one small fp32 matrix-vector region, and kernels for it that are right, wrong, or worse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentcompile.build import Toolchain, find_toolchain
from agentcompile.evaluation.evaluator import EvaluationJob, Limits, WorkerEvaluator
from agentcompile.ir.graph import Graph, Node, Use, Value
from agentcompile.ir.region import Cost, Port, Regime, Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Launch, Source, Template
from agentcompile.system.probe import probe

HEAD = """
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
constexpr long hidden = {hidden}, rows = {rows};
struct args {{ const float* x; const float* w; float* y; }};
static void right(const args& a, int rank, int size) {{
    for (long r = rank; r < rows; r += size) {{
        float s[8] = {{}};
        for (long k = 0; k < hidden; k += 8)
            for (long i = 0; i < 8; ++i) s[i] += a.x[k + i] * a.w[r * hidden + k + i];
        a.y[r] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }}
}}
"""
ENTRY = 'extern "C" void kernel(const args& a, int rank, int size) {{ {body} }}\n'
RIGHT = "right(a, rank, size);"


def region(hidden: int = 64, rows: int = 32) -> Region:
    """A `linear` region: x [1, 1, hidden] times w [rows, hidden]."""
    values = (
        Value(id="x", shape=(1, 1, hidden), dtype="fp32", role="activation"),
        Value(id="w", shape=(rows, hidden), dtype="fp32", role="weight", name="w"),
        Value(id="y", shape=(1, 1, rows), dtype="fp32", role="activation"),
    )
    body = Graph(
        phase="decode",
        values=values,
        nodes=(Node(id="n", op="linear", inputs=(Use(value="x"), Use(value="w")), outputs=("y",)),),
        inputs=("x", "w"),
        outputs=(("y", Use(value="y")),),
    )
    return Region(
        kind="linear",
        regime=Regime(phase="decode", context=(1, 64)),
        body=body,
        ports=(
            Port(name="x", role="activation", access="read", shape=(1, 1, hidden), dtype="fp32"),
            Port(name="w", role="weight", access="read", shape=(rows, hidden), dtype="fp32"),
            Port(name="y", role="output", access="write", shape=(1, 1, rows), dtype="fp32"),
        ),
        dims=(("hidden", hidden), ("rows", rows), ("tokens", 1)),
        cost=Cost(
            flops=2 * hidden * rows, weight_bytes=4 * hidden * rows, state_bytes=0, activation_bytes=4 * (hidden + rows)
        ),
    )


def source(body: str, *, hidden: int = 64, rows: int = 32, before: str = "") -> Source:
    """A program whose entry runs `body`; ``right(a, rank, size);`` is the right answer."""
    text = HEAD.format(hidden=hidden, rows=rows) + before + ENTRY.format(body=body)
    launch = Launch(entry="kernel", arguments=("x", "w", "y"))
    return Source(language="cpp", text=text, launches=(launch,), workspaces=())


def job(body: str = RIGHT, *, name: str = "", hidden: int = 64, rows: int = 32, before: str = "") -> EvaluationJob:
    """A job whose kernel runs `body`; `name` tells candidates apart."""
    return _job(name or body, source(body, hidden=hidden, rows=rows, before=before), region(hidden, rows))


def library(form: str = "linear", *, hidden: int = 64, rows: int = 32) -> EvaluationJob:
    """A job that PyTorch runs."""
    made = Source(
        language="library", text="", launches=(), workspaces=(), call="torch.linear", settings=(("FORM", form),)
    )
    return _job(f"library {form}", made, region(hidden, rows))


def _job(name: str, made: Source, where: Region) -> EvaluationJob:
    template = Template(
        id="linear/test",
        region="linear",
        language=made.language,
        about="test",
        dtypes=("fp32",),
        launches=made.launches,
        accumulation="library" if made.language == "library" else "float32",
    )
    candidate = Candidate(
        region=where.id,
        regime=where.regime,
        template=template.id,
        template_digest=template.digest,
        params=(("NAME", name),),
        target="t",
    )
    return EvaluationJob(candidate=candidate, region=where, template=template, source=made)


def toolchain(cxx: str = "") -> Toolchain:
    """This machine's compiler, for kernels that count or remember: what finds them later is what is tested."""
    return replace(find_toolchain(cxx), keeps_state=True)


def target(threads: int = 2) -> Target:
    """This machine, with a fixed number of threads."""
    return probe(toolchain="test", threads=threads)


def evaluator(store: Path, limits: Limits, workers: int = 2) -> WorkerEvaluator:
    """One of this machine with a store of its own, whose kernels may take 2 GiB."""
    return WorkerEvaluator(
        target(), store=store, toolchain=toolchain(), workers=workers, limits=limits, memory_bytes=2 << 30
    )
