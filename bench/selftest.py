"""`agentcompile bench harness`: the timing protocol tested on this machine's real timer.

Equal kernels may rarely be called FASTER, and one that does 2 % more work must be told from its twin. On a shared
machine the second fails first: then small differences stay INCONCLUSIVE, which costs speed and never correctness.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentcompile.evaluation.machine import evaluator_of, this_machine
from agentcompile.ir.codec import encode
from agentcompile.measure.selftest import MAX_FALSE, MIN_FOUND, PLANTED
from agentcompile.options import resolve

from .harness.numbers import at_least


def run(arguments: Sequence[str]) -> int:
    """Run the self-test and print what it found; return 0 whatever it found."""
    parser = argparse.ArgumentParser(prog="agentcompile bench harness", description=__doc__)
    parser.add_argument("--trials", type=at_least(1), default=200, help="pairs of equal kernels, and of unequal ones")
    parser.add_argument("--rounds", type=at_least(1), default=10, help="paired rounds a trial; a confirmation takes 30")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the kernels' inputs")
    parser.add_argument("--out", type=Path, help="the JSON file")
    asked = parser.parse_args(arguments)
    machine = this_machine(resolve({}).options)
    with evaluator_of(machine, asked.seed) as evaluator:
        found = evaluator.selftest(trials=asked.trials, rounds=asked.rounds)
    for what, count, wanted in (
        ("equal kernels called FASTER", found.false_faster, f"at most {MAX_FALSE:.1%}"),
        (f"{PLANTED:.0%} more work found", found.found, f"at least {MIN_FOUND:.0%}"),
        (f"{PLANTED:.0%} more work called FASTER", found.reversed, "none"),
    ):
        print(f"{what:30}  {count / found.trials:6.1%} of {found.trials}, {wanted}")
    print("the harness may be trusted here" if found.ok else "small differences are not to be trusted here")
    if asked.out:
        result = {"format": 1, "command": f"agentcompile bench harness --trials {asked.trials} --rounds {asked.rounds}"}
        asked.out.write_text(
            json.dumps({**result, "machine": encode(machine.target), **asdict(found)}, indent=1) + "\n"
        )
    return 0
