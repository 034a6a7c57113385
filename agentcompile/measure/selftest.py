"""A test of the timing harness: equal arms must compare equal, and a planted difference must be found with its sign.

The caller supplies the arms: simulated ones in the test suite, a real kernel on a real timer in `bench/selftest.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.ir.timing import Timing
from agentcompile.measure.policy import Policy
from agentcompile.measure.rounds import Arm, run_rounds
from agentcompile.measure.statistics import contrast

PLANTED = 0.02
"""The default relative extra work of the second of two unequal arms."""
MAX_FALSE = 0.096
"""The largest share of equal pairs that may be called FASTER: 5 % plus three standard errors at 200 trials."""
MIN_FOUND = 0.9
"""The smallest share of planted differences that must be called FASTER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The harness's claims in `trials` comparisons of equal arms and as many of arms with a planted difference."""

    trials: int
    false_faster: int
    """Comparisons of equal arms that were called FASTER."""
    found: int
    """Planted differences that were called FASTER, as they should be."""
    reversed: int
    """Planted differences that were called SLOWER, the wrong sign."""

    @property
    def ok(self) -> bool:
        """Whether few equal arms were called FASTER, most differences were found and none had the wrong sign."""
        few = self.false_faster <= MAX_FALSE * self.trials
        return few and self.found >= MIN_FOUND * self.trials and self.reversed == 0


def selftest(
    arms: Callable[[float], tuple[Arm, Arm]],
    *,
    trials: int,
    rounds: int,
    policy: Policy,
    quantum_ns: int,
    seed: int,
    planted: float = PLANTED,
) -> SelfTest:
    """Compare `trials` pairs of equal arms and `trials` pairs whose second arm does `planted` more work, and count.

    ``arms(d)`` returns two arms of which the second does 1 + d times the work of the first. Equal arms are compared
    with a claim of 0, so that every interval that excludes 0 counts against the harness.
    """

    def verdict(difference: float, claim: float, number: int) -> str:
        samples = run_rounds(
            arms(difference),
            rounds=rounds,
            policy=policy,
            claim=policy.search_claim,
            seed=seed + number,
            quantum_ns=quantum_ns,
        )
        timing = Timing(arms=("first", "second"), live=(0, 1), processes=(samples,), residency="cache")
        return contrast(timing, 0, 1, claim=claim, policy=policy).comparison

    equal = [verdict(0.0, 0.0, number) for number in range(trials)]
    unequal = [verdict(planted, policy.search_claim, trials + number) for number in range(trials)]
    return SelfTest(
        trials=trials,
        false_faster=equal.count("FASTER"),
        found=unequal.count("FASTER"),
        reversed=unequal.count("SLOWER"),
    )
