"""The timing protocol's numbers in one place; results measured under different policies are not comparable."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.target import Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers that say how samples are taken and what may be claimed from them."""

    protocol: int = 4
    """Version of the sampling method; increased when the method changes while the numbers below do not."""
    search_claim: float = 0.005
    """The smallest relative difference that a search claims."""
    claim: float = 0.01
    """The smallest relative difference that a published figure claims."""
    alpha: float = 0.05
    """Chance of one wrong FASTER among all comparisons of one decision."""
    looks: int = 1
    """How often one decision may look at its data; planned beforehand."""
    search_rounds: int = 5
    confirm_rounds: int = 10
    """Rounds of each process that confirms a finalist."""
    confirm_processes: int = 3
    publish_processes: int = 5
    max_dropped: float = 0.2
    """The largest share of dropped rounds; nothing is claimed above it."""
    min_interval_ns: int = 200_000
    """The shortest sample: long beside the timer's quantum and wake-ups, short beside a scheduler tick."""
    max_interval_ns: int = 50_000_000
    """The longest sample; a launch that takes longer is timed alone."""
    max_device_interval_ns: int = 5_000_000
    """The longest sample on a GPU, where no thread waits for a core: fast arms get as many launches as slow ones."""
    quantum_multiple: int = 5
    """A sample lasts at least this many timer quanta divided by the claim."""
    dram_bytes: int = 600_000_000
    """The least that inputs in DRAM rotate over: cloud CPUs share hundreds of MiB of cache that they may not report."""
    cache_bytes: int = 16 << 20
    """The least that inputs in the last-level cache rotate over, unless half of that cache is less."""
    cache_multiple: int = 4
    """A rotation in DRAM covers at least this many last-level caches; one in that cache, this many private caches."""
    overwhelming: float = 0.5
    """The log ratio claimed whatever was dropped: over twice `max_stretch`, so that contention does not explain it."""
    overwhelming_disturbed: float = 1.1
    """The same log ratio where nearly all rounds were disturbed and all of them are used.

    It is larger because busy neighbours slow two equally fast kernels unequally: one whose threads wait for one another
    needs all of them to run at once, which with two threads on shared cores takes four times as long, where independent
    threads take twice as long.
    """
    floor_fraction: float = 0.9
    """A median below this share of the roofline floor is impossible."""
    max_wait_share: float = 0.02
    """An interval is disturbed when threads waited for a core longer than this share of it."""
    others_share: float = 0.05
    """Share of the machine's processor time below which waiting threads waited for our own and PyTorch's."""
    busy_wait_share: float = 0.1
    """A round is disturbed above this share of an arm's intervals spent waiting; a little waiting is waking up."""
    retakes: int = 6
    """How often a disturbed interval is taken again at once, before the shortest of all is kept."""
    retaken_ns: int = 3_000_000
    """The longest interval that is taken again: schedulers give a core away after some milliseconds anyway."""
    more_rounds: int = 2
    """While rounds are disturbed, at most this multiple of the planned rounds is added."""
    max_stretch: float = 0.25
    """A round is contended when an interval is this share longer than the arm's lower quartile in the process."""
    max_waiting_stretch: float = 0.03
    """The same share, for rounds in which threads waited for a core."""

    def digest(self, *, tolerances: Json = None, residency: Residency) -> str:
        """Return the digest of all that a measurement depends on beside source and target, a part of its key."""
        return digest("policy/1", encode(self), tolerances, residency)


POLICY = Policy()
"""The policy of the compiler; tests use shorter ones."""
