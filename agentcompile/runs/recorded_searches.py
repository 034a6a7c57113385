"""The recorded searches of a study of search strategies, as curves to draw behind the search of a region.

In: a file that `agentcompile ablate --space … --out FILE` wrote. Out: for a region, a curve for each strategy of the
study. Invariant: a curve holds what was recorded and nothing in between, and a file that says anything else is refused
whole. Standard library only.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from agentcompile.errors import AgentCompileError
from agentcompile.ir.codec import CodecError, decode
from agentcompile.ir.digest import Json
from agentcompile.runs.searches import Curve
from agentcompile.system.plain_files import read_plain

KIND = "recorded-spaces"
NEWEST = 1
"""The newest format that is read."""
MOST_BYTES = 1 << 28
MOST = 1000
"""Evaluations of a search that a curve has at most; no region is searched for longer."""
_HINT = "name a file that `agentcompile ablate --space … --out FILE` wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSearch:
    """One search of a recorded space."""

    space: str
    strategy: str
    evaluations: int
    """Distinct candidates that were evaluated, failed ones too."""
    optimum_ns: float
    """The best time of the whole space."""
    steps: tuple[tuple[int, float], ...]
    """(evaluation, counted from 1, at which the best improved; the best time in ns from then on)."""

    def speeds(self, most: int) -> list[float]:
        """Return the optimum's time over the best after each of `most` evaluations: 0 at first, 1 at the optimum."""
        course: list[float] = []
        speed = 0.0
        for at, ns in self.steps:
            course += [speed] * (min(at - 1, most) - len(course))
            speed = self.optimum_ns / ns
        return course + [speed] * (most - len(course))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSearches:
    """The searches of a study."""

    searches: tuple[RecordedSearch, ...]

    @property
    def spaces(self) -> tuple[str, ...]:
        """The names of the recorded spaces, in the order of the file."""
        return tuple(dict.fromkeys(one.space for one in self.searches))

    def spaces_for(self, region: str) -> tuple[str, ...]:
        """Return the spaces that say most of a region ``KIND@ID``: its own, else those of its kind, else all.

        A region's own space has the name that `agentcompile export --format t4` gives its file: ``KIND-ID``; one of
        its kind that `agentcompile bench spaces` recorded is named ``MODEL-KIND-MACHINE``.
        """
        own = region.replace("@", "-").replace("/", "-")
        kind = region.partition("@")[0].replace("/", "-")
        same = tuple(space for space in self.spaces if space == own)
        alike = tuple(
            space
            for space in self.spaces
            if kind in (space, space.rpartition("-")[0]) or space.rpartition("-")[0].endswith(f"-{kind}")
        )
        return same or alike or self.spaces

    def curves(self, spaces: Sequence[str]) -> tuple[Curve, ...]:
        """Return a curve for each strategy, in shares of the optimum's speed.

        It is the geometric mean over `spaces` of the median over seeds, which is 0 until each space has a candidate.
        """
        names = dict.fromkeys(one.strategy for one in self.searches if one.space in spaces)
        return tuple(Curve(name=name, best=self._mean(name, spaces)) for name in names)

    def _mean(self, strategy: str, spaces: Sequence[str]) -> tuple[float, ...]:
        own = [one for one in self.searches if one.strategy == strategy and one.space in spaces]
        most = min(max(one.evaluations for one in own), MOST)
        medians: list[list[float]] = []
        for space in dict.fromkeys(one.space for one in own):
            courses = [one.speeds(most) for one in own if one.space == space]
            medians.append([statistics.median(values) for values in zip(*courses, strict=True)])
        return tuple(_geometric(values) for values in zip(*medians, strict=True))


def read_recorded(path: Path) -> RecordedSearches:
    """Read the searches of a study of recorded spaces; one that was stopped has those that were finished.

    Raises:
        AgentCompileError: the file cannot be read, is cut short, is of another kind or a newer format, has no search,
            or one that contradicts itself; the message says where (usage).
    """
    try:
        found: Json = json.loads(read_plain(path, MOST_BYTES))
        newer = found.get("format") if isinstance(found, dict) else None
        if isinstance(newer, int) and newer > NEWEST:
            raise AgentCompileError(f"{path}: format: {newer} is newer than {NEWEST}", hint="upgrade agentcompile")
        return RecordedSearches(searches=_searches(found))
    except OSError as error:
        raise AgentCompileError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    except (ValueError, RecursionError) as error:  # JSON that is cut short, too, and what the codec refuses
        raise AgentCompileError(f"{path}: no result of a study: {str(error)[:200]}", hint=_HINT) from error


def _searches(found: Json) -> tuple[RecordedSearch, ...]:
    """Return the searches in the content of a file.

    Raises:
        CodecError: the content is no study's, or contradicts itself.
    """
    if not isinstance(found, dict):
        raise CodecError(f"expected a table, got {type(found).__name__}")
    if (kind := found.get("kind")) != KIND:
        raise CodecError(f"kind: {kind!r:.80} is not {KIND!r}")
    searches: tuple[RecordedSearch, ...] = decode(tuple[RecordedSearch, ...], _known(found.get("curves")), "curves")
    if not searches:
        raise CodecError("curves: [] holds no search")
    for at, one in enumerate(searches):
        _check(one, f"curves[{at}]")
    return searches


def _known(curves: Json) -> Json:
    """Return the recorded curves without the fields that are not read here."""
    read = {field.name for field in fields(RecordedSearch)}
    if not isinstance(curves, list):
        return curves
    return [
        {name: value for name, value in one.items() if name in read} if isinstance(one, dict) else one for one in curves
    ]


def _check(search: RecordedSearch, where: str) -> None:
    """Refuse a search that contradicts itself.

    Raises:
        CodecError: it does.
    """
    if search.evaluations < 1:
        raise CodecError(f"{where}.evaluations: {search.evaluations} is below 1")
    if not 0 < search.optimum_ns < math.inf:
        raise CodecError(f"{where}.optimum_ns: {search.optimum_ns} is not a time")
    last, best = 0, math.inf
    for at, (evaluation, ns) in enumerate(search.steps):
        if not last < evaluation <= search.evaluations:
            text = f"{evaluation} is not between {last + 1} and {search.evaluations}"
            raise CodecError(f"{where}.steps[{at}][0]: {text}")
        if not search.optimum_ns <= ns < best:
            text = f"{ns} is no time from the optimum's, {search.optimum_ns}, to below the one before, {best}"
            raise CodecError(f"{where}.steps[{at}][1]: {text}")
        last, best = evaluation, ns


def _geometric(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if min(values) > 0 else 0.0
