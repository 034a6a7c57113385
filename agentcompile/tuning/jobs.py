"""Evaluation jobs made from candidates: their program texts, each made once, and the findings of the static rules."""

from __future__ import annotations

from agentcompile import check
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Source
from agentcompile.ir.trial import Finding
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import fits
from agentcompile.tuning.ranking import Traits
from agentcompile.tuning.tasks import TuneTask


class JobMaker:
    """A maker of evaluation jobs for one target, which specialises each candidate's template once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sources: dict[str, Source] = {}

    def source(self, task: TuneTask, candidate: Candidate) -> Source:
        """Return the program text of a candidate; an empty one where an extent of its launches has no value.

        The static check rejects such a candidate for the same extent, so that nothing builds its text.
        """
        if candidate.id not in self._sources:
            template = task.space.template(candidate.template)
            try:
                made = specialise(template, task.region, candidate.params, self._target)
            except AgentCompileError:  # a point that the template's `requires` should exclude
                made = Source(language=template.language, text="", launches=(), workspaces=())
            self._sources[candidate.id] = made
        return self._sources[candidate.id]

    def job(self, task: TuneTask, candidate: Candidate) -> EvaluationJob:
        """Return the evaluation job of a candidate: its region, template and program text."""
        template, source = task.space.template(candidate.template), self.source(task, candidate)
        return EvaluationJob(candidate=candidate, region=task.region, template=template, source=source)

    def findings(self, job: EvaluationJob) -> tuple[Finding, ...]:
        """Return the findings of the static rules for a job: warnings and errors."""
        return check.check(job.region, job.template, job.candidate.params, self._target, layout_fits=fits)

    def errors(self, job: EvaluationJob) -> tuple[Finding, ...]:
        """Return the findings for which a job is rejected; empty when it may be built."""
        return check.errors(self.findings(job))

    def traits(self, task: TuneTask, candidate: Candidate) -> Traits:
        """Return what breaks ties between candidates: the count of static warnings, and bytes of workspace."""
        job = self.job(task, candidate)
        return Traits(
            risks=sum(finding.severity == "warning" for finding in self.findings(job)),
            workspace_bytes=sum(ITEM_BYTES[dtype] * count for _, dtype, count, _ in job.source.workspaces),
        )
