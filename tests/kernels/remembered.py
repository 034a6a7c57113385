"""Cases in numbers that are remembered: many kernels run on the same ones, and the reference takes longest."""

from __future__ import annotations

from collections.abc import Callable

from agentcompile.ir.region import Region
from agentcompile.validate import DeclaredArithmetic, Instruments
from agentcompile.validate.cases import Case
from agentcompile.validate.propagate import Drawn

MOST = 16
"""Sets of cases that are held, of one region, facts and seed each."""


class Remembered:
    """Draws by region, facts and seed, those of the last `MOST` of these."""

    def __init__(self) -> None:
        self._sets: dict[tuple[Region, DeclaredArithmetic, int], dict[Case, Drawn]] = {}

    def tools(self, region: Region, facts: DeclaredArithmetic, seed: int) -> Instruments:
        """For one candidate: a case that another one was evaluated on is not drawn again."""
        key = (region, facts, seed)
        known = self._sets[key] = self._sets.pop(key, {})
        while len(self._sets) > MOST:
            del self._sets[next(iter(self._sets))]

        def recall(case: Case, draw: Callable[[Case], Drawn]) -> Drawn:
            if case not in known:
                known[case] = draw(case)
            return known[case]

        return Instruments(recall=recall)
