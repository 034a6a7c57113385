"""Trials that need not be made again: those of this run and those of the measurement database.

Also the keys under which the store notes results that are expensive to find again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from agentcompile import validate
from agentcompile.catalog.aliases import ALIASES, formerly
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.ir.digest import Json, digest, digest_files
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Depth, Template
from agentcompile.ir.trial import Cancelled, Crashed, Disturbed, Impossible, Measured, TimedOut, Trial, Verdict
from agentcompile.materialize import specialise
from agentcompile.measure import POLICY
from agentcompile.space import OutsideError, Space
from agentcompile.system.notes import Notes
from agentcompile.tuning.machine_trials import MachineTrials
from agentcompile.validate.tolerance import POLICY as TOLERANCES


class Renamed:
    """The former names of the candidates of some spaces: under another name, the same text has the same times.

    A template's name is part of a candidate's id and the first line of its program text, so both were different then.
    """

    def __init__(self, spaces: Iterable[Space] = ()) -> None:
        self._spaces = {space.region.id: space for space in spaces}
        templates = {one.digest: one for space in self._spaces.values() for one in space.templates}
        self._pairs: dict[str, tuple[Template, Template, str]] = {}
        """By digest: the template, the same template under its old name, and the digest that the old one has."""
        for now in templates.values():
            if (old := formerly(now)) is not None:
                self._pairs[now.digest] = (now, old, old.digest)

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


class TrialDatabase:
    """The trials of this run, and those of earlier runs on this machine under the measurement policy of this digest.

    Trials of earlier runs are also found under the former names of templates that `renamed` knows.
    """

    def __init__(
        self, trials: Sequence[Trial], history: MachineTrials | None, policy: str, renamed: Renamed | None = None
    ) -> None:
        self._own: dict[tuple[str, str, str], list[Trial]] = {}
        for trial in trials:
            self._own.setdefault((trial.candidate.id, trial.source, trial.fidelity), []).append(trial)
        self._history = history
        self._renamed = renamed or Renamed()
        self._afresh: set[str] = set()
        self._policy = policy

    @property
    def policy(self) -> str:
        """The digest of the measurement policy under which its trials were made."""
        return self._policy

    def forget(self, candidate: str) -> None:
        """Forget all trials of a candidate id: only those that are made from here on count."""
        self._afresh.add(candidate)
        for key in [key for key in self._own if key[0] == candidate]:
            del self._own[key]

    def known(self, candidate: Candidate, source: str, fidelity: str, rounds: int) -> tuple[Trial, bool] | None:
        """Return the shortest known trial of at least `rounds` rounds, and whether this run already reported it.

        None when there is none.
        """
        own = self._own.get((candidate.id, source, fidelity), [])
        enough = [trial for trial in own if trial.rounds >= rounds and not disturbed(trial)]
        if enough:
            return min(enough, key=lambda trial: trial.rounds), True
        if self._history is not None and candidate.id not in self._afresh:
            known = self._history.get(candidate.id, source, self._policy, fidelity, rounds)
            known = known or self._of_before(candidate, source, fidelity, rounds)
            if known is not None and not disturbed(known):
                return known, False
        return None

    def _of_before(self, candidate: Candidate, source: str, fidelity: str, rounds: int) -> Trial | None:
        found = (one for one in self._earlier([candidate]) if (one.source, one.fidelity) == (source, fidelity))
        return next((one for one in found if one.rounds >= rounds), None)

    def _earlier(self, candidates: Iterable[Candidate]) -> list[Trial]:
        then = [old.id for one in candidates if (old := self._renamed.then(one)) is not None]
        found = self._history.about(then, self._policy) if self._history is not None and then else ()
        return [self._renamed.now(one) for one in found]

    def failure(self, candidate: Candidate, source: str) -> Trial | None:
        """Return this run's trial that says why a candidate may not ship; None when nothing is known against it."""
        known = self._own.get((candidate.id, source, "confirm"), [])
        says_nothing = (Measured, Impossible, Disturbed)
        return next((trial for trial in known if not isinstance(trial.verdict, says_nothing)), None)

    def shown_to_adviser(self, space: Sequence[Candidate], source_of: Callable[[Candidate], str]) -> tuple[Trial, ...]:
        """Return the known trials of the points of `space` for an adviser: search trials, then confirming ones.

        These are the trials that a search would reuse: of this run, including its processes before a resume, and of
        earlier runs on this target under this policy, made from the same text (digest `source_of` the candidate).
        Trials that were disturbed or that a person cancelled are left out: they say nothing about the candidate.
        """
        points = {candidate.id: candidate for candidate in space}
        earlier: tuple[Trial, ...] = ()
        if self._history is not None:
            asked = [id for id in points if id not in self._afresh]
            before = [one for one in self._earlier(points[id] for id in asked) if one.candidate.id in points]
            earlier = (*before, *self._history.about(asked, self._policy))
        own = (trial for (candidate, _, _), some in self._own.items() if candidate in points for trial in some)
        known = [
            trial for trial in (*earlier, *own) if not isinstance(trial.verdict, Cancelled) and not disturbed(trial)
        ]
        sources = {id: source_of(points[id]) for id in {trial.candidate.id for trial in known}}
        held = (trial for trial in known if trial.source == sources[trial.candidate.id])
        return tuple(sorted(held, key=lambda trial: trial.fidelity == "confirm"))

    def keep(self, trial: Trial) -> None:
        """Keep a fresh trial for later runs, unless its process died or it was cancelled, cut short or disturbed."""
        if trial.candidate.id in self._afresh:
            self._own.setdefault((trial.candidate.id, trial.source, trial.fidelity), []).append(trial)
        died = isinstance(trial.verdict, (Crashed, TimedOut, Cancelled))
        if self._history is not None and not died and not trial.cut and not disturbed(trial):
            self._history.put(trial, self._policy)


def disturbed(trial: Trial) -> bool:
    """Return whether a trial says nothing about its candidate because the machine was disturbed.

    Its workers were killed from outside, contention took too many rounds, it is inconclusive although its interval is
    clear (the clock did not measure, or processes disagreed), or it was faster than the machine was measured to be.
    """
    if isinstance(trial.verdict, (Disturbed, Impossible)):
        return True
    if not isinstance(trial.verdict, Measured):
        return False
    m = trial.verdict.measurement
    lost = m.dropped > POLICY.max_dropped * (m.rounds + m.dropped)
    clear = abs(m.log_ratio) - m.half_width > math.log1p(POLICY.claim)
    return m.comparison == "INCONCLUSIVE" and (lost or clear)


def trial_of(job: EvaluationJob, verdict: Verdict, fidelity: str) -> Trial:
    """Return the trial of a job with its `verdict`; `fidelity` is ``search`` or ``confirm``."""
    return Trial(
        candidate=job.candidate,
        source=job.source.digest,
        verdict=verdict,
        fidelity="confirm" if fidelity == "confirm" else "search",
    )


def accepted(notes: Notes, job: EvaluationJob, target: Target, depth: Depth = "accept") -> bool:
    """Return whether exactly this kernel passed the correctness suite at `depth` on this target and toolchain.

    It counts only when its manifest claimed then what it claims now. The whole suite counts for a part of it.
    """
    return any(notes.get(key) == _claims(job) for key in _keys(job, target, depth))


def note_accepted(notes: Notes, job: EvaluationJob, target: Target, missing: int = 0, depth: Depth = "accept") -> None:
    """Note that a kernel passed the suite at `depth`, and how many of its launches there was no time for."""
    key = accepted_key(job.source.digest, job.region.id, target.digest, depth)
    if missing:
        notes.renew(missing_key(key), missing)
    else:
        notes.drop(missing_key(key))
    notes.renew(key, _claims(job))


def missing_of(notes: Notes, job: EvaluationJob, target: Target, depth: Depth = "accept") -> int:
    """Return how many launches of the suite there was no time for when a kernel was accepted."""
    return next((found for key in _keys(job, target, depth) if (found := notes.get(missing_key(key)))), 0)


def _keys(job: EvaluationJob, target: Target, depth: Depth) -> tuple[str, ...]:
    """Return the keys of the notes that a kernel passed at `depth`, or passed more than that."""
    depths = dict.fromkeys((depth, "accept"))
    return tuple(accepted_key(job.source.digest, job.region.id, target.digest, one) for one in depths)


def missing_key(accepted: str) -> str:
    """Return the key under which the launches that a kernel was accepted without are noted, by `accepted_key`'s."""
    return digest("missing/1", accepted)


def _claims(job: EvaluationJob) -> int:
    """Return a digest, as a number, of what a manifest claims about correctness and no source contains."""
    own = job.template
    rounds: Json = [list(pair) for pair in own.rounds]
    return int(digest("claims/1", rounds, own.accumulation, own.deterministic)[:12], 16)


def accepted_key(source: str, region: str, target: str, depth: Depth = "accept") -> str:
    """Return the key of the note that a kernel passed, from the digests of its source, region and target."""
    return digest("accepted/5", source, region, target, depth, TOLERANCES, evaluation_digest())


def lengths_key(lock: str, target: str) -> str:
    """Return the key of the note that a lock's prefill kernels passed at every length, from the lock's content hash."""
    return digest("lengths/4", lock, target, TOLERANCES, evaluation_digest())


_DECIDING = (
    "backends", "build", "capture/chunked.py", "checkpoint", "errors.py", "arguments.py", "evaluation", "ir",
    "materialize", "measure", "ops", "runtime", "sandbox", "system", "validate", "worker",
)  # fmt: skip
"""The code that decides whether a kernel is accepted: whole packages, all that an accepting worker loads.

A part of a package would have to be kept in step with what the rest of it imports.
"""


def deciding_files(root: Path) -> tuple[Path, ...]:
    """Return the files under `root`, the directory of `agentcompile`, that decide whether a kernel is accepted."""
    found = (root / name for name in _DECIDING)
    whole = (sorted(one.rglob("*")) if one.is_dir() else [one] for one in found)
    return tuple(file for some in whole for file in some if file.suffix in (".py", ".cpp", ".h", ".cu", ".cuh"))


@functools.cache
def evaluation_digest() -> str:
    """Return the digest of the code that decides about correctness: passes of an older suite do not count."""
    return digest_files("judging/2", deciding_files(Path(validate.__file__).parent.parent))


def fallback_key(region: str, target: str, policy: str) -> str:
    """Return the key of a region's time in PyTorch, from the digests of region, target and policy."""
    return digest("fallback/1", region, target, policy)
