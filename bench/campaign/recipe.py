"""`agentcompile bench campaign --kind KIND`: attack the compiler in one way many times, and write what came of it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import this_machine
from agentcompile.ir.codec import encode
from agentcompile.options import resolve

from ..harness.numbers import at_least, seconds
from ..harness.records import revision
from .report import ACCEPT_EVERY, Campaign
from .shares import side_by_side, threads_of

KINDS: Mapping[str, str] = {
    "kills": "compiles killed at random moments and resumed to a lock",
    "locks": "locks with random bytes, and resealed ones with other meanings",
    "advice": "hostile, broken and absent advisers",
    "mutants": "kernels with one mechanical fault each, at real shapes",
    "false-rejects": "kernels as they are shipped, validated with many seeds: all must pass",
    "api": "calls and command lines with arguments of wrong types and values",
}
"""A line about each kind; the kind is a module of this package, with `_` for `-`."""
SHARED = ("kills", "mutants", "false-rejects")
"""The kinds whose work is done in shares."""
VERSION = 1


def run(arguments: Sequence[str]) -> int:
    """Run one kind and write its result; return an exit code, 4 when an attempt failed.

    Raises:
        AgentCompileError: the kind is unknown, or `--jobs` is invalid for it.
    """
    parser = argparse.ArgumentParser(prog="agentcompile bench campaign", description=__doc__)
    parser.add_argument("--kind", required=True, help="; ".join(f"{kind}: {about}" for kind, about in KINDS.items()))
    parser.add_argument("--count", type=at_least(0), default=0, help="attempts; 0: the kind's default")
    parser.add_argument("--seconds", type=seconds, default=0.0, help="no attempt begins after so long; 0: no limit")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    jobs_help = "shares that run side by side, each on CPUs of its own"
    parser.add_argument("--jobs", type=at_least(1), default=1, help=jobs_help)
    only_help = "of false-rejects and mutants: templates in whose id this regular expression is found"
    parser.add_argument("--only", type=_expression, default="", help=only_help)
    every_help = "of false-rejects: one in so many is at acceptance"
    parser.add_argument("--accept-every", type=at_least(1), default=ACCEPT_EVERY, help=every_help)
    parser.add_argument("--out", default="", help="the result file; default: campaign-KIND.json")
    asked, begun = parser.parse_args(list(arguments)), revision()
    if asked.kind not in KINDS:
        raise AgentCompileError(f"bench campaign: no kind is called {asked.kind!r}", hint=f"kinds: {', '.join(KINDS)}")
    if asked.jobs > 1 and asked.kind not in SHARED:
        why = f"--jobs {asked.jobs}: {asked.kind} runs in one process alone"
        raise AgentCompileError(f"bench campaign: {why}", hint=f"kinds with --jobs: {', '.join(SHARED)}")
    kind = import_module(f".{asked.kind.replace('-', '_')}", __package__)
    out = Path(asked.out or f"campaign-{asked.kind}.json")
    begin = time.monotonic()
    campaign = Campaign(
        count=asked.count or kind.DEFAULT,
        seed=asked.seed,
        seconds=asked.seconds,
        partial=out.with_suffix(".partial.jsonl"),
        only=asked.only,
        accept_every=asked.accept_every,
    )
    if asked.jobs > 1:
        campaign = replace(campaign, shares=asked.jobs, threads=threads_of(asked.jobs))
        report = side_by_side(kind, asked.kind, campaign, _say)
    elif asked.kind in SHARED:
        report = kind.report([kind.find(campaign, _say)])
    else:
        report = kind.run(campaign, _say)
    result = {
        "version": VERSION,
        "command": _command(asked, campaign),
        "revision": begun,
        "machine": encode(this_machine(resolve({"threads": campaign.threads or None}).options).target),
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


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def _say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # one write: several shares print at the same time


def _command(asked: argparse.Namespace, campaign: Campaign) -> str:
    command = f"agentcompile bench campaign --kind {asked.kind} --count {campaign.count} --seed {asked.seed}"
    command += f" --seconds {asked.seconds:g}" if asked.seconds else ""
    command += f" --jobs {asked.jobs}" if asked.jobs > 1 else ""
    command += f" --only {shlex.quote(asked.only)}" if asked.only else ""
    return command + (f" --accept-every {asked.accept_every}" if asked.accept_every != ACCEPT_EVERY else "")
