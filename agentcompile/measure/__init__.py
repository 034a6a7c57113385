"""Paired timing: interleaved rounds in, verdicts with intervals out. The protocol is one `Policy`, whose digest keys results."""

from agentcompile.measure.policy import POLICY, Policy
from agentcompile.measure.samples import Clock, Round, Samples, Timing

__all__ = ["POLICY", "Clock", "Policy", "Round", "Samples", "Timing"]
