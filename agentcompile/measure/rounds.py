"""Interleaved rounds: every arm twice a round, in a random order and then in its reverse.

A drift of the clock that is linear over a round adds the same to every arm's two intervals together, so it leaves the
ratio of two arms alone. Nothing here knows what an arm is: tests time simulated ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from agentcompile.measure.policy import Policy
from agentcompile.measure.samples import Clock, Round, Samples


class Arm(Protocol):
    """Something whose launches are timed."""

    def interval_ns(self, batch: int) -> int:
        """Run `batch` launches back to back and return the nanoseconds that they took together."""


def choose_batch(arms: Sequence[Arm], *, policy: Policy, claim: float, quantum_ns: int) -> int:
    """Launches a sample: enough for the fastest arm to fill the shortest interval, few enough for the slowest."""
    wanted_ns = max(policy.quantum_multiple * quantum_ns / claim, policy.min_interval_ns)
    times = [_launch_ns(arm, wanted_ns / 4) for arm in arms]
    batch = math.ceil(wanted_ns / min(times))
    return max(1, min(batch, int(policy.max_interval_ns / max(times))))


def _launch_ns(arm: Arm, enough_ns: float) -> float:
    """A rough time of one launch, from a batch that doubles until it takes `enough_ns`."""
    batch = 1
    arm.interval_ns(1)
    while True:
        interval = arm.interval_ns(batch)
        if interval >= enough_ns or batch >= 1 << 20:
            return max(interval, 1) / batch
        batch *= 2


def run_rounds(
    arms: Sequence[Arm],
    *,
    rounds: int,
    policy: Policy,
    claim: float,
    seed: int,
    quantum_ns: int,
    waited_ns: Callable[[], int] = lambda: 0,
) -> Samples:
    """Time `arms` in `rounds` rounds, at one batch for all; `waited_ns` is a counter of time spent waiting for a core."""
    batch = choose_batch(arms, policy=policy, claim=claim, quantum_ns=quantum_ns)
    twice = [min(arm.interval_ns(2 * batch) for _ in range(2)) for arm in arms]
    generator = random.Random(seed)
    done: list[Round] = []
    for _ in range(rounds):
        order = list(range(len(arms)))
        generator.shuffle(order)
        before = waited_ns()
        first = {i: arms[i].interval_ns(batch) for i in order}
        second = {i: arms[i].interval_ns(batch) for i in reversed(order)}
        pairs = tuple((first[i], second[i]) for i in range(len(arms)))
        done.append(Round(intervals_ns=pairs, waited_ns=max(waited_ns() - before, 0)))
    least = [min((min(timed.intervals_ns[i]) for timed in done), default=1) for i in range(len(arms))]
    doubling = tuple(two / max(one, 1) for two, one in zip(twice, least, strict=True))
    return Samples(batch=batch, clock=Clock(quantum_ns=quantum_ns, doubling=doubling), rounds=tuple(done))
