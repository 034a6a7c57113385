"""Interleaved timing rounds: each round times every arm twice, in a random order and then in the reverse order.

A clock drift that is linear over a round adds the same amount to the sum of every arm's two intervals, so it does not
change the ratio of two arms. On a busy machine an interval in which threads waited for a core is taken again at once if
it is short enough for an undisturbed one to be likely; rounds that stay disturbed are replaced by additional rounds.
Nothing here depends on what an arm is: tests time simulated ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from agentcompile.ir.timing import Clock, Interval, Round, Samples
from agentcompile.measure.policy import Policy

MIN_ROUNDS = 3
"""The fewest rounds that give a confidence interval: so many are taken even when time is up, if one may come of it."""
_LONG = 4.0  # batches longer than this multiple of `Policy.retaken_ns` give a rough time even when disturbed
FAR = 4.0
"""A launch that takes this multiple of `Policy.max_interval_ns` is timed alone, and is not tried again."""
_SUDDEN = 4.0  # a batch that takes this multiple of its expected time is timed again
_LATE_TRIES, _TRIES, _MOST_TRIES = 2, 8, 24
"""Most tries of the doubling check: when time is up, for long intervals, and for short ones."""
_PLAUSIBLE = (1.7, 2.3)


class Arm(Protocol):
    """Something that can be launched and timed."""

    def interval(self, batch: int) -> Interval:
        """Run `batch` launches back to back and time them together."""


def choose_batch(arms: Sequence[Arm], *, policy: Policy, claim: float, quantum_ns: int) -> int:
    """Return the number of launches in a sample, the same for all arms and at least 1.

    It is the least with which the fastest arm fills the shortest interval that `claim` and the clock's `quantum_ns`
    need, unless the slowest arm would then exceed the policy's longest interval.
    """
    wanted_ns = max(policy.quantum_multiple * quantum_ns / claim, policy.min_interval_ns)
    times = [_launch_ns(arm, wanted_ns / 4, policy) for arm in arms]
    batch = math.ceil(wanted_ns / min(times))
    return max(1, min(batch, int(policy.max_interval_ns / max(times))))


def _launch_ns(arm: Arm, enough_ns: float, policy: Policy) -> float:
    """Return a rough time of one launch in ns, from a batch that is doubled until it takes `enough_ns`.

    A batch in which threads waited, or whose time rose by far more than its size, is timed again and the shortest time
    counts, so that other processes do not make a short launch look long.
    """
    batch, expected_ns = 1, 2 * arm.interval(1).ns
    if expected_ns > 2 * FAR * policy.max_interval_ns:  # a sample has one launch, whatever disturbed this one
        return expected_ns / 2
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
    """Return whether threads waited for a core for more than `Policy.max_wait_share` of an interval of `ns`."""
    return waited_ns > policy.max_wait_share * ns


def calm(arm: Arm, batch: int, policy: Policy, shortest_ns: float = math.inf) -> tuple[Interval, int]:
    """Return the first undisturbed interval of a few, else the shortest of them, and how many were taken.

    An interval is disturbed when threads waited for a core in it, or when it is much longer than `shortest_ns`, the
    arm's shortest so far: other users of a GPU, or of a virtual machine's host, take time that no thread is seen to
    wait for. The rule for taking an interval again is the same for every arm, so equal arms still compare equal.
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
    """Time `arms` in `rounds` interleaved rounds, with one batch size for all arms.

    More rounds are taken while some were disturbed, up to the policy's limit; fewer, but at least `MIN_ROUNDS`, when
    `left` returns no more seconds. Then one is enough where it is hopeless to wait for an undisturbed one.
    """
    batch = choose_batch(arms, policy=policy, claim=claim, quantum_ns=quantum_ns)
    generator = random.Random(seed)
    shortest = [math.inf] * len(arms)
    done: list[Round] = []
    clean = 0
    while clean < rounds and len(done) < (1 + policy.more_rounds) * rounds:
        if len(done) >= (1 if _hopeless(done, policy) else MIN_ROUNDS) and left() <= 0:
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
        # Long intervals cannot be undisturbed, so more rounds would not help and these count as clean.
        clean += not any(
            one.ns <= policy.retaken_ns and disturbed(one.ns, one.waited_ns, policy)
            for pair in pairs
            for one, _ in pair
        )
    doubling = tuple(_doubling(arm, batch, policy, left, least) for arm, least in zip(arms, shortest, strict=True))
    return Samples(batch=batch, clock=Clock(quantum_ns=quantum_ns, doubling=doubling), rounds=tuple(done))


def _hopeless(done: Sequence[Round], policy: Policy) -> bool:
    """Return whether in every round an arm waited for much of launches so long that no other round would be better."""

    def waited(timed: Round, arm: int) -> bool:
        pair = timed.intervals_ns[arm]
        long = min(pair) > FAR * policy.max_interval_ns
        return long and timed.waited_ns[arm] > policy.busy_wait_share * sum(pair)

    return bool(done) and all(any(waited(timed, arm) for arm in range(len(timed.waited_ns))) for timed in done)


def _doubling(arm: Arm, batch: int, policy: Policy, left: Callable[[], float], shortest_ns: float) -> float:
    """Return the shortest of a few intervals of twice the batch, divided by the shortest of the batch.

    The shortest are used because contention only lengthens an interval. The two sizes alternate because the clock
    frequency of a shared core was seen to change by half within a second; when time is up, the rounds' shortest
    interval of the batch, `shortest_ns`, has to do, and of what is longer than the policy's longest interval one try.
    """
    once = twice = math.inf
    for tried in range(_MOST_TRIES):
        once = min(once, max(shortest_ns if left() <= 0 else arm.interval(batch).ns, 1))
        twice = min(twice, arm.interval(2 * batch).ns)
        late = left() <= 0 and (tried >= _LATE_TRIES or once > policy.max_interval_ns)
        enough = (tried >= _TRIES and once > policy.retaken_ns) or late
        if _PLAUSIBLE[0] * once <= twice <= _PLAUSIBLE[1] * once or enough:
            break
    return twice / once
