"""A trial of the figures' recipe on made-up arms; as a program, one whose partial result is kept, to be killed.

`python -m tests.cpu.trials CACHE [--resume] [--killed-after WORDS]` says a line a round on stdout, as the recipe does
on stderr, and kills itself after a line with these words.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from agentcompile.bench.harness.partial import open_partial
from agentcompile.bench.harness.times import Build
from agentcompile.bench.harness.trial import Outcome, Setup, run_trial
from agentcompile.bench.harness.workload import Workload

ARMS = ("fast", "slow")
ROUNDS, PROCESSES = 3, 2
IDENTITY = {"models": "x", "device": "cpu", "seed": "0"}
FAKE = """
import random, sys, os
from agentcompile.bench.harness.channel import Generation, serve
class Fake:
    facts = {{"made up": True, "pid": os.getpid()}}
    def generate(self, ids, new, **drawn):
        if drawn:
            return Generation([8] * new, random.random(), random.random())
        {act}
        return Generation([7] * new, random.random(), random.random())
    def tops(self, ids, new, count):
        return [7] * new, [[7, 1, 2, 3, 4]] * new
{load}
serve(lambda request: load() or Fake())
"""

AT_ONCE = "def load(): pass"
MEETING = """
def load():
    import pathlib, time
    folder = pathlib.Path({folder!r})
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) in {waiting}: time.sleep(0.01)
"""
"""Loads that do not end while so many have begun altogether."""

WORK = Workload(
    name="x",
    model=Path(),
    ids=(1, 2),
    new=8,
    context=8,
    token_bytes=1000,
    weight_bytes=900,
    cache_bytes=100,
    parameters=1,
)


class Commands:
    """What starts the arms; remembers which were started, in order."""

    def __init__(self, acts: dict[str, str] | None = None, load: str = AT_ONCE) -> None:
        self.started: list[str] = []
        self.acts, self.load = acts or {}, load

    def __call__(self, name: str, build: Build | None, setup: Setup) -> list[str]:
        self.started.append(name)
        return [sys.executable, "-c", FAKE.format(act=self.acts.get(name, "pass"), load=self.load)]


def nothing() -> None:
    """Neither kept nor stopped."""


def setup(
    folder: Path,
    commands: Commands,
    *,
    keep: Callable[[], None] = nothing,
    pause: Callable[[], None] = nothing,
    say: Callable[[str], None] = lambda text: None,
    device: str = "cpu",
) -> Setup:
    return Setup(
        threads=1,
        device=device,
        rounds=ROUNDS,
        processes=PROCESSES,
        seed=0,
        cache=folder,
        logs=folder,
        llama_python=None,
        quiet=nullcontext,
        bandwidth=lambda: 1e6,
        say=say,
        keep=keep,
        pause=pause,
        command=commands,
        calm=lambda share: None,
    )


def trial(made: Setup, outcome: Outcome) -> Outcome:
    return run_trial(ARMS, WORK, None, 0.0, made, outcome)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--killed-after")
    asked = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)
        if asked.killed_after and asked.killed_after in text:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_partial(asked.cache, IDENTITY, resume=asked.resume, until_s=None, say=say) as file:
        made = setup(asked.cache, Commands(), keep=file.keep, pause=file.pause, say=say)
        trial(made, file.progress("x").outcome)


if __name__ == "__main__":
    main()
