"""Interleaved rounds: every arm twice a round, in a random order and then in its reverse.

A drift of the clock that is linear over a round adds the same to every arm's two intervals together, so it leaves the
ratio of two arms alone. Nothing here knows what an arm is: tests time simulated ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

from agentcompile.ir.timing import Clock, Interval, Round, Samples
from agentcompile.measure.policy import Policy

_TRIES = 8
_PLAUSIBLE = (1.7, 2.3)


class Arm(Protocol):
    """Something whose launches are timed."""

    def interval(self, batch: int) -> Interval:
        """Run `batch` launches back to back and time them together."""


def choose_batch(arms: Sequence[Arm], *, policy: Policy, claim: float, quantum_ns: int) -> int:
    """Launches a sample: enough for the fastest arm to fill the shortest interval, few enough for the slowest."""
    wanted_ns = max(policy.quantum_multiple * quantum_ns / claim, policy.min_interval_ns)
    times = [_launch_ns(arm, wanted_ns / 4) for arm in arms]
    batch = math.ceil(wanted_ns / min(times))
    return max(1, min(batch, int(policy.max_interval_ns / max(times))))


def _launch_ns(arm: Arm, enough_ns: float) -> float:
    """A rough time of one launch, from a batch that doubles until it takes `enough_ns`."""
    batch = 1
    arm.interval(1)
    while True:
        interval = arm.interval(batch).ns
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
) -> Samples:
    """Time `arms` in `rounds` rounds, at one batch for all."""
    batch = choose_batch(arms, policy=policy, claim=claim, quantum_ns=quantum_ns)
    generator = random.Random(seed)
    done: list[Round] = []
    for _ in range(rounds):
        order = list(range(len(arms)))
        generator.shuffle(order)
        first = {i: arms[i].interval(batch) for i in order}
        second = {i: arms[i].interval(batch) for i in reversed(order)}
        pairs = [(first[i], second[i]) for i in range(len(arms))]
        done.append(
            Round(
                intervals_ns=tuple((one.ns, two.ns) for one, two in pairs),
                waited_ns=tuple(one.waited_ns + two.waited_ns for one, two in pairs),
            )
        )
    doubling = tuple(_doubling(arm, batch) for arm in arms)
    return Samples(batch=batch, clock=Clock(quantum_ns=quantum_ns, doubling=doubling), rounds=tuple(done))


def _doubling(arm: Arm, batch: int) -> float:
    """The shortest of a few intervals around twice the batch over the shortest around the batch.

    Contention only lengthens either. They alternate, because the clock of a shared core has been seen to change by half
    within a second.
    """
    once = twice = math.inf
    for _ in range(_TRIES):
        once = min(once, max(arm.interval(batch).ns, 1))
        twice = min(twice, arm.interval(2 * batch).ns)
        if _PLAUSIBLE[0] * once <= twice <= _PLAUSIBLE[1] * once:
            break
    return twice / once
