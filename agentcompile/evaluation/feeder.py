"""Runs a whole model in a worker of its own; returns its logits, how it failed, or raises what the machine lacks."""

from __future__ import annotations

from pathlib import Path

from agentcompile.evaluation.jobs import Failed
from agentcompile.ir.trial import Crashed, Death
from agentcompile.system.exhausted import lacking, named
from agentcompile.worker import protocol as p
from agentcompile.worker.pool import Limits, WorkerPool, failure, from_outside, shakes
from agentcompile.worker.process import Lost, Outcome


def feed(pool: WorkerPool, limits: Limits, request: p.FeedModel, patience_s: float = 0.0) -> p.Fed | Failed:
    """Run a whole model on sequences in a fresh process.

    It fails when no step, and no part of loading it, ends within `patience_s` seconds (0: a limit from the checkpoint's
    size on a busy machine); the total time is not limited.

    Raises:
        AgentCompileError: memory or disk runs out, the process is killed from outside twice, or a canary fails too
            (environment).
    """  # noqa: DOC501
    pool.rest()
    nbytes = sum(file.stat().st_size for file in Path(request.checkpoint).iterdir() if file.is_file())
    outcome, at = _tried(pool, request, patience_s or limits.measure(nbytes))
    if from_outside(outcome):  # when memory runs out, the system may kill any process
        outcome, at = _tried(pool, request, patience_s or limits.measure(nbytes))
    if isinstance(outcome, p.Fed):
        return outcome
    what = f"checking {request.info.name} as a whole"
    if isinstance(outcome, p.Lacking):
        raise lacking(what, outcome.resource, outcome.detail)
    if isinstance(outcome, Lost) and from_outside(outcome):
        raise lacking(what, "host", f"its process was ended twice from outside: {outcome.detail}")
    if isinstance(outcome, Lost) and (resource := named(outcome.detail)) is not None:
        raise lacking(what, resource, outcome.detail)
    if isinstance(outcome, p.WorkerFault) and outcome.environment:  # the kernels', unless a canary fails too
        pool.worker(pool.clock)
        return Failed(at=at, verdict=Crashed(stage="admit", signal=0, detail=outcome.error))
    verdict = failure(outcome, "admit")
    assert isinstance(verdict, Death), verdict
    return Failed(at=at, verdict=verdict)


def _tried(pool: WorkerPool, request: p.FeedModel, patience_s: float) -> tuple[Outcome, int]:
    pool.clock.clear(disturbed=True)  # a canary loads PyTorch and the device before the first part's time begins
    worker = pool.worker(pool.clock)
    outcome = worker.answer(request, limit_s=patience_s)
    at = worker.blamed
    pool.clock.clear(disturbed=shakes(outcome))
    return outcome, at
