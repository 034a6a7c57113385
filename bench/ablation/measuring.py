"""Every candidate of a region built, validated and timed, in passes that can be stopped and continued.

Candidates are timed in batches, in a random order, so that a slow drift of the machine does not follow a parameter.
Every batch also times one fixed candidate, the anchor: a candidate's time is its ratio to the anchor in its own batch
times the anchor's median over all batches. The least of hundreds of noisy times is too low by chance, so candidates
near the best are timed again, with more rounds, and their last time counts; that repeats until every candidate near the
best of these has been timed again.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.jobs import Baseline, Evaluator, Prepared
from agentcompile.interchange.trials import ExportedTrial
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Disturbed, Measured, Rejected, Trial, Verdict
from agentcompile.measure import POLICY, Timing, usual_ns, verdict_of
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.trial_database import trial_of

from ..harness.ledger import Ledger

BATCH = 24
"""The candidates that are timed side by side, beside PyTorch and the anchor."""
BUILT = 96
"""The candidates that are built between two lines of progress."""
AGAIN_WITHIN = 1.15
"""Candidates at most this many times as slow as the best are timed again; the best is then that of the later times."""
AGAIN_ROUNDS = 4
"""How many times the rounds of the first pass these get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What became of one candidate in one pass."""

    trial: Trial
    at_ms: int
    """When it was recorded, in Unix milliseconds."""
    ns: float = 0.0
    """Its time in its batch; 0 when it has none."""
    anchor_ns: float = 0.0
    """The anchor's time in the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The recorded space of a region, in the space's order, and the anchor's median time in ns."""

    tried: tuple[ExportedTrial, ...]
    anchor: str
    anchor_ns: float
    again: int
    """The candidates that were timed a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Evaluates the candidates of one task; `ledger` keeps what is known, and `over` says when time is up.

    What was found correct in one pass is not validated again in the next; `ready` may be shared by two recordings.
    """

    task: TuneTask
    evaluator: Evaluator
    jobs: JobMaker
    ledger: Ledger
    say: Callable[[str], None]
    over: Callable[[], bool]
    seed: int = 0
    clock: Callable[[], float] = time.time
    ready: dict[str, Prepared] = field(default_factory=dict[str, Prepared])
    """The candidates that are built and correct, by id."""

    def record(self) -> Whole | None:
        """Return the whole space; None when time was up before, and the ledger has the part that is done.

        Raises:
            AgentCompileError: the machine fails (environment).
        """
        candidates = list(self.task.space)
        random.Random(f"record {self.task.region.id} {self.seed}").shuffle(candidates)
        anchor = self._anchor()
        if anchor is None:
            return None
        self.build(candidates)
        first = self._pass("first", candidates, anchor, POLICY.search_rounds)
        if len(first) < len(candidates):
            return None
        again = dict[str, Record]()
        while near := self._near(candidates, first, again):
            made = self._pass("again", near, anchor, AGAIN_ROUNDS * POLICY.search_rounds)
            again |= made
            if len(made) < len(near):
                return None
        return self._whole(first, again, anchor)

    def _anchor(self) -> Prepared | None:
        """Return the first advised candidate that is correct; None where none is."""
        for candidate in self.task.advice.sorted(tuple(self.task.space)):
            job = self.jobs.job(self.task, candidate)
            if not self.jobs.errors(job):
                for _, result in self.evaluator.prepare([job]):
                    if isinstance(result, Prepared):
                        return result
        return None

    def build(self, candidates: Sequence[Candidate]) -> None:
        """Build what is missing, on all cores: between two timings most of them would be idle."""
        missing = [one for one in candidates if one.id not in self.ready and self._known("first", one) is None]
        jobs = [self.jobs.job(self.task, one) for one in missing]
        jobs = [job for job in jobs if not self.jobs.errors(job)]
        for begin in range(0, len(jobs), BUILT):
            if self.over():
                return
            there = sum(1 for _ in self.evaluator.build(jobs[begin : begin + BUILT]))
            part = len(jobs[begin : begin + BUILT])
            self.say(f"{self.task.region.name}: built {there} of {part}, {begin + part} of {len(jobs)} done")

    def _pass(self, name: str, candidates: Sequence[Candidate], anchor: Prepared, rounds: int) -> dict[str, Record]:
        """Return what became of the candidates, by id, as far as time allowed."""
        found = {one.id: self._known(name, one) for one in candidates}
        missing = [one for one in candidates if found[one.id] is None]
        for batch in _batches(missing):
            if self.over():
                break
            for record in self._batch(batch, anchor, rounds):
                if isinstance(record.trial.verdict, Disturbed):
                    continue  # the machine's fault: the next run tries it again
                id = record.trial.candidate.id
                found[id] = record
                self.ledger.keep(f"{name} {id}", {"record": encode(record)})
            done = {id: one for id, one in found.items() if one is not None}
            fastest = min((one.ns / one.anchor_ns for one in done.values() if one.ns), default=1.0)
            self.say(f"{self.task.region.name}: {name} pass: {len(done)} of {len(found)}, best {fastest:.3f} × anchor")
        return {id: one for id, one in found.items() if one is not None}

    def _known(self, name: str, candidate: Candidate) -> Record | None:
        told = self.ledger.known(f"{name} {candidate.id}")
        return None if told is None else decode(Record, told["record"])

    def _batch(self, batch: Sequence[Candidate], anchor: Prepared, rounds: int) -> Iterator[Record]:
        """Yield a record for every candidate of a batch."""
        waiting, ready = [], list[Prepared]()
        for candidate in batch:
            if candidate.id in self.ready:
                ready.append(self.ready[candidate.id])
                continue
            job = self.jobs.job(self.task, candidate)
            if errors := self.jobs.errors(job):
                yield self._failed(trial_of(job, Rejected(findings=errors), "search"))
            else:
                waiting.append(job)
        for job, result in self.evaluator.prepare(waiting):
            if isinstance(result, Prepared):
                ready.append(result)
                self.ready[job.candidate.id] = result
            else:
                yield self._failed(trial_of(job, result, "search"))
        if ready:
            yield from self._timed(ready, anchor, rounds)

    def _timed(self, ready: Sequence[Prepared], anchor: Prepared, rounds: int) -> Iterator[Record]:
        region = self.task.region
        timing = self.evaluator.time(
            region,
            [Baseline(), anchor, *ready],
            rounds=rounds,
            residency=self.task.residency,
            seed=self.seed,
            processes=1,
        )
        if not isinstance(timing, Timing):
            for one in ready:
                yield self._failed(trial_of(one.job, timing, "search"))
            return
        failed: Mapping[int, Verdict] = dict(timing.failed)
        if 1 in failed:
            text = f"{region.name}: {anchor.job.candidate.label}, which was correct, failed beside others: {failed[1]}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="the same command goes on from here")
        for arm, one in enumerate(ready, 2):
            if arm in failed:
                yield self._failed(trial_of(one.job, failed[arm], "search"))
                continue
            # No floor: a recorded space says what was measured, also where that looks too fast.
            verdict = verdict_of(
                timing, arm, region.cost.bytes, 0.0, one.report, POLICY.search_claim, len(ready), rounds
            )
            yield Record(
                trial=trial_of(one.job, verdict, "search"),
                at_ms=round(self.clock() * 1000),
                ns=usual_ns(timing, arm),
                anchor_ns=usual_ns(timing, 1),
            )

    def _failed(self, trial: Trial) -> Record:
        return Record(trial=trial, at_ms=round(self.clock() * 1000))

    def _near(
        self, candidates: Sequence[Candidate], first: Mapping[str, Record], again: Mapping[str, Record]
    ) -> list[Candidate]:
        """Return what is near the best and was timed once; the best of what was timed again, where that is any."""
        ratios, sure = _ratios(first), _ratios(again)
        limit = AGAIN_WITHIN * min((sure or ratios).values(), default=0.0)
        return [one for one in candidates if one.id not in again and ratios.get(one.id, limit + 1) <= limit]

    def _whole(self, first: Mapping[str, Record], again: Mapping[str, Record], anchor: Prepared) -> Whole:
        records = {**first, **again}
        anchor_ns = statistics.median([one.anchor_ns for one in (*first.values(), *again.values()) if one.ns] or [0.0])
        return Whole(
            tried=tuple(_tried(records[candidate.id], anchor_ns) for candidate in self.task.space),
            anchor=anchor.job.candidate.label,
            anchor_ns=anchor_ns,
            again=len(again),
        )


def _ratios(records: Mapping[str, Record]) -> dict[str, float]:
    """Return the times of candidates over the anchor's, by id; what has no time is left out."""
    return {id: one.ns / one.anchor_ns for id, one in records.items() if one.ns}


def _batches(items: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    for begin in range(0, len(items), BATCH):
        yield items[begin : begin + BATCH]


def _tried(record: Record, anchor_ns: float) -> ExportedTrial:
    """Return a record's trial with its time as a ratio to the anchor, times the anchor's median."""
    trial = record.trial
    if record.ns and isinstance(trial.verdict, Measured):
        scale = anchor_ns / record.anchor_ns
        found = trial.verdict.measurement
        measurement = replace(
            found,
            median_ns=max(round(record.ns * scale), 1),
            p95_ns=max(round(found.p95_ns * scale), 1),
            baseline_ns=max(round(found.baseline_ns * scale), 1),
        )
        trial = replace(trial, verdict=replace(trial.verdict, measurement=measurement))
    return ExportedTrial(trial=trial, at_ms=record.at_ms)
