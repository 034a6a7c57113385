"""Rungs of successive halving (Jamieson and Talwalkar, 2016, section 3): the better half is timed twice as long."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Trial
from agentcompile.search.strategy import Budget, Proposal, proposal_of, reached


def climb(rung: Sequence[Candidate], history: Mapping[str, list[Trial]], budget: Budget) -> Proposal[Candidate]:
    """Return the candidates of the first rung that is not yet timed whole; none when only finalists are left.

    `rung` holds the candidates of the first rung, all with trials in `history`, which is by candidate id.
    """
    for level in itertools.count():
        rounds = budget.rounds << level
        ratios = {candidate.id: reached(history[candidate.id], rounds, level) for candidate in rung}
        missing = tuple(candidate for candidate in rung if ratios[candidate.id] is None)
        if missing:
            return proposal_of(missing, rounds, "timed-again")
        rung = [candidate for candidate in rung if ratios[candidate.id] != -math.inf]
        if len(rung) <= budget.finalists:
            break
        keep = max(budget.finalists, math.ceil(len(rung) / 2))
        rung = sorted(rung, key=lambda candidate: -(ratios[candidate.id] or 0.0))[:keep]
    return Proposal()
