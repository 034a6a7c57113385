"""Baseline times of regions in PyTorch: from their trials, from notes of earlier runs, or measured alone."""

from __future__ import annotations

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.evaluator import Baseline, Evaluator
from agentcompile.ir.region import Region
from agentcompile.ir.target import Residency, Target
from agentcompile.measure import POLICY, Timing, usual_ns
from agentcompile.system.notes import Notes
from agentcompile.tuning.trial_database import fallback_key


class BaselineTimes:
    """The time that one site of each region takes in PyTorch, measured at most once per region."""

    def __init__(self, evaluator: Evaluator, notes: Notes, target: Target, policy: str, seed: int) -> None:
        self._evaluator, self._notes, self._target, self._policy, self._seed = evaluator, notes, target, policy, seed
        self._ns: dict[str, int] = {}

    def note(self, region: str, ns: int) -> None:
        """Keep the baseline time in ns that a trial of the region id `region` measured."""
        self._ns[region] = ns

    def has(self, region: Region) -> bool:
        """Return whether a region's time is known without a measurement."""
        return region.id in self._ns or self._notes.get(self._key(region)) is not None

    def of(self, region: Region, residency: Residency) -> int:
        """Return the time in ns that one site of `region` takes in PyTorch.

        Raises:
            AgentCompileError: the captured operators cannot be run (environment).
        """
        if region.id not in self._ns:
            known = self._notes.get(self._key(region))
            if known is None:
                known = self._measured(region, residency)
                self._notes.put(self._key(region), known)
            self._ns[region.id] = known
        return self._ns[region.id]

    def _key(self, region: Region) -> str:
        return fallback_key(region.id, self._target.digest, self._policy)

    def _measured(self, region: Region, residency: Residency) -> int:
        timing = self._evaluator.time(
            region, [Baseline()], rounds=POLICY.search_rounds, residency=residency, seed=self._seed, processes=1
        )
        if isinstance(timing, Timing):
            return round(usual_ns(timing, 0))
        text = f"{region.name}: the captured operators cannot be run: {timing}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="check memory and load, then resume")
