"""`agentcompile bench firsts`: the time to the first token by length of the prompt, beside PyTorch compiled and eager.

In: a lock for a GPU. Every arm runs in a process of its own with the same weights and prompts; a round visits them in a
new order and back. Out: medians and paired ratios, as a table and as one JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agentcompile.cli.render import columns
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import this_machine
from agentcompile.options import resolve
from agentcompile.runs.tables import Table

from ..harness.rates import estimate
from ..harness.records import revision, write_record
from ..harness.serving import Arm, ArmFailed, load_alone
from ..harness.times import Build
from ..harness.trial import OURS
from ..harness.workload import prompt

ARMS = ("hf-eager", "static-reduce-overhead", "static-max-autotune", OURS)
_ASK_LIMIT_S = 120.0
_LEAST_S = 0.25
"""How long a visit asks again and again."""
_NEW = 2
"""Tokens that are made: the first is timed, the second keeps the loops what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """One visit: the median time to the first token, and which token it was."""

    first_s: float
    token: int


def run(arguments: Sequence[str]) -> int:
    """Time first tokens and write what was found as JSON."""
    asked = _parse(arguments)
    options = resolve({"target": asked.target, "model": str(asked.model)}).options
    machine = this_machine(options)
    if machine.device == "cpu":
        raise AgentCompileError(f"--target {asked.target}: is a CPU", hint="name a GPU: --target cuda:0")
    begun, work = revision(), Path(tempfile.mkdtemp(prefix="firsts."))
    build = Build(model=asked.model.resolve(), lock=asked.lock.resolve(), home=None, threads=16, target=machine.device)
    arms: list[Arm] = []
    reasons: dict[str, str] = {}
    try:
        for name in asked.arms:
            try:
                settings = {"TORCHINDUCTOR_CACHE_DIR": str(work / "inductor")}
                context = max(asked.prompts) + 2 * _NEW
                arms.append(load_alone(name, build, work, context=context, prompts=asked.prompts, **settings)[0])
            except ArmFailed as failed:
                reasons[name] = str(failed)
        vocab = int(json.loads((build.model / "config.json").read_text(encoding="utf-8"))["vocab_size"])
        texts = {length: prompt(build.model, vocab, asked.seed, length) for length in asked.prompts}
        rounds = _rounds(arms, texts, asked.rounds, asked.seed, reasons)
    finally:
        for arm in arms:
            arm.close()
        shutil.rmtree(work, ignore_errors=True)
    found = {
        "model": build.model.name,
        "reasons": reasons,
        "memory": {arm.name: arm.facts.get("memory_bytes") for arm in arms},
        "prompts": {str(length): _summary(rounds[length]) for length in asked.prompts},
    }
    write_record(asked.out, ["firsts", *arguments], begun, machine.target, found)
    print("\n".join(_table(rounds)))
    for name, reason in reasons.items():
        print(f"{name}: failed: {reason}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentcompile bench firsts", description=__doc__)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint")
    parser.add_argument("--target", default="cuda:0")
    parser.add_argument("--prompts", type=_numbers, default=(128, 2048, 8192), help="tokens, separated by commas")
    parser.add_argument("--arms", type=lambda text: tuple(text.split(",")), default=ARMS, help=", ".join(ARMS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.arms) - set(ARMS)):
        parser.error(f"--arms: {', '.join(unknown)}: allowed: {', '.join(ARMS)}")
    return asked


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


Rounds = list[dict[str, tuple[Visited, Visited]]]


def _rounds(
    arms: list[Arm], texts: Mapping[int, Sequence[int]], count: int, seed: int, reasons: dict[str, str]
) -> dict[int, Rounds]:
    """By length: every round's two visits of each arm that lived."""
    generator, found = random.Random(seed), dict[int, Rounds]()
    for length, ids in texts.items():
        found[length] = []
        for _ in range(count):
            order = [arm for arm in arms if arm.name not in reasons]
            generator.shuffle(order)
            seen: dict[str, list[Visited]] = {}
            for arm in [*order, *reversed(order)]:
                try:
                    if arm.name not in reasons:
                        seen.setdefault(arm.name, []).append(_visit(arm, ids))
                except ArmFailed as failed:
                    reasons[arm.name] = f"a prompt of {length} tokens: {failed}"
            found[length].append({name: (two[0], two[1]) for name, two in seen.items() if len(two) == 2})
    return found


def _visit(arm: Arm, ids: Sequence[int]) -> Visited:
    request = {"do": "generate", "ids": list(ids), "new": _NEW, "warm": _NEW, "least_s": _LEAST_S}
    reply = arm.ask(request, _ASK_LIMIT_S)
    return Visited(first_s=median(reply["first_s"]), token=int(reply["tokens"][0]))


def _summary(rounds: Rounds) -> dict[str, Any]:
    names = sorted({name for one in rounds for name in one})
    return {name: _row(rounds, name) for name in names}


def _row(rounds: Rounds, name: str) -> dict[str, Any]:
    visits = [visit for one in rounds if name in one for visit in one[name]]
    ratios = [_log_ratio(one[name], one[OURS]) for one in rounds if name in one and OURS in one and name != OURS]
    ratio = estimate(ratios)
    times = "" if ratio is None else f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return {
        "first_ms": [round(visit.first_s * 1e3, 4) for visit in visits],
        "median_ms": round(median(visit.first_s for visit in visits) * 1e3, 4),
        "tokens": sorted({visit.token for visit in visits}),
        "time_over_ours": times,
    }


def _log_ratio(theirs: tuple[Visited, Visited], ours: tuple[Visited, Visited]) -> float:
    return math.log(sum(visit.first_s for visit in theirs) / sum(visit.first_s for visit in ours))


def _table(rounds: Mapping[int, Rounds]) -> list[str]:
    rows = []
    for length, some in rounds.items():
        for name, row in _summary(some).items():
            rows.append((str(length), name, f"{row['median_ms']:.2f} ms", str(row["time_over_ours"])))
    return columns(Table(heads=("prompt", "arm", "first token", "times ours"), rows=rows))
