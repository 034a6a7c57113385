"""Who may stand in for a choice in the step of a GPU: every point that builds, the best of them again, lean ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentcompile.ir.template import Candidate, Launch, Source
from agentcompile.ir.trial import Fallback, Kernel, Part
from agentcompile.planning.alternatives import AGAIN, SpaceAlternatives, _at_once
from tests.unit import runs


def test_blocks_of_a_small_grid_leave_room_on_a_multiprocessor_whatever_they_are_made_of() -> None:
    def takes(grid: int, block: int, shared: int) -> tuple[int, int]:
        launch = Launch(entry="k", arguments=(), grid=(str(grid),), block=(str(block),), shared_bytes=str(shared))
        return _at_once(launch, 132)

    assert takes(132, 256, 64 << 10) == (64 << 10, 256)
    assert takes(1024, 128, 0) == (0, 1024)  # 8 blocks for each
    assert takes(100_000, 256, 0) == (0, 2048)  # as many as fit
    assert takes(1000, 64, 100 << 10) == (200 << 10, 128)


class Space:
    """Candidates of a step over points of three parameters, of which some were measured alone."""

    def __init__(self, known: Mapping[tuple[int, int, int], int]) -> None:
        self.points = {
            (a, b, c): Candidate(
                region=runs.REGION,
                regime=runs.REGIME,
                template="linear/rows",
                template_digest="t",
                params=(("A", a), ("B", b), ("C", c)),
                target="x",
            )
            for a in range(6)
            for b in range(6)
            for c in range(6)
        }
        self.known = list(self._measured(known))
        self.asked: list[Candidate] = []
        self.builds = 0
        self.seconds = 1.0

    def left(self) -> float:
        return self.seconds

    def trials(self, region: str) -> list[Any]:
        return self.known

    def _measured(self, known: Mapping[tuple[int, int, int], int]) -> Iterator[Any]:
        for point, ns in known.items():
            verdict = runs.measured()
            timed = replace(verdict, measurement=replace(verdict.measurement, median_ns=ns))
            yield replace(runs.trial(), candidate=self.points[point], source=self.points[point].id, verdict=timed)

    def promising(self, region: str) -> list[Candidate]:
        return [one for point, one in self.points.items() if point[2] == 0]

    def built(self, region: str, candidates: Sequence[Candidate]) -> list[tuple[Candidate, Source]]:
        """Those whose block has threads."""
        self.builds += 1
        sources = self.sources()
        return [(one, sources[one.id]) for one in candidates if one.params[0][1]]

    def evaluated(self, region: str, wanted: Sequence[Candidate]) -> list[Any]:
        self.asked = list(wanted)
        found = {trial.candidate.id: trial for trial in self.known}
        return [found[id] for id in sorted(found) if id in {one.id for one in wanted}]

    def sources(self) -> Mapping[str, Source]:
        """A block's threads and shared memory are A and B."""
        found = {}
        for candidate in self.points.values():
            (_, a), (_, b), _ = candidate.params
            launch = Launch(entry="k", arguments=(), grid=("1",), block=(str(a),), shared_bytes=str(b))
            found[candidate.id] = Source(language="cuda", text="", launches=(launch,), workspaces=(), flags=())
        return found


def alternatives_of(candidates: Any) -> SpaceAlternatives:
    nobody: Any = None  # accepts: nothing ships here
    return SpaceAlternatives(candidates, nobody, 132)


def test_the_step_looks_at_every_point_that_builds_once_and_then_at_the_best() -> None:
    candidates: Any = Space({(1, 1, 0): 900, (2, 2, 0): 800})
    chosen = Kernel(candidate=candidates.points[1, 0, 0], source="s", speedup=2.0, half_width=0.0)
    part, alternatives = Part(region=runs.REGION, choice=chosen), alternatives_of(candidates)
    first = alternatives.candidates_for(part)
    assert len(first) == 5 * 6 - 1  # its own, and what does not build
    assert {choice.source for choice in first if isinstance(choice, Kernel)} <= set(alternatives.sources())
    alternatives.note_order(part, first[::-1])
    again = alternatives.candidates_for(part)
    assert list(again) == list(first[::-1])[:AGAIN]
    other = replace(part, choice=again[0])
    assert list(alternatives.candidates_for(other)) == [chosen, *again[1:]]  # what the step had before may come back
    assert candidates.builds == 1
    assert alternatives.candidates_for(Part(region=runs.REGION, choice=Fallback(reason="none"))) == ()


def test_rivals_are_proven_in_the_order_of_the_look() -> None:
    candidates: Any = Space({(1, 1, 0): 900, (2, 2, 0): 800, (3, 3, 0): 700})
    part = Part(region=runs.REGION, choice=Fallback(reason="any"))
    looked = [
        Kernel(candidate=candidates.points[point], source="s", speedup=1.0, half_width=0.0)
        for point in [(3, 3, 0), (5, 5, 0), (1, 1, 0), (2, 2, 0)]
    ]
    found = alternatives_of(candidates).correct_of(part, looked)
    assert [one.candidate for one in found if isinstance(one, Kernel)] == [looked[at].candidate for at in (0, 2, 3)]
    assert all(isinstance(one, Kernel) and one.speedup > 1 for one in found)


def test_lean_rivals_are_nearly_as_fast_alone_and_take_less_than_all_that_are_faster() -> None:
    known = {
        (5, 5, 0): 100,  # the fastest
        (5, 5, 1): 101,  # takes as much
        (4, 5, 0): 102,  # fewer threads
        (5, 4, 0): 103,  # less shared memory
        (4, 4, 0): 104,  # neither less than what came before
        (3, 3, 0): 120,  # both
        (1, 1, 0): 131,  # too slow
    }
    candidates: Any = Space(known)
    (fastest, *_) = candidates.known
    chosen = Kernel(candidate=fastest.candidate, source=fastest.source, speedup=2.0, half_width=0.0)
    found = alternatives_of(candidates).partners(Part(region=runs.REGION, choice=chosen), first=False)
    points = [tuple(value for _, value in one.candidate.params) for one in found if isinstance(one, Kernel)]
    assert points == [(4, 5, 0), (5, 4, 0), (3, 3, 0)]
    # The fastest is one of them for a region that runs another.
    other = Kernel(candidate=candidates.points[5, 5, 1], source="s", speedup=2.0, half_width=0.0)
    alternatives = alternatives_of(candidates).partners(Part(region=runs.REGION, choice=other), first=False)
    assert isinstance(alternatives[0], Kernel)
    assert alternatives[0].candidate == fastest.candidate
    candidates.seconds = 0.0
    assert alternatives_of(candidates).partners(Part(region=runs.REGION, choice=other), first=False) == ()


def test_of_every_template_the_fastest_alone_is_a_kind_where_it_is_nearly_the_fastest() -> None:
    candidates: Any = Space({(1, 1, 0): 100, (2, 2, 1): 110, (3, 3, 1): 105, (4, 4, 2): 129, (5, 5, 3): 131})
    candidates.known = [
        replace(trial, candidate=replace(trial.candidate, template=f"linear/{dict(trial.candidate.params)['C']}"))
        for trial in candidates.known
    ]
    chosen = Kernel(candidate=candidates.known[0].candidate, source="s", speedup=2.0, half_width=0.0)
    part = Part(region=runs.REGION, choice=chosen)
    found = alternatives_of(candidates).partners(part, first=True)[:2]  # what is sparing follows
    points = [tuple(value for _, value in one.candidate.params) for one in found if isinstance(one, Kernel)]
    assert points == [(3, 3, 1), (4, 4, 2)]  # not its own, and none that is too slow
    candidates.seconds = 0.0
    assert alternatives_of(candidates).partners(part, first=True) == ()


def test_what_was_forgotten_is_looked_at_anew() -> None:
    candidates: Any = Space({(1, 1, 0): 900})
    chosen = Kernel(candidate=candidates.points[1, 0, 0], source="s", speedup=2.0, half_width=0.0)
    part, alternatives = Part(region=runs.REGION, choice=chosen), alternatives_of(candidates)
    first = alternatives.candidates_for(part)
    alternatives.note_order(part, first[:2])
    assert len(alternatives.candidates_for(part)) == 2
    alternatives.forget(part)
    assert alternatives.candidates_for(part) == first
