"""`agentcompile bench campaign --kind KIND`: attack the compiler in one way many times, and write what came of it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import cast

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import encode
from agentcompile.machine import this_machine
from agentcompile.options import resolve

from ..figures.record import revision
from .report import Campaign, Kind

KINDS: Mapping[str, str] = {
    "kills": "compiles killed at random moments and resumed to a lock",
    "locks": "locks with random bytes, and resealed ones with other meanings",
    "advice": "hostile, broken and absent advisers",
    "mutants": "kernels with one mechanical fault each, at real shapes",
    "false-rejects": "kernels as they are shipped, judged with many seeds: all must pass",
    "api": "calls and command lines with arguments of wrong types and values",
}
"""Kind, which is a module of this package with `_` for `-`, to a line about it."""
VERSION = 1


def run(arguments: Sequence[str]) -> int:
    """Run one kind and write its result; exit code 4 when an attempt failed."""
    parser = argparse.ArgumentParser(prog="agentcompile bench campaign", description=__doc__)
    parser.add_argument("--kind", required=True, help="; ".join(f"{kind}: {about}" for kind, about in KINDS.items()))
    parser.add_argument("--count", type=int, default=0, help="attempts; 0: the kind's default")
    parser.add_argument("--seconds", type=float, default=0.0, help="no attempt begins after so long; 0: no limit")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--out", default="", help="the result file; default: campaign-KIND.json")
    asked, begun = parser.parse_args(list(arguments)), revision()
    if asked.kind not in KINDS:
        raise AgentCompileError(f"bench campaign: no kind is called {asked.kind!r}", hint=f"kinds: {', '.join(KINDS)}")
    kind = cast(Kind, import_module(f".{asked.kind.replace('-', '_')}", __package__))
    out = Path(asked.out or f"campaign-{asked.kind}.json")
    begin = time.monotonic()
    campaign = Campaign(
        count=asked.count or kind.DEFAULT,
        seed=asked.seed,
        seconds=asked.seconds,
        partial=out.with_suffix(".partial.jsonl"),
    )
    report = kind.run(campaign, lambda text: print(text, flush=True))
    result = {
        "version": VERSION,
        "command": f"agentcompile bench campaign --kind {asked.kind} --count {campaign.count} --seed {asked.seed}",
        "revision": begun,
        "machine": encode(this_machine(resolve({}).options).target),
        "seconds": round(time.monotonic() - begin, 1),
        **asdict(report),
        "ok": report.ok,
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, value in report.figures.items():
        print(f"{name:<40} {value}")
    for failure in report.failures:
        print(f"FAILED {failure}")
    print(f"{report.tried} attempts, {len(report.failures)} failures: {out}")
    return ExitCode.OK if report.ok else ExitCode.CORRECTNESS
