"""The timing protocol's numbers, in one place; results taken under another policy are not comparable."""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.target import Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How samples are taken and what may be claimed from them."""

    protocol: int = 4
    """Raised when the way of taking samples changes while the numbers below do not."""
    search_claim: float = 0.005
    """Relative: the smallest difference that a search claims."""
    claim: float = 0.01
    """Relative: the smallest difference that a published figure claims."""
    alpha: float = 0.05
    """Chance of one wrong FASTER among all comparisons of one decision."""
    looks: int = 1
    """How often one decision may look at its data; planned beforehand."""
    search_rounds: int = 5
    confirm_rounds: int = 10
    """Per process."""
    confirm_processes: int = 3
    publish_processes: int = 5
    max_dropped: float = 0.2
    """Share of rounds; above it nothing is claimed."""
    min_interval_ns: int = 200_000
    """Of one sample: long against timer quantum and wake-ups, short against a scheduler tick."""
    max_interval_ns: int = 50_000_000
    """Of one sample; a launch that takes longer is timed alone."""
    max_device_interval_ns: int = 5_000_000
    """The same for regions on a GPU, where nothing waits for a core: fast arms have as many launches as slow ones."""
    quantum_multiple: int = 5
    """A sample lasts this many timer quanta divided by the claim."""
    dram_bytes: int = 600_000_000
    """Inputs rotate over this much at least: cloud CPUs share hundreds of MiB of cache that they may not report."""
    cache_bytes: int = 16 << 20
    """What a rotation inside the last-level cache covers, unless half of that cache is less."""
    cache_multiple: int = 4
    """A rotation in DRAM covers this many last-level caches at least, one in that cache as many private ones."""
    overwhelming: float = 0.5
    """As a logarithm: a difference whose interval stays beyond this is claimed however many rounds were dropped. What a
    kept round may be stretched by (below) is less than half of it, so that contention cannot explain it."""
    overwhelming_disturbed: float = 1.1
    """The same where nearly all rounds were disturbed and are taken as they are, beside neighbours that make two equal
    kernels suffer unequally: one whose threads wait for one another needs all of them to run at once, which with two
    threads on shared cores takes four times as long, where independent ones take twice as long."""
    floor_fraction: float = 0.9
    """A median below this share of the floor is impossible."""
    max_wait_share: float = 0.02
    """An interval is disturbed when threads waited for a core longer than this share of it."""
    others_share: float = 0.05
    """Of the machine's processor time: where other processes take less, waiting is our own threads' and PyTorch's."""
    busy_wait_share: float = 0.1
    """A round is called disturbed when threads waited for so much of what was kept of an arm: a quiet machine's own
    threads wake up and wait a little, too."""
    retakes: int = 6
    """How often a disturbed interval is taken again at once, before the shortest of all is kept."""
    retaken_ns: int = 3_000_000
    """Longer intervals are not taken again: schedulers give a core away after some milliseconds, so that beside busy
    neighbours no interval of this length is undisturbed."""
    more_rounds: int = 2
    """While rounds are disturbed, so many times as many are added at most."""
    max_stretch: float = 0.25
    """A round is contended when an interval is this much longer than the arm's lower quartile in the process."""
    max_waiting_stretch: float = 0.03
    """The same, when threads waited for a core meanwhile."""

    def digest(self, *, tolerances: Json = None, residency: Residency) -> str:
        """Identity of all that a number depends on beside source and target: the key of the measurement database."""
        return digest("policy/1", encode(self), tolerances, residency)


POLICY = Policy()
"""What the flow uses; tests shorten it."""
