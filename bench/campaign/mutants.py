"""Mutants: kernels with one mechanical fault each, at real shapes, through the gates that evaluate every candidate.

On a CPU the C++ templates are mutated; CUDA ones are mutated too, compiled and compared, and validated where there is a
GPU. A mutation that does not compile, or whose machine code is that of the original or of another mutant, is no mutant.
A mutant is killed by validation at search or acceptance depth, by a crash or by a time limit. One that survives fails
the campaign unless `equivalent.py` says why it is no fault, or a build with checked indices shows that it exceeds a
local array, which is undefined.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.machine import Machine, this_machine
from agentcompile.ir.target import Target
from agentcompile.ir.template import Depth, Language
from agentcompile.options import resolve
from agentcompile.tuning.trial_database import evaluation_digest

from ..harness.ledger import Ledger
from .drawing import Building, Mutant, draw
from .equivalent import reason
from .gates import Gates, Outcome
from .probing import behind_walls, entered, trapped
from .report import Campaign, Figures, Report, Say
from .subjects import Subject, chosen, regions, shipped, subjects

DEFAULT = 400
_TOGETHER = 12
"""The number of mutants that are evaluated together."""
_GUARDED = (
    "-fsanitize=bounds,object-size",
    "-fsanitize-undefined-trap-on-error",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=3",
)
"""Flags of a build with checked indices and copies, for g++ and clang++.

The shipped kernels pass in it: local arrays have known lengths there, and buffers do not.
"""
_OTHER_GPU = Target(
    kind="cuda", device="none", arch="sm_90a", isa=(), threads=132, cache_bytes=(228 << 10, 50 << 20), line_bytes=128
)
"""The target that CUDA mutants are compiled for where there is no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The result for one mutant."""

    code: str
    """The digest of its machine code; no two mutants have the same."""
    region: str
    subject: str
    mutator: str
    file: str
    line: int
    before: str
    after: str
    fate: Literal["killed", "survived", "equivalent", "compiled"]
    stage: str
    """What killed it: ``search``, ``accept``, ``crash`` or ``timeout``."""
    why: str
    """The first failed check, or why the mutant is equivalent."""
    unreached: bool = False
    """Whether, for a survivor, the original with a trap before the mutated statement passed every acceptance input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of one share."""

    fates: tuple[Fate, ...]
    faults: tuple[str, ...]
    """What is wrong with the evaluation of unmutated kernels, a line each."""
    originals: dict[str, int]
    """Counts of the unmutated kernels that were evaluated and that passed."""
    drawn: dict[str, int]
    """Counts of the mutations that gave no mutant, by reason."""
    cuda: dict[str, int]
    """The same counts for CUDA where no GPU validates the mutants, and how many mutants were compiled."""
    missing: str = ""
    """Why no CUDA mutants could be compiled; empty if they could."""


def find(campaign: Campaign, say: Say) -> Findings:
    """Draw and evaluate the mutants of one share, which are those of some of the subjects."""
    machine = this_machine(resolve({"threads": campaign.threads or None}).options)
    language: Language = "cuda" if machine.target.kind == "cuda" else "cpp"
    with tempfile.TemporaryDirectory() as folder:
        made = _subjects(machine.target, language, campaign, Path(folder))
        with Gates(machine, seed=campaign.seed) as gates:
            found = attack(made, gates, machine, campaign, say)
        if language == "cuda":
            return found
        return _with_cuda(found, campaign, machine, Path(folder), say)


def _subjects(target: Target, language: Language, campaign: Campaign, folder: Path) -> dict[str, list[Subject]]:
    rng = random.Random(f"subjects {campaign.seed}")
    return sliced(
        chosen(subjects(regions(target, folder), shipped(), target, (language,), rng), campaign.only), campaign
    )


def sliced(made: Mapping[str, Sequence[Subject]], campaign: Campaign) -> dict[str, list[Subject]]:
    """Return the share's subjects; those with equal sources go to one share, so that no other has a mutant of them."""
    order = {digest: at for at, digest in enumerate(dict.fromkeys(s.source.digest for ss in made.values() for s in ss))}
    kept = {
        kind: [s for s in these if order[s.source.digest] % campaign.shares == campaign.share]
        for kind, these in made.items()
    }
    return {kind: these for kind, these in kept.items() if these}


def attack(
    made: Mapping[str, Sequence[Subject]], gates: Gates, machine: Machine, campaign: Campaign, say: Say
) -> Findings:
    """Draw and evaluate the share's mutants of the subjects in `made`, with `gates`.

    Results that the ledger has from an earlier run under the same rules are reused.
    """
    fates, drawn = list[Fate](), Counter[str]()
    court = _Court(gates, Ledger(campaign.partial, (evaluation_digest(), campaign.seed)))
    mutants = draw(made, Building(machine), campaign.seed, drawn)
    while len(fates) < campaign.quota and not campaign.over:
        group = list(itertools.islice(mutants, min(_TOGETHER, campaign.quota - len(fates))))
        if not group:
            break
        found = court.fates(group)
        fates += found
        for fate in found:
            if fate.fate == "survived":
                say(_line(fate))
        counts = ", ".join(f"{count} {fate}" for fate, count in Counter(f.fate for f in fates).items())
        say(f"{len(fates)} of {campaign.quota}: {counts}; {dict(drawn)}")
    return Findings(fates=tuple(fates), faults=tuple(court.faults), originals=court.figures, drawn=dict(drawn), cuda={})


class _Court:
    """The gates, with their results so far, and the control: no unmutated kernel may be rejected.

    That holds at either depth, where a mutant of the kernel is killed.
    """

    def __init__(self, gates: Gates, ledger: Ledger) -> None:
        self._gates, self._ledger = gates, ledger
        self._found: dict[tuple[str, Depth], Outcome] = {}
        self._springs: dict[str, bool] = {}

    def fates(self, group: Sequence[Mutant]) -> list[Fate]:
        """Evaluate mutants, but for those of kernels that are rejected themselves."""
        group = [m for m in group if not self._refuses(m.subject, "search")]
        outcomes = self._outcomes([replace(m.subject, source=m.source) for m in group])
        late = {m.subject.name for m in group if outcomes[m.source.digest].late}
        group = [m for m in group if m.subject.name not in late or not self._refuses(m.subject, "accept")]
        alive = [m for m in group if outcomes[m.source.digest].alive]
        traps = {m.source.digest: trap for m in alive if self._trapping(m.subject) and (trap := _trap(m))}
        sprung = self._outcomes(list({trap.source.digest: trap for trap in traps.values()}.values()))
        unreached = {digest for digest, trap in traps.items() if sprung[trap.source.digest].alive}
        guards = {m.source.digest: _guarded(m) for m in alive if m.source.language == "cpp"}
        stopped = self._outcomes(list(guards.values()))
        undefined = {digest for digest, guard in guards.items() if stopped[guard.source.digest].stage == "crash"}
        return [
            _fate(m, outcomes[m.source.digest], m.source.digest in unreached, m.source.digest in undefined)
            for m in group
        ]

    def _outcomes(self, accused: Sequence[Subject], deepest: Depth = "accept") -> dict[str, Outcome]:
        """Return the outcome of each source by its digest, from the ledger where it is known."""
        told = {one.source.digest: self._ledger.known(f"{one.source.digest} {deepest}") for one in accused}
        unknown = [one for one in accused if told[one.source.digest] is None]
        for one, outcome in self._gates.evaluate(unknown, deepest=deepest):
            told[one.source.digest] = asdict(outcome)
            self._ledger.keep(f"{one.source.digest} {deepest}", asdict(outcome))
        return {digest: Outcome(**row) for digest, row in told.items() if row is not None}

    def _refuses(self, subject: Subject, depth: Depth) -> bool:
        key = (subject.name, depth)
        if key not in self._found:
            self._found[key] = self._outcomes([subject], depth)[subject.source.digest]
        return not self._found[key].alive

    def _trapping(self, subject: Subject) -> bool:
        """Return whether a trap at the kernel's entry is noticed; if not, an unnoticed trap elsewhere means nothing."""
        if subject.name not in self._springs:
            text = entered(subject.source.text, cuda=subject.template.language == "cuda")
            source = replace(subject.source, text=text)
            told = self._outcomes([replace(subject, source=source)], "search")[source.digest]
            self._springs[subject.name] = not told.alive
        return self._springs[subject.name]

    @property
    def faults(self) -> list[str]:
        """A line for every unmutated kernel that is rejected, and for every trap at an entry that is not noticed."""
        rows = [(name, told) for (name, _), told in self._found.items() if not told.alive]
        blind = [name for name, sprung in self._springs.items() if not sprung]
        return [
            *(f"{name}: the unmutated kernel is refused: {told.stage}: {told.why}" for name, told in rows),
            *(f"{name}: a kernel that traps where it begins is accepted" for name in blind),
        ]

    @property
    def figures(self) -> dict[str, int]:
        """The counts of unmutated kernels that were evaluated, passed at search depth, and were accepted."""
        alive = Counter(depth for (_, depth), told in self._found.items() if told.alive)
        return {
            "originals": len({name for name, _ in self._found}),
            "passed": alive["search"],
            "accepted": alive["accept"],
        }


def _trap(mutant: Mutant) -> Subject | None:
    source, language = mutant.subject.source, mutant.subject.template.language
    text = trapped(source.text, mutant.mutation.start, cuda=language == "cuda")
    return replace(mutant.subject, source=replace(source, text=text)) if text else None


def _guarded(mutant: Mutant) -> Subject:
    """Return a mutant in C++ so that an index beyond an array of known length traps."""
    source, text = mutant.source, behind_walls(mutant.source.text)
    return replace(mutant.subject, source=replace(source, text=text, flags=(*source.flags, *_GUARDED)))


def _fate(mutant: Mutant, outcome: Outcome, unreached: bool, undefined: bool) -> Fate:
    subject, text = mutant.subject, mutant.subject.source.text
    where, behind = mutant.mutation.describe(text), mutant.mutation.behind(text)
    same = outcome.alive and reason(
        where["mutator"], subject.region, where["file"], where["before"], where["after"],
        threads=subject.target.threads, params=subject.numbers, kernel=subject.template.id,
        behind=behind, unreached=unreached, undefined=undefined,
    )  # fmt: skip
    return Fate(
        code=mutant.code, region=subject.region.kind, subject=subject.name, **where,
        fate="equivalent" if same else "survived" if outcome.alive else "killed",
        stage=outcome.stage, why=same or outcome.why, unreached=unreached,
    )  # fmt: skip


def _line(fate: Fate) -> str:
    where = f"{fate.file}:{fate.line}{', which nothing reaches' if fate.unreached else ''}"
    return f"survived: {fate.subject}: {where}: {fate.mutator}: {fate.before}  ⇒  {fate.after}"


def report(found: Sequence[Findings]) -> Report:
    """Merge the results of all shares into one report; a mutant found by several shares counts once."""
    every = [fate for one in found for fate in one.fates]
    fates = list({fate.code: fate for fate in reversed(every)}.values())[::-1]
    drawn, cuda, originals = Counter[str](), Counter[str](), Counter[str]()
    for one in found:
        for total, counts in ((drawn, one.drawn), (cuda, one.cuda), (originals, one.originals)):
            total.update(counts)
    if len(every) > len(fates):
        drawn["the same machine code"] += len(every) - len(fates)
    survivors = [f for f in fates if f.fate == "survived"]
    lines = [_line(fate) for fate in survivors]
    killed = Counter(f.stage for f in fates if f.fate == "killed")
    figures: Figures = {
        **originals,
        "mutants": len(fates),
        **{f"killed at {stage}": count for stage, count in sorted(killed.items())},
        "survived": len(survivors),
        "equivalent": sum(f.fate == "equivalent" for f in fates),
        **{f"drawn and {what}": count for what, count in sorted(drawn.items())},
        "score": score(fates),
    }
    for kind in sorted({f.region for f in fates}):
        mine = [f for f in fates if f.region == kind]
        figures[f"score of {kind}"] = f"{score(mine)} of {len(mine)}"
    for mutator in sorted({f.mutator for f in fates}):
        figures[f"score of mutator {mutator}"] = score([f for f in fates if f.mutator == mutator])
    missing = next((one.missing for one in found if one.missing), "")
    return Report(
        kind="mutants",
        tried=len(fates),
        failures=(*(fault for one in found for fault in one.faults), *lines),
        figures={**figures, **dict(sorted(cuda.items())), **({"cuda": missing} if missing else {})},
        details=tuple(asdict(f) for f in fates if f.fate != "killed"),
    )


def score(fates: Sequence[Fate]) -> str:
    """Return the killed mutants as a percentage of those that are not equivalent; "none" when there are none."""
    faults = [f for f in fates if f.fate != "equivalent"]
    return f"{100 * sum(f.fate == 'killed' for f in faults) / len(faults):.1f} %" if faults else "none"


def _with_cuda(found: Findings, campaign: Campaign, machine: Machine, folder: Path, say: Say) -> Findings:
    """Add to the result how many distinct CUDA mutants were made and compiled here, where no GPU validates them."""
    drawn, wanted, count = Counter[str](), campaign.quota // 4, 0
    try:
        made = _subjects(_OTHER_GPU, "cuda", campaign, folder)
        for _ in draw(made, Building(machine), campaign.seed, drawn):
            count += 1
            if count >= wanted or campaign.over:
                break
            if count % _TOGETHER == 0:
                say(f"CUDA: {count} of {wanted} compiled; {dict(drawn)}")
    except AgentCompileError as error:  # NVRTC is not installed
        return replace(found, missing=error.message)
    told = {f"cuda, drawn and {what}": count for what, count in drawn.items()}
    return replace(found, cuda={"cuda mutants compiled, none validated": count, **told})
