"""What the checks of a kernel found, over all cases: the worst of each, and the first failure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from agentcompile.ir.trial import Check


@dataclass(slots=True, kw_only=True)
class Tally:
    """The worst result of every check so far. The first failure of a check is final, and its detail is kept."""

    checks: dict[str, Check] = field(default_factory=dict)
    error_ratio: float = 0.0
    errors: list[tuple[float, float, int]] = field(default_factory=list)
    """For everyday cases: mean square error, the mean square error allowed as the model's own, and elements."""

    def add(self, name: str, measured: float, allowed: float, detail: str) -> None:
        """Record the check `measured <= allowed`; a NaN fails."""
        ok = measured <= allowed
        before = self.checks.get(name)
        worse = before is None or (before.ok and (not ok or measured > before.measured))
        if worse:
            measured = math.inf if math.isnan(measured) else measured
            self.checks[name] = Check(name=name, ok=ok, measured=measured, allowed=allowed, detail=detail)

    def claim(self, name: str, ok: bool, detail: str) -> None:
        """Record a yes/no check; `detail` says what is wrong when it fails."""
        self.add(name, 0.0 if ok else 1.0, 0.0, "" if ok else detail)

    @property
    def ok(self) -> bool:
        """Whether nothing has failed so far."""
        return all(check.ok for check in self.checks.values())
