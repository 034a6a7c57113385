"""Interleaved rounds: every arm twice a round, in a random order and then in its reverse.

A drift of the clock that is linear over a round adds the same to every arm's two intervals together, so it leaves the
ratio of two arms alone. On a busy machine an interval in which threads waited for a core is taken again at once, while
it is short enough that one without waiting can be had, and rounds that stay disturbed are made up for by more. Nothing
here knows what an arm is: tests time simulated ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from agentcompile.ir.timing import Clock, Interval, Round, Samples
from agentcompile.measure.policy import Policy

MIN_ROUNDS = 3
"""Fewer rounds than this give no interval; so many are taken however little time there is."""
_LONG = 4.0
"""Batches of so many times what is taken again are long enough for a rough time however much they are disturbed."""
_SUDDEN = 4.0
"""A batch that takes so many times as long as it should is timed again."""
_LATE_TRIES, _TRIES, _MOST_TRIES = 2, 8, 24
"""Of doubling a batch: when time is up, for long intervals, and for short ones."""
_PLAUSIBLE = (1.7, 2.3)


class Arm(Protocol):
    """Something whose launches are timed."""

    def interval(self, batch: int) -> Interval:
        """Run `batch` launches back to back and time them together."""


def choose_batch(arms: Sequence[Arm], *, policy: Policy, claim: float, quantum_ns: int) -> int:
    """Launches a sample: enough for the fastest arm to fill the shortest interval, few enough for the slowest."""
    wanted_ns = max(policy.quantum_multiple * quantum_ns / claim, policy.min_interval_ns)
    times = [_launch_ns(arm, wanted_ns / 4, policy) for arm in arms]
    batch = math.ceil(wanted_ns / min(times))
    return max(1, min(batch, int(policy.max_interval_ns / max(times))))


def _launch_ns(arm: Arm, enough_ns: float, policy: Policy) -> float:
    """A rough time of one launch, from a batch that doubles until it takes `enough_ns`, the shortest of a few where
    threads waited or the time rose by far more than the batch: neighbours must not make a short launch look long."""
    batch, expected_ns = 1, 2 * arm.interval(1).ns
    while True:
        interval = arm.interval(batch)
        for _ in range(policy.retakes if interval.ns <= _LONG * policy.retaken_ns else 0):
            if interval.ns <= _SUDDEN * expected_ns and not disturbed(interval.ns, interval.waited_ns, policy):
                break
            interval = min(interval, arm.interval(batch), key=lambda one: one.ns)
        if interval.ns >= enough_ns or batch >= 1 << 20:
            return max(interval.ns, 1) / batch
        batch, expected_ns = 2 * batch, 2 * interval.ns


def disturbed(ns: int, waited_ns: int, policy: Policy) -> bool:
    """Whether threads waited for a core for more than a small share of an interval."""
    return waited_ns > policy.max_wait_share * ns


def calm(arm: Arm, batch: int, policy: Policy, shortest_ns: float = math.inf) -> tuple[Interval, int]:
    """The first of a few intervals that nothing disturbed, else the shortest of them; and how many were taken.

    Disturbed is what threads waited in, and what lasts much longer than `shortest_ns`, the arm's shortest so far:
    others on a GPU, or on the host of a virtual machine, take time that no thread is seen to wait for. Whether an
    interval is taken again does not depend on which arm it is of, so equal arms stay equal.
    """
    best = arm.interval(batch)
    taken = 1
    while taken <= policy.retakes and best.ns <= policy.retaken_ns and _stands_out(best, shortest_ns, policy):
        again = arm.interval(batch)
        taken += 1
        if not _stands_out(again, shortest_ns, policy):
            return again, taken
        best = min(best, again, key=lambda one: one.ns)
    return best, taken


def _stands_out(interval: Interval, shortest_ns: float, policy: Policy) -> bool:
    stretched = interval.ns > (1.0 + policy.max_stretch) * shortest_ns
    return stretched or disturbed(interval.ns, interval.waited_ns, policy)


def run_rounds(
    arms: Sequence[Arm],
    *,
    rounds: int,
    policy: Policy,
    claim: float,
    seed: int,
    quantum_ns: int,
    left: Callable[[], float] = lambda: math.inf,
) -> Samples:
    """Time `arms` in `rounds` rounds, at one batch for all; in more while some were disturbed, and in fewer, but not
    under `MIN_ROUNDS`, when no seconds are `left`."""
    batch = choose_batch(arms, policy=policy, claim=claim, quantum_ns=quantum_ns)
    generator = random.Random(seed)
    shortest = [math.inf] * len(arms)
    done: list[Round] = []
    clean = 0
    while clean < rounds and len(done) < (1 + policy.more_rounds) * rounds:
        if len(done) >= MIN_ROUNDS and left() <= 0:
            break
        order = list(range(len(arms)))
        generator.shuffle(order)
        first = {i: calm(arms[i], batch, policy, shortest[i]) for i in order}
        second = {i: calm(arms[i], batch, policy, shortest[i]) for i in reversed(order)}
        pairs = [(first[i], second[i]) for i in range(len(arms))]
        shortest = [min(shortest[i], one.ns, two.ns) for i, ((one, _), (two, _)) in enumerate(pairs)]
        done.append(
            Round(
                intervals_ns=tuple((one.ns, two.ns) for (one, _), (two, _) in pairs),
                waited_ns=tuple(one.waited_ns + two.waited_ns for (one, _), (two, _) in pairs),
                taken=tuple(once + twice for (_, once), (_, twice) in pairs),
            )
        )
        # More rounds of what cannot be undisturbed would not help, so they are counted as they come.
        clean += not any(
            one.ns <= policy.retaken_ns and disturbed(one.ns, one.waited_ns, policy)
            for pair in pairs
            for one, _ in pair
        )
    doubling = tuple(_doubling(arm, batch, policy, left) for arm in arms)
    return Samples(batch=batch, clock=Clock(quantum_ns=quantum_ns, doubling=doubling), rounds=tuple(done))


def _doubling(arm: Arm, batch: int, policy: Policy, left: Callable[[], float]) -> float:
    """The shortest of a few intervals around twice the batch over the shortest around the batch.

    Contention only lengthens either. They alternate, because the clock of a shared core has been seen to change by half
    within a second.
    """
    once = twice = math.inf
    for tried in range(_MOST_TRIES):
        once = min(once, max(arm.interval(batch).ns, 1))
        twice = min(twice, arm.interval(2 * batch).ns)
        enough = (tried >= _TRIES and once > policy.retaken_ns) or (tried >= _LATE_TRIES and left() <= 0)
        if _PLAUSIBLE[0] * once <= twice <= _PLAUSIBLE[1] * once or enough:
            break
    return twice / once
