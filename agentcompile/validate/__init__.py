"""Validation of a candidate's results: float64 reference with error bounds, hostile inputs, poison, redzones, repeats.

`validate` takes a region, what its template declares, and a way to launch the candidate; it returns a `NumericReport`.
It uses PyTorch and the standard library only, because it runs inside workers.
"""

from agentcompile.validate.rig import Instruments
from agentcompile.validate.selftest import insensitive, selftest
from agentcompile.validate.suite import validate
from agentcompile.validate.tolerance import POLICY, DeclaredArithmetic

__all__ = ["POLICY", "DeclaredArithmetic", "Instruments", "insensitive", "selftest", "validate"]
