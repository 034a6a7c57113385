"""The exception that stops a timed comparison: an arm that gives wrong results."""

from __future__ import annotations

from agentcompile.ir.trial import Check, NumericReport


class WrongOutput(Exception):
    """A timed arm, by index, gave wrong outputs or changed its process; the report says what and when."""

    def __init__(self, arm: int, check: Check) -> None:
        super().__init__(check.detail)
        self.arm = arm
        self.report = NumericReport(checks=(check,), error_ratio=0.0, cases=0, repeats=0)
