"""Paired timing: interleaved rounds go in, measurements with confidence intervals come out.

One `Policy` holds the protocol's numbers, and its digest is part of the key of every stored result.
"""

from agentcompile.ir.timing import Clock, Round, Samples, Timing
from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.selftest import SelfTest, selftest
from agentcompile.measure.statistics import (
    Contrast,
    contrast,
    impossible,
    measurement,
    share_disturbed,
    usual_ns,
    verdict_of,
)

__all__ = [
    "POLICY", "Clock", "Contrast", "Policy", "Round", "Samples", "SelfTest", "Timing",
    "contrast", "impossible", "verdict_of", "measurement", "selftest", "share_disturbed", "usual_ns",
]  # fmt: skip
