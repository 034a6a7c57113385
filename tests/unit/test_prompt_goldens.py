"""Whole prompts, compared with texts on disk: four questions that differ in kind, and two in the middle of a search."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.advice.detail import SHORTER
from agentcompile.advice.prompt import VERSION, prompt_of
from agentcompile.ir.advice import Question
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.resources import Resources
from agentcompile.ir.target import Ceiling, Target
from agentcompile.ir.template import Launch, Param, Template, Workspace
from agentcompile.ir.trial import (
    BuildFailed,
    Check,
    Finding,
    Incorrect,
    Measured,
    NumericReport,
    Rejected,
    Trial,
    Verdict,
)
from agentcompile.regions.partition import partition
from agentcompile.space import Space
from tests.unit import fakes
from tests.unit.answers import CEILING
from tests.unit.graphs import llama

GOLDENS = Path(__file__).parent / "golden"
GPU = fakes.target(
    kind="cuda", device="NVIDIA H100", arch="sm_90", isa=(), threads=132, cache_bytes=(256 << 10, 50 << 20),
    line_bytes=128, toolchain="nvrtc 13.0",
)  # fmt: skip
GPU_CEILING = Ceiling(dram_bytes_per_s=3.2e12, cache_bytes_per_s=7e12, flops_per_s=7e14)
CORE = (("cpu_family", 25), ("cpu_model", 17), ("threads_a_core", 2), ("cpus_a_cache", [2, 2, 16]))
"""What the system may say of a processor's core."""
STREAMS = Param(name="STREAMS", domain=(1, 2, 4), default=1, about="Rows side by side, each a stream.")
UNROLL = Param(name="UNROLL", domain=(2, 4), default=4, about="Independent sums: hides the latency of multiply-adds.")
AHEAD = Param(name="AHEAD", domain=(0, 4096), default=4096, about="Bytes from a load to its prefetch; 0: none.")
ROWS = fakes.rows_template(
    about="Row-major weights, summed across lanes at the end of each row.",
    requires=("hidden % 64 == 0", "STREAMS * UNROLL <= 8"),
    params=(STREAMS, UNROLL, AHEAD),
    layouts=(),
    workspaces=(),
    source='#include "gemv.h"\n\n// One long stream a thread read at the ceiling\n// (65 of 65 GB/s), four at 56.\n',
)
LIBRARY = Template(
    id="linear/library", region="linear", language="library", about="PyTorch's own routine.", dtypes=("bf16",),
    params=(Param(name="FORM", domain=("mv", "linear"), default="mv", about="The routine that is called."),),
    call="linear",
)  # fmt: skip
SPLIT = Template(
    id="rope-attention-decode/split",
    region="rope-attention-decode",
    language="cpp",
    about="The context in parts, which a second launch joins.",
    dtypes=("bf16",),
    requires=("SPLITS * kv_heads >= threads",),
    params=(
        Param(name="SPLITS", domain=(1, 2, 4), default=2, about="Parts of a context: more keep more threads busy."),
        Param(name="SLOTS", domain=(16, 64), default=64, about="Slots of the cache that are looked at together."),
    ),
    workspaces=(Workspace(name="partial", dtype="fp32", count="q_heads * SPLITS * (head_dim + 2)"),),
    launches=(Launch(entry="parts", arguments=("q", "partial")), Launch(entry="join", arguments=("partial", "y"))),
    source_name="kernel.cpp",
    source="// A thread takes parts of a context.\nvoid f();\n",
)
WARPS = fakes.rows_template(
    id="linear/warp-rows",
    language="cuda",
    about="ROWS rows a warp, the first loads of its weights in flight before the inputs arrive.",
    arch=("sm_80", "sm_90"),
    requires=("ROWS * LOADS <= 16",),
    layouts=(),
    workspaces=(),
    params=(
        Param(name="ROWS", domain=(1, 2, 4), default=2, about="Rows a warp multiplies side by side."),
        Param(name="LOADS", domain=(4, 8), default=4, about="16-byte loads of every row that a lane has in flight."),
        Param(name="WARPS", domain=(4, 16), default=4, about="Warps a block: more share one staged activation."),
    ),
    launches=(
        Launch(
            entry="gemv",
            arguments=("x", "w", "b", "y"),
            grid=("ceil_div(ceil_div(rows, ROWS), WARPS)",),
            block=("32 * WARPS",),
            shared_bytes="round_up(hidden, 256) * 4",
            pdl=True,
        ),
    ),
    source_name="kernel.cu",
    source='#include "gemv.cuh"\nvoid f();\n',
)


def about(region: Region, *templates: Template, machine: Target | None = None, ceiling: Ceiling = CEILING) -> Question:
    space = Space(region, templates, machine or fakes.target())
    return Question(
        region=region,
        target=space.target,
        ceiling=ceiling,
        residency="dram",
        templates=space.templates,
        candidates=tuple(space),
    )


ELEMENT = Check(name="element", ok=False, measured=0.031, allowed=0.0039, detail="y[7] of case 2")
WRONG = Incorrect(report=NumericReport(checks=(ELEMENT,), error_ratio=8.0, cases=3, repeats=16))
SHARED = Finding(rule="shared-memory", severity="error", text="a block asks for 262144 bytes, the device has 232448")


def tried(asked: Question, pytorch_us: float, *verdicts: Verdict | float) -> Question:
    """The question with a trial of each of the last candidates: its time in microseconds, or what failed."""
    trials = []
    for candidate, one in zip(reversed(asked.candidates), verdicts, strict=False):
        trial = Trial(candidate=candidate, source="", verdict=one if not isinstance(one, float) else WRONG)
        if isinstance(one, float):
            trial = fakes.measured(candidate, math.log(pytorch_us / one))
            assert isinstance(trial.verdict, Measured)
            measurement = replace(
                trial.verdict.measurement,
                median_ns=round(one * 1e3),
                baseline_ns=round(pytorch_us * 1e3),
                bytes_per_s=asked.region.cost.bytes / one * 1e6,
            )
            trial = replace(trial, verdict=replace(trial.verdict, measurement=measurement))
        trials.append(trial)
    return replace(asked, history=tuple(trials))


def attention() -> Question:
    found = partition(llama(), Regime(phase="decode", context=(1, 64)))
    (region,) = (one for one in found.regions if one.kind == "rope-attention-decode")
    return tried(about(region, SPLIT), 9.6, 2.4, 12.0)


def asked_of(name: str) -> Question:
    """The question of a golden."""
    rows = about(fakes.linear_region(bias=True), ROWS, LIBRARY)
    failed = (
        BuildFailed(log="kernel.cpp: in function f\nkernel.cpp:7:3: error: no such register\nmore"),
        WRONG,
        Rejected(findings=(SHARED,)),
    )
    match name:
        case "untried":
            return replace(rows, processor=CORE, ceiling=replace(CEILING, calm=False))
        case "tried":
            return tried(rows, 420.0, 231.0, *failed, 440.0, 252.0)
        case "focus" | "round":
            known = tried(rows, 420.0, 231.0, *failed, 440.0, 252.0)
            fastest, _, _, wrong, slow, second = (trial.candidate.id for trial in known.history)
            if name == "focus":
                return replace(known, focus=(second, slow, wrong))
            return replace(known, focus=(fastest, second, slow), round=2)
        case "attention":
            return attention()
        case _:
            warps = about(fakes.linear_region(hidden=4096), WARPS, machine=GPU, ceiling=GPU_CEILING)
            known = tried(warps, 12.5, 9.6, *failed)
            report = Resources(entry="gemv", registers=96, shared_bytes=1024, spill_bytes=16)
            return replace(known, resources=((warps.candidates[-1].id, (report,)),))


def held(name: str, found: str) -> None:
    """Compare with the golden `name`; the variable GOLDENS=write makes it anew."""
    file = GOLDENS / f"prompt-{name}.txt"
    if os.environ.get("GOLDENS") == "write":
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), (
        f"{file}: a prompt that changed needs a new VERSION after {VERSION}; GOLDENS=write accepts it"
    )


@pytest.mark.parametrize("name", ["untried", "tried", "attention", "gpu", "focus", "round"])
def test_the_data_is_the_golden_one(name: str) -> None:
    held(name, prompt_of([asked_of(name)]).user + "\n")


def test_the_rules_are_the_golden_ones() -> None:
    held("rules", prompt_of([asked_of("untried")]).system)


@pytest.mark.parametrize("name", ["focus", "round"])
def test_the_rules_of_a_question_in_the_middle_of_a_search_are_the_golden_ones(name: str) -> None:
    held(f"rules-{name}", prompt_of([asked_of(name)]).system)


@pytest.mark.parametrize(("name", "cut"), [("tried", 2), ("gpu", 3), ("gpu", len(SHORTER) - 1)])
def test_the_shorter_data_is_the_golden_one(name: str, cut: int) -> None:
    held(f"{name}-shorter-{cut}", prompt_of([asked_of(name)], SHORTER[cut]).user + "\n")


def test_the_brief_rules_are_the_golden_ones() -> None:
    held("rules-brief", prompt_of([asked_of("untried")], SHORTER[-1]).system)
