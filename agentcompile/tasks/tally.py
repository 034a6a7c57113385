"""What the checks of a kernel found, over all cases: the worst of each, and the first failure."""

from __future__ import annotations

import math

from agentcompile.ir.trial import Check, NumericReport


class Tally:
    """The worst result of every check; the first failure of a check is final."""

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        self.error_ratio = 0.0

    def add(self, name: str, measured: float, allowed: float, detail: str) -> None:
        """Record the check `measured <= allowed`; a NaN fails."""
        ok = measured <= allowed
        before = self.checks.get(name)
        if before is None or (before.ok and (not ok or measured > before.measured)):
            measured = math.inf if math.isnan(measured) else measured
            self.checks[name] = Check(name=name, ok=ok, measured=measured, allowed=allowed, detail="" if ok else detail)

    def merge(self, other: Tally) -> None:
        """Record what another tally found."""
        for check in other.checks.values():
            self.add(check.name, check.measured, check.allowed, check.detail)
        self.error_ratio = max(self.error_ratio, other.error_ratio)

    def claim(self, name: str, ok: bool, detail: str) -> None:
        """Record a yes/no check."""
        self.add(name, 0.0 if ok else 1.0, 0.0, detail)

    @property
    def ok(self) -> bool:
        """Whether nothing has failed so far."""
        return all(check.ok for check in self.checks.values())

    def report(self, *, cases: int, repeats: int) -> NumericReport:
        """Return everything that was found."""
        return NumericReport(
            checks=tuple(self.checks.values()), error_ratio=self.error_ratio, cases=cases, repeats=repeats
        )
