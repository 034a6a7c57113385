"""The harness judged by itself: equal arms must stay equal, a planted difference must be found, with the right sign.

The arms are given: simulated ones in the test suite, a real kernel on a real timer as a recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentcompile.ir.timing import Timing
from agentcompile.measure.policy import Policy
from agentcompile.measure.rounds import Arm, run_rounds
from agentcompile.measure.statistics import contrast

PLANTED = 0.02
"""What the second of two unequal arms does more, unless told."""
MAX_FALSE = 0.096
"""Share of equal pairs that may be called FASTER: 5 % and three standard errors of 200 trials."""
MIN_FOUND = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What the harness claimed in `trials` trials of equal arms and as many of arms a planted difference apart."""

    trials: int
    false_faster: int
    """Equal arms called FASTER."""
    found: int
    """The planted difference, found."""
    reversed: int
    """The planted difference, claimed with the wrong sign."""

    @property
    def ok(self) -> bool:
        """Whether the harness may be trusted."""
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
    """Compare pairs of arms; ``arms(d)`` gives two of which the second does 1 + d times the work of the first.

    Equal arms are compared with a claim of 0, so that every interval clear of 0 counts against the harness.
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
