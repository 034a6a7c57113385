"""A tally of the checks of a task's kernel, which two processes add to."""

from __future__ import annotations

from agentcompile.ir.trial import NumericReport
from agentcompile.validate.tally import Tally


class TaskTally(Tally):
    """A tally that keeps the detail of failures alone, and takes in what other processes found."""

    def add(self, name: str, measured: float, allowed: float, detail: str) -> None:
        """Record the check `measured <= allowed`; a NaN fails."""
        super().add(name, measured, allowed, "" if measured <= allowed else detail)

    def merge(self, other: Tally) -> None:
        """Record what another tally found."""
        for check in other.checks.values():
            self.add(check.name, check.measured, check.allowed, check.detail)
        self.error_ratio = max(self.error_ratio, other.error_ratio)

    def report(self, *, cases: int, repeats: int) -> NumericReport:
        """Return everything that was found."""
        return NumericReport(
            checks=tuple(self.checks.values()), error_ratio=self.error_ratio, cases=cases, repeats=repeats
        )
