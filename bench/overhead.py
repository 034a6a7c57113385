"""`agentcompile bench overhead`: what the suite's own collecting adds to the time per output token.

In: a lock (or PyTorch's eager arm). One process of the arm generates the same tokens in two ways, in rounds of ABBA or
BAAB: as the suite times it, with the read rate measured before and a look at the clock whenever tokens come; and with
nothing but two readings of the clock around the whole generation. Out: the ratio with its interval, and one JSON file.
"""

from __future__ import annotations

import argparse
import math
import random
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.machine import Machine, evaluator_of, this_machine
from agentcompile.options import resolve

from .harness.course import cache_of, say, threads_of
from .harness.numbers import at_least
from .harness.rates import Visit, bearable_on, estimate, visit, wait_for_calm
from .harness.records import revision, say_next, write_record
from .harness.serving import ArmFailed, LiveArm, load_alone
from .harness.times import Build
from .harness.trial import LEAST_S, OURS
from .harness.workload import Workload
from .harness.workloads import load_workloads, workload_of
from .models.locate import MAKERS

ARMS = (OURS, "hf-eager")
"""The arms that read the clock within a generation; the others read it once at the first token."""
LIMIT = 0.01
"""The largest overhead allowed, as a share of the time per output token."""
_MOST_DROPPED = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One round: the time per output token in seconds with and without collecting, each the mean of two visits."""

    process: int
    collected_s: float
    plain_s: float
    """Time of the whole generation less that of the first token, which is taken from the collected visits."""
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The overhead as a share of the time per output token, with its 95 % interval over kept rounds."""

    overhead: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> str:
        """Whether the overhead is within `LIMIT`, in words that are printed."""
        if self.high <= LIMIT:
            return "reached"
        return "missed" if self.low > LIMIT else "not told: the interval holds the limit"


def run(arguments: Sequence[str], *, calm: Callable[[float], None] = wait_for_calm) -> int:
    """Measure and print; return 0 when the interval is within `LIMIT`, 5 when it is above, 7 when it holds it.

    Raises:
        AgentCompileError: the user can fix it, or the arm failed.
    """
    asked, begun = _parse(arguments), revision()
    machine = this_machine(resolve({"threads": asked.threads, "target": asked.target}).options)
    if asked.model not in MAKERS:
        raise AgentCompileError(f"--model: {asked.model!r}: no such checkpoint", hint=f"one of {', '.join(MAKERS)}")
    shape, path = load_workloads().shape(asked.workload), MAKERS[asked.model](cache_of(asked) / "presets" / asked.model)
    workload = workload_of(asked.model, path, shape, asked.mode, seed=asked.seed, kind=machine.target.kind)
    with tempfile.TemporaryDirectory(prefix="overhead.") as logs:
        pairs = _pairs(asked, workload, machine, Path(logs), calm)
    found = summary(pairs)
    dropped = sum(not pair.kept for pair in pairs)
    if found is None:
        said = f"{len(pairs) - dropped} of {len(pairs)} rounds are kept: too few"
    else:
        said = f"{found.overhead:+.2%} ({found.low:+.2%} … {found.high:+.2%}), at most {LIMIT:.0%}: {found.verdict}"
    print(f"{asked.arm}, {workload.name}: collecting adds {said}")
    if asked.out:
        written = {
            "arm": asked.arm,
            "workload": workload.name,
            "limit": LIMIT,
            "found": asdict(found) if found else None,
            "pairs": [asdict(pair) for pair in pairs],
        }
        write_record(asked.out, ["overhead", *arguments], begun, machine.target, written)
    if found is None or found.low <= LIMIT < found.high:
        say_next(f"agentcompile bench overhead {shlex.join([*arguments, f'--rounds={2 * asked.rounds}'])}")
        return ExitCode.UNDECIDED
    return ExitCode.OK if found.high <= LIMIT else ExitCode.PERFORMANCE


def summary(pairs: Sequence[Pair]) -> Found | None:
    """Estimate the overhead over the kept rounds; None when too few were kept or more than a fifth was dropped."""
    kept = [pair for pair in pairs if pair.kept]
    if len(pairs) - len(kept) > _MOST_DROPPED * len(pairs):
        return None
    ratio = estimate([math.log(pair.collected_s / pair.plain_s) for pair in kept])
    if ratio is None:
        return None
    return Found(overhead=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1, rounds=ratio.rounds)


def pair_of(process: int, collected: Sequence[Visit], plain: Sequence[Visit], new: int) -> Pair:
    """Combine the visits of each kind into one round; a generation has `new` tokens, the first is not counted."""
    first_s = median(first for one in collected for first in one.firsts_s)
    rest_s = sum(median(one.rests_s) for one in collected) / len(collected)
    whole_s = sum(median(one.rests_s) for one in plain) / len(plain)
    return Pair(
        process=process,
        collected_s=rest_s / (new - 1),
        plain_s=(whole_s - first_s) / (new - 1),
        # A first token that took longer than a whole plain generation was disturbed, whatever the counters say.
        kept=whole_s > first_s and not any(one.contended for one in (*collected, *plain)),
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    listed = ", ".join(one.name for one in load_workloads().workload)
    parser = argparse.ArgumentParser(
        prog="agentcompile bench overhead",
        description=__doc__,
        epilog="exit codes: 0 within the limit, 5 above it, 7 not told",
    )
    parser.add_argument("--arm", choices=ARMS, default=OURS, help="what generates")
    parser.add_argument("--lock", type=Path, help=f"of the model, for {OURS}")
    parser.add_argument("--model", default="sample", help=", ".join(MAKERS))
    parser.add_argument("--workload", default="reasoning-small", help=listed)
    parser.add_argument("--mode", choices=("greedy", "sampled"), default="greedy", help="how the next token is taken")
    parser.add_argument("--target", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--threads", type=at_least(0), help="on a CPU; one a physical core when not given")
    parser.add_argument("--rounds", type=at_least(1), default=10, help="of every process")
    parser.add_argument("--processes", type=at_least(1), default=3, help="fresh ones, one after another")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the workload and of the order")
    parser.add_argument("--cache", type=Path, help="folder of made checkpoints")
    parser.add_argument("--out", type=Path, help="the JSON file")
    asked = parser.parse_args(arguments)
    if asked.arm == OURS and asked.lock is None:
        parser.error(f"--lock: {OURS} needs one; make it with agentcompile compile")
    return asked


def _pairs(
    asked: argparse.Namespace, workload: Workload, machine: Machine, logs: Path, calm: Callable[[float], None]
) -> list[Pair]:
    found: list[Pair] = []
    lock, threads = (asked.lock or Path()).resolve(), threads_of(machine)
    build = Build(model=workload.model, lock=lock, home=None, threads=threads, target=machine.device)
    context, prompts = workload.context, [len(workload.ids)]
    with evaluator_of(machine, asked.seed) as evaluator:
        for process in range(asked.processes):
            arm: LiveArm | None = None
            try:
                arm, took_s = load_alone(
                    asked.arm, build, logs, context=context, prompts=prompts, OMP_NUM_THREADS=str(threads)
                )
                say(f"{asked.arm} loaded in {took_s:.1f} s")
                for number in range(asked.rounds):
                    generator = random.Random(f"{asked.seed}/{process}/{number}")
                    how: dict[str, Any] = {"calm": calm, "bearable": bearable_on(machine.device)}
                    pair = pair_of(process, *_visits(arm, workload, generator, evaluator.ceiling, **how), workload.new)
                    found.append(pair)
                    told = f"{pair.collected_s / pair.plain_s - 1:+.2%}" if pair.kept else "disturbed: dropped"
                    say(f"process {process + 1} round {number + 1}: {told}")
            except ArmFailed as failure:
                raise AgentCompileError(f"{asked.arm}: {failure}", hint="see whether it runs in the suite") from failure
            finally:
                if arm is not None:
                    arm.close()
    return found


def _visits(
    arm: LiveArm, workload: Workload, generator: random.Random, read: Callable[[], object], **how: Any
) -> tuple[list[Visit], list[Visit]]:
    """Return two visits as the suite collects them and two plain ones, made in the order ABBA or BAAB."""
    collected, plain = list[Visit](), list[Visit]()
    first, then = generator.choice(((collected, plain), (plain, collected)))
    for kind in (first, then, then, first):
        if kind is collected:
            read()
        kind.append(visit(arm, workload, LEAST_S, steady=arm.name == OURS, whole=kind is plain, **how))
    return collected, plain
