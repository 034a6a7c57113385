"""The evaluation of arbitrary sources by the real gates: static check, build, and the correctness suite in workers.

In: subjects with sources that may be anything. Out: an outcome each. A source that passes at search depth is validated
again at acceptance depth, as a finalist is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from agentcompile.build import Binary, compile
from agentcompile.check import check, errors
from agentcompile.evaluation.evaluator import ACCEPT_REPEATS, WorkerEvaluator
from agentcompile.evaluation.jobs import EvaluationJob, Prepared
from agentcompile.evaluation.machine import Machine
from agentcompile.evaluation.work import validation
from agentcompile.ir.template import Depth
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, TimedOut, Verdict
from agentcompile.ops.layouts import fits
from agentcompile.system.probe import cpus_at_once
from agentcompile.system.store import Store
from agentcompile.worker import protocol as p
from agentcompile.worker.pool import Limits, WorkerPool, said
from agentcompile.worker.process import Expired, Lost

from .subjects import Subject

_LIMITS = Limits(validate_s=120.0)
_QUICK = Limits(validate_s=20.0)
"""The limits at search depth: a mutant that hangs occupies every core that long. The originals pass within them."""
_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one source: whether it passed, else the gate that stopped it and the first failed check."""

    alive: bool
    stage: str = ""
    why: str = ""
    late: bool = False
    """Whether it was stopped at acceptance depth."""


class Gates(AbstractContextManager["Gates"]):
    """The gates of this machine, or `evaluator` in place of its evaluators. Used as a context manager."""

    def __init__(self, machine: Machine, *, seed: int, evaluator: WorkerEvaluator | None = None) -> None:
        def made(limits: Limits) -> WorkerEvaluator:  # it starts no process yet
            return WorkerEvaluator(
                machine.target, store=machine.store.root, toolchain=machine.toolchain, device=machine.device,
                limits=limits, seed=seed,
            )  # fmt: skip

        self._evaluators: dict[Depth, WorkerEvaluator] = {
            "search": evaluator or made(_QUICK),
            "accept": evaluator or made(_LIMITS),
        }

    def __exit__(self, *_: object) -> None:
        for evaluator in self._evaluators.values():
            evaluator.close()

    def evaluate(self, accused: Sequence[Subject], *, deepest: Depth = "accept") -> Iterator[tuple[Subject, Outcome]]:
        """Evaluate each source at search depth and, where it passes and `deepest` allows, at acceptance depth.

        Yields one outcome for each source, in any order.
        """
        passed = list[Subject]()
        for one, outcome in self._at("search", accused):
            if outcome.alive and deepest == "accept":
                passed.append(one)
            else:
                yield one, outcome
        yield from self._at("accept", passed)

    def _at(self, depth: Depth, accused: Sequence[Subject]) -> Iterator[tuple[Subject, Outcome]]:
        by_digest, jobs = {one.source.digest: one for one in accused}, list[EvaluationJob]()
        for one in accused:
            template = replace(one.template, source=one.source.text, includes=())
            found = errors(check(one.region, template, one.candidate.params, one.target, layout_fits=fits))
            if found and found[0].text:
                yield one, Outcome(alive=False, stage="check", why=found[0].text)
            else:
                jobs.append(one.job)
        for job, result in self._evaluators[depth].prepare(jobs, depth=depth) if jobs else ():
            yield by_digest[job.source.digest], _outcome(depth, result)


def _outcome(depth: Depth, result: Prepared | Verdict) -> Outcome:
    late = depth == "accept"
    match result:
        case Prepared():
            return Outcome(alive=True)
        case BuildFailed():
            return Outcome(alive=False, stage="build", why=result.log.partition("\n")[0])
        case Incorrect():
            first = next(check for check in result.report.checks if not check.ok)
            return Outcome(alive=False, stage=depth, why=f"{first.name}: {first.detail}", late=late)
        case Crashed():
            return Outcome(alive=False, stage="crash", why=f"in {depth}: signal {result.signal}"[:200], late=late)
        case TimedOut():
            return Outcome(alive=False, stage="timeout", why=f"in {depth}: {result.limit_s:.0f} s", late=late)
        case _:
            raise AssertionError(f"nobody asked for {result!r}")


class Many(AbstractContextManager["Many"]):
    """Validations of shipped kernels with chosen seeds, in one worker process. Used as a context manager."""

    def __init__(self, machine: Machine) -> None:
        setup = p.Setup(
            target=machine.target, store=str(machine.store.root), toolchain=machine.toolchain, device=machine.device,
            torch_threads=min(machine.target.threads, cpus_at_once()) if machine.target.kind == "cpu" else 1,
            memory_bytes=_MEMORY_BYTES,
        )  # fmt: skip
        self._pool, self._machine = WorkerPool(setup, _LIMITS, 1), machine

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def build(self, subject: Subject) -> Binary | str:
        """Return the subject's kernel from the store, or build it; a text with the reason when the build fails."""
        store, toolchain = Store(self._machine.store.root), self._machine.toolchain
        built = compile(subject.source, store, toolchain=toolchain, limit_s=_LIMITS.build_s)
        return built if isinstance(built, Binary) else f"build: {built}"[:300]

    def refuses(self, subject: Subject, seed: int, depth: Depth) -> str:
        """Return why the subject's own kernel is rejected; empty when it passes."""
        built = self.build(subject)
        if isinstance(built, str):
            return built
        repeats = 16 if depth == "search" else ACCEPT_REPEATS
        request = replace(validation(subject.job, built, depth, seed, repeats), launches=0)
        slot = self._pool.slots[0]
        outcome = self._pool.worker(slot).answer(request, limit_s=_LIMITS.validate(subject.region.cost.bytes))
        if isinstance(outcome, p.SuiteReport) and outcome.report.ok:
            return ""
        slot.clear(disturbed=isinstance(outcome, (Lost, Expired)))
        if isinstance(outcome, p.SuiteReport):
            return f"{depth}: " + "; ".join(f"{c.name}: {c.detail}" for c in outcome.report.checks if not c.ok)
        return f"{depth}: {said(outcome)}"
