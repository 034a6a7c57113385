"""Trials of templates that were renamed since, translated to their present names: the same text has the same times.

A template's name is part of a candidate's id and the first line of its program text, so both were different then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agentcompile.catalog.aliases import ALIASES, formerly
from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import Trial
from agentcompile.materialize import specialise
from agentcompile.space import OutsideError, Space


class Renamed:
    """The former names of the candidates of some spaces."""

    def __init__(self, spaces: Iterable[Space] = ()) -> None:
        self._spaces = {space.region.id: space for space in spaces}
        templates = {one.digest: one for space in self._spaces.values() for one in space.templates}
        self._pairs: dict[str, tuple[Template, Template, str]] = {}
        """By digest: the template, the same template under its old name, and the digest that the old one has."""
        for digest, now in templates.items():
            if (old := formerly(now)) is not None:
                self._pairs[digest] = (now, old, old.digest)

    def then(self, candidate: Candidate) -> Candidate | None:
        """Return the candidate under its template's old name; None when the template was never renamed."""
        pair = self._pairs.get(candidate.template_digest)
        return replace(candidate, template=pair[1].id, template_digest=pair[2]) if pair is not None else None

    def now(self, trial: Trial) -> Trial:
        """Return the trial under the template's present name; unchanged when it was not renamed or its text differs."""
        own, space = trial.candidate, self._spaces.get(trial.candidate.region)
        if own.template not in ALIASES or space is None:
            return trial
        try:
            candidate = space.candidate(ALIASES[own.template][0], dict(own.params))
        except OutsideError:
            return trial
        if self.then(candidate) != own:
            return trial
        now, old, _ = self._pairs[candidate.template_digest]
        was, source = (specialise(one, space.region, own.params, space.target).digest for one in (old, now))
        return replace(trial, candidate=candidate, source=source) if trial.source == was else trial
