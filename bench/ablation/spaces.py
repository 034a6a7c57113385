"""Recorded tuning spaces: every point with its time or its failure, so that a search can run without the device.

In: a cache of Kernel Tuner (.json or .json.gz), or a T4 results document (schema 1.0.0), of anybody or of `agentcompile
export`. Out: `RecordedSpace`. A file is read as it is or refused with what is wrong; nothing is repaired.

Values of parameters are integers or texts here. JSON's true and false become 1 and 0, a float without a fraction
becomes its integer, and any other float its shortest text (``0.5``); two points that are equal afterwards are
duplicates. A parameter that has one value at all points of its template cannot be searched and is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Question
from agentcompile.ir.cleaning import clean
from agentcompile.ir.digest import Json, digest, digest_bytes
from agentcompile.ir.region import Regime
from agentcompile.ir.template import Candidate, Params, ParamValue
from agentcompile.system.plain_files import NotPlainError, read_plain

from .documents import Failure, Fault, Point, points_of, unpacked
from .questions import beside, read_question

MOST_BYTES = 256 << 20
"""The most bytes of a file, unless the caller sets another limit."""
NEAR, NEARER = 5.0, 2.0
"""How much slower than the best, in percent, a point may be to count as near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A parameter of a template, with every value that occurs: in declared order if there is one, else sorted."""

    template: str
    name: str
    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpace:
    """A space of which every point was measured or failed."""

    name: str
    """The file's name without its suffixes."""
    device: str
    """The device's name in the file; empty where the file has none."""
    digest: str
    """The identity of the file's content, unpacked."""
    domains: tuple[Domain, ...]
    candidates: tuple[Candidate, ...]
    """All points, in the order of the file."""
    outcomes: Mapping[str, float | Failure] = field(repr=False)
    """The time in ns, or the failure, of every candidate, by id."""
    question: Question | None = field(default=None, repr=False)
    """What an adviser is asked about it; None for a space of others."""
    half_widths: Mapping[str, float] = field(default_factory=dict[str, float], repr=False)
    """Half the width of the 95 % interval of each candidate's log speed-up, by id; empty for a space of others."""
    baseline_ns: float = 0.0
    """PyTorch's time in ns, the median beside all points; 0 for a space of others."""

    @property
    def times_ns(self) -> dict[str, float]:
        """The time in ns of every candidate that ran, by id."""
        return {id: outcome for id, outcome in self.outcomes.items() if not isinstance(outcome, Failure)}

    @property
    def compared_ns(self) -> float:
        """The time in ns that speed-ups are over: PyTorch's where it is known, else the median of all that ran."""
        return self.baseline_ns or statistics.median(self.times_ns.values() or [1.0])

    @property
    def best_ns(self) -> float | None:
        """The least time in ns; None when every point failed."""
        return min(self.times_ns.values(), default=None)

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate, the first of equals; None when every point failed."""
        times = self.times_ns
        ran = [candidate for candidate in self.candidates if candidate.id in times]
        return min(ran, key=lambda candidate: times[candidate.id], default=None)

    def within(self, percent: float) -> frozenset[str]:
        """Return the ids of all candidates at most `percent` slower than the best; none when every point failed."""
        times = self.times_ns
        limit = min(times.values(), default=0.0) * (1 + percent / 100)
        return frozenset(id for id, ns in times.items() if ns <= limit)

    @property
    def near(self) -> frozenset[str]:
        """The ids of the candidates within 5 % of the best."""
        return self.within(NEAR)

    @property
    def nearer(self) -> frozenset[str]:
        """The ids of the candidates within 2 % of the best."""
        return self.within(NEARER)


def read_space(path: Path, most_bytes: int = MOST_BYTES) -> RecordedSpace:
    """Read a recorded space of at most `most_bytes`, packed or not.

    Raises:
        AgentCompileError: the file is missing, cut short, too large, not JSON, of another schema, or contradicts itself
            (usage). A space of which every point failed is read.
    """
    try:
        data = unpacked(_content(path, most_bytes), most_bytes)
        device, points = points_of(data)
    except Fault as fault:
        raise AgentCompileError(f"{path}: {clean(fault.text, 300)}", hint=fault.hint) from fault
    name = path.name.removesuffix(".gz").removesuffix(".json")
    space, question = space_of(name, device, points, digest_bytes("recorded-space/1", data)), beside(path)
    return asked_about(space, points, read_question(question).question, path) if question.is_file() else space


def space_of(name: str, device: str, points: Sequence[Point], content: str) -> RecordedSpace:
    """Return the space of `points`, whose settings differ within a template; `content` is their digest."""
    domains = tuple(one for one in _domains(points) if len(one.values) > 1)
    searched = {(one.template, one.name) for one in domains}
    templates = {
        template: digest("recorded-template/1", template, _told(one for one in domains if one.template == template))
        for template in dict.fromkeys(point.template for point in points)
    }
    regime, found = Regime(phase="decode"), dict[str, float | Failure]()
    candidates = list[Candidate]()
    for point in points:
        params = tuple(pair for pair in point.settings if (point.template, pair[0]) in searched)
        candidate = Candidate(
            region=name, regime=regime, template=point.template, template_digest=templates[point.template],
            params=params, target=device,
        )  # fmt: skip
        candidates.append(candidate)
        found[candidate.id] = point.outcome
    return RecordedSpace(
        name=name, device=device, digest=content, domains=domains, candidates=tuple(candidates), outcomes=found
    )


def asked_about(space: RecordedSpace, points: Sequence[Point], question: Question, path: Path) -> RecordedSpace:
    """Return a space of ours with the question about it, whose candidates it then has.

    Raises:
        AgentCompileError: the file at `path` and the question have different candidates (usage).
    """
    found = {_point(point.template, point.settings): point for point in points}
    missing = [one.label for one in question.candidates if _point(one.template, one.params) not in found]
    if missing or len(found) > len(question.candidates):
        text = f"{missing[0]} is missing" if missing else f"{len(found)} points, not {len(question.candidates)}"
        hint = "copy both files again; they were written together"
        raise AgentCompileError(f"{path}: not the space that {beside(path).name} asks about: {text}", hint=hint)
    own = {one.id: found[_point(one.template, one.params)] for one in question.candidates}
    baselines = [point.baseline_ns for point in points if point.baseline_ns]
    return replace(
        space,
        candidates=tuple(question.candidates),
        outcomes={id: point.outcome for id, point in own.items()},
        question=question,
        half_widths={id: point.half_width for id, point in own.items()},
        baseline_ns=statistics.median(baselines) if baselines else 0.0,
    )


def _point(template: str, params: Params) -> tuple[str, frozenset[tuple[str, ParamValue]]]:
    """Return a point without the order of its parameters, which a document may sort."""
    return template, frozenset(params)


def _domains(points: Sequence[Point]) -> Iterable[Domain]:
    """Yield every parameter of every template with the values that occur, in their rank."""
    seen: dict[tuple[str, str], dict[ParamValue, int | None]] = {}
    for point in points:
        for (name, value), rank in zip(point.settings, point.ranks, strict=True):
            seen.setdefault((point.template, name), {}).setdefault(value, rank)
    for (template, name), ranks in seen.items():
        # Without a declared order: numbers by size, then texts by alphabet.
        order = sorted(ranks, key=lambda value: (ranks[value] or 0, isinstance(value, str), value))
        yield Domain(template=template, name=name, values=tuple(order))


def _told(domains: Iterable[Domain]) -> Json:
    return [[one.name, list(one.values)] for one in domains]


def _content(path: Path, most_bytes: int) -> bytes:
    try:
        return read_plain(path, most_bytes)
    except NotPlainError as error:
        raise Fault(str(error), "name a file of a recorded space") from error
    except FileNotFoundError as error:
        raise Fault("there is no such file", "check the path") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Fault(f"cannot be read: {why}", "check the path and its permissions") from error
