"""`agentcompile bench steps`: where a CUDA lock's decode step spends its time, beside what reading its bytes takes.

In: a lock. Out: the step by context, what overlapping launches and early reads buy, what each region adds to the step,
and the read ceiling measured in the same process, as a table and as one JSON file. All times are of graph replays.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import evaluator_of
from agentcompile.options import resolve
from agentcompile.replay.open import open_lock
from agentcompile.runs.tables import Table

from .harness.numbers import at_least
from .harness.records import revision, write_record
from .harness.stepping import POSITION, Bench

TimedStep = tuple[str, float, int]
"""A timed step: its name, the median of its replays in ns, and the bytes that it must read."""


def run(arguments: Sequence[str]) -> int:
    """Time a lock's decode step, write the result as JSON and print it; return 0.

    Raises:
        AgentCompileError: the lock is for a CPU (usage).
    """
    parser = argparse.ArgumentParser(prog="agentcompile bench steps", description=__doc__)
    parser.add_argument("lock", type=Path, help="a lock for a GPU")
    parser.add_argument("--model", default="", help="the checkpoint, when the lock does not find it")
    parser.add_argument("--positions", default="16,128,256,1024,2000", help="where in the cache, separated by commas")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument(
        "--trace", type=at_least(0), default=0, help="steps to run at the end without a graph, in NVTX ranges"
    )
    asked = parser.parse_args(arguments)
    options = resolve({"model": asked.model} if asked.model else {}).options
    begun, opened = revision(), open_lock(asked.lock, options)
    if opened.here.device == "cpu":
        raise AgentCompileError(f"{asked.lock}: is a lock for a CPU", hint="compile with --target cuda:0 first")
    with evaluator_of(opened.here, options.seed) as evaluator:
        read = evaluator.ceiling().dram_bytes_per_s
    bench = Bench(opened)
    positions = [int(text) for text in asked.positions.split(",")]
    by_position = [(str(at), bench.time(bench.serving(at), at), bench.bytes(at)) for at in positions]
    at = min(POSITION, opened.lock.model.context - 1)
    ladder = [(name, bench.time(program, at, overlap), bench.bytes(at)) for name, program, overlap in bench.ladder()]
    whole = bench.time(bench.full, at)
    regions = [
        (region.name, max(whole - bench.time(without, at), 0.0) / sites, region.cost.bytes)
        for region, without, sites in bench.without()
    ]
    by_batch = [(str(program.batch), bench.time(program, at), bench.bytes(at)) for program in bench.batches]
    found = {
        "model": opened.lock.model.name,
        "read_bytes_per_s": read,
        "weight_bytes": bench.bytes(0),
        "by_position": _rows(by_position, read),
        "by_batch": _rows(by_batch, read),
        "ladder": _rows(ladder, read),
        "regions": _rows(regions, read),
    }
    words = ["steps", asked.lock.name, "--positions", asked.positions]
    write_record(asked.out, words, begun, opened.here.target, found)
    bench.trace(asked.trace)
    titles = ("position", "sequences", "launches", "region, each")
    for title, rows in zip(titles, (by_position, by_batch, ladder, regions), strict=True):
        print("\n".join(_table(title, rows, read)), end="\n\n")
    return 0


def _rows(rows: Sequence[TimedStep], read: float) -> list[dict[str, Any]]:
    return [
        {"name": name, "ns": round(ns), "bytes": size, "times_floor": ns / (1e9 * size / read)}
        for name, ns, size in rows
    ]


def _table(title: str, rows: Sequence[TimedStep], read: float) -> list[str]:
    cells = [
        (name, f"{ns / 1e3:.2f}", f"{size / 1e6:.1f}", f"{size / max(ns, 1):.0f}", f"{ns / (1e9 * size / read):.3f}")
        for name, ns, size in rows
    ]
    heads = (title, "µs", "MB", "GB/s", "× roofline")
    return columns(Table(heads=heads, rows=cells, right=(1, 2, 3, 4)))
