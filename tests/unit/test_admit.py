"""The step decides: rivals near and far, choices taken over from shorter contexts, and plans that do not pay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentcompile.admit import FEW, LOOK_ROUNDS, Admitted, admit
from agentcompile.cuts import Cut
from agentcompile.events import silent
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Candidate, Launch, Source
from agentcompile.ir.trial import Choice, Fallback, Kernel, Part
from agentcompile.measure import Timing
from agentcompile.measure.samples import Clock, Round, Samples
from agentcompile.pipeline import _shares, _shares_of
from agentcompile.plans import Planned
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import partition
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.regions.summary import summarise
from agentcompile.rivals import WIDE, Around, _at_once
from tests.unit import runs
from tests.unit.graphs import qwen3

CEILING = Ceiling(dram_bytes_per_s=1e9, cache_bytes_per_s=1e10, flops_per_s=1e12)
PYTORCH_NS = 1_000


def cut_of(context: tuple[int, int]) -> Cut:
    graph = qwen3(2)
    found = partition(graph, Regime(phase="decode", context=context))
    return Cut(graph=graph, partition=found, summary=summarise(graph, found, CEILING, "dram"), residency="dram")


def source(region: Region, variant: int) -> Source:
    launch = Launch(entry=f"variant:{variant}", arguments=tuple(port.name for port in region.ports))
    return Source(language="cuda", text=f"{region.id}:{variant}", launches=(launch,), workspaces=(), flags=())


def kernel(region: Region, variant: int) -> Kernel:
    made = Candidate(
        region=region.id,
        regime=Regime(phase="decode"),
        template="linear/rows",
        template_digest="t",
        params=(("ROWS", variant),),
        target="x",
    )
    return Kernel(candidate=made, source=source(region, variant).digest, speedup=2.0, half_width=0.0)


def cover_of(cut: Cut) -> tuple[Part, ...]:
    option = Option(cost_ns=1.0, choice=Fallback(reason="a test"))
    found = cover(Problem(graph=cut.graph, partition=cut.partition, options=dict.fromkeys(cut.regions, (option,))))
    return tuple(
        Part(region=part.region, choice=kernel(cut.regions[part.region], 1), sites=part.sites)
        for part in found.parts[0]
    )


@dataclass
class Rivals:
    """Every region has variants 1 … 9; the step tells apart what is near from what is far."""

    regions: Mapping[str, Region]
    near: tuple[int, ...] = (2, 3)
    far: tuple[int, ...] = (7,)
    together: tuple[int, ...] = ()
    refused: frozenset[int] = frozenset()
    asked: list[tuple[str, int]] = field(default_factory=list)

    def of(self, part: Part, reach: int = 1) -> tuple[Choice, ...]:
        self.asked.append((part.region, reach))
        return tuple(kernel(self.regions[part.region], variant) for variant in (self.near if reach == 1 else self.far))

    def lean(self, part: Part) -> tuple[Choice, ...]:
        return tuple(kernel(self.regions[part.region], variant) for variant in self.together)

    def settled(self, part: Part, known: Choice) -> Choice:
        variant = part.choice.candidate.params[0][1] if isinstance(part.choice, Kernel) else 0
        return known if variant in self.refused else part.choice

    def sources(self) -> Mapping[str, Source]:
        made = [source(region, variant) for region in self.regions.values() for variant in range(1, 10)]
        return {one.digest: one for one in made}


class StepClock:
    """A step costs what its launches cost, by variant; PyTorch's cost `PYTORCH_NS` each."""

    def __init__(self, cost: Mapping[int, int]) -> None:
        self.cost, self.at = cost, list[Regime]()

    def __call__(
        self,
        programs: Sequence[tuple[str, Program]],
        *,
        at: Regime,
        rounds: int,
        processes: int,
        claim: float,
        seed: int,
    ) -> Timing:
        self.at.append(at)
        times = [round(sum(self._call(call) for call in program.calls)) for _, program in programs]
        # Noise far below any difference between variants, so that intervals have a width.
        noisy = [
            Round(
                intervals_ns=tuple((time * 100 + (7 * i) % 3, time * 100 + (5 * i) % 3) for time in times),
                waited_ns=(0,) * len(times),
            )
            for i in range(rounds)
        ]
        clock = Clock(quantum_ns=1, doubling=(2.0,) * len(times))
        one = Samples(batch=100, clock=clock, rounds=tuple(noisy))
        labels = tuple(label for label, _ in programs)
        return Timing(arms=labels, live=tuple(range(len(times))), processes=(one,) * processes, residency="dram")

    def _call(self, call: Any) -> float:
        if not isinstance(call, NativeCall):
            return PYTORCH_NS
        return self.cost[int(call.launch.entry.rpartition(":")[2])]


def admitted(cut: Cut, rivals: Rivals, clock: StepClock, settled: Mapping[str, Choice] | None = None) -> Admitted:
    parts = cover_of(cut)
    planned = Planned(decode=(parts,), prefill=(), layouts=(), exact=True, decode_ns=1.0)
    return admit(cut, parts, planned, rivals, clock, silent, 0, "cuda", settled or {})


def variants(found: Admitted) -> set[int]:
    return {
        int(str(part.choice.candidate.params[0][1])) if isinstance(part.choice, Kernel) else 0 for part in found.parts
    }


def flat(best: int) -> dict[int, int]:
    return {variant: 50 if variant == best else 100 for variant in range(1, 10)}


@pytest.fixture
def short() -> Cut:
    return cut_of((1, 32))


def test_the_step_takes_the_nearest_better_variant_of_every_region(short: Cut) -> None:
    rivals, clock = Rivals(short.regions), StepClock(flat(best=3))
    found = admitted(short, rivals, clock)
    assert variants(found) == {3}
    assert found.plan.step_ns == 50 * sum(len(part.sites) for part in found.parts)
    assert set(clock.at) == {short.partition.regime}


def test_what_is_two_parameters_away_is_tried_when_nothing_near_is_better(short: Cut) -> None:
    rivals = Rivals(short.regions)
    assert variants(admitted(short, rivals, StepClock(flat(best=7)))) == {7}
    assert {reach for _, reach in rivals.asked} == {1, 2}


def test_a_winner_that_may_not_ship_yields_to_what_may(short: Cut) -> None:
    rivals = Rivals(short.regions, refused=frozenset({3}))
    assert variants(admitted(short, rivals, StepClock(flat(best=3)))) == {1}


def test_a_longer_context_takes_over_what_the_shorter_one_settled(short: Cut) -> None:
    first = admitted(short, Rivals(short.regions), StepClock(flat(best=3)))
    long = cut_of((33, 64))
    rivals = Rivals(long.regions)
    settled = {part.region: part.choice for part in first.parts}
    found = admitted(long, rivals, StepClock(flat(best=2)), settled)
    shared = set(settled) & set(long.regions)
    assert shared
    own = {part.region for part in found.parts} - shared
    assert own
    for part in found.parts:
        assert isinstance(part.choice, Kernel)
        assert part.choice.candidate.params[0][1] == (3 if part.region in shared else 2)
    assert {region for region, _ in rivals.asked} == own


def test_a_plan_that_does_not_beat_pytorch_is_given_back(short: Cut) -> None:
    slow = dict.fromkeys(range(1, 10), 3 * PYTORCH_NS)
    found = admitted(short, Rivals(short.regions), StepClock(slow))
    assert variants(found) == {0}
    assert any("given back" in note for note in found.notes)


class CrowdedClock(StepClock):
    """Variant 5 is slower, and makes everything faster when two regions that follow one another have it."""

    def __call__(self, programs: Sequence[tuple[str, Program]], **more: Any) -> Timing:
        def lean(call: Any) -> bool:
            return isinstance(call, NativeCall) and call.launch.entry.endswith(":5")

        pays = [any(lean(a) and lean(b) for a, b in itertools.pairwise(program.calls)) for _, program in programs]
        timing = super().__call__(programs, **more)
        (one, *_) = timing.processes
        rounds = tuple(
            replace(
                timed,
                intervals_ns=tuple(
                    (a // 2, b // 2) if better else (a, b)
                    for (a, b), better in zip(timed.intervals_ns, pays, strict=True)
                ),
            )
            for timed in one.rounds
        )
        return replace(timing, processes=(replace(one, rounds=rounds),) * len(timing.processes))


def test_two_regions_change_together_where_neither_would_alone(short: Cut) -> None:
    cost = {**dict.fromkeys(range(1, 10), 100), 5: 104}
    alone = admitted(short, Rivals(short.regions), CrowdedClock(cost))
    assert 5 not in variants(alone)
    both = admitted(short, Rivals(short.regions, together=(5, 6)), CrowdedClock(cost))
    assert 5 in variants(both)
    assert both.plan.step_ns < 0.6 * alone.plan.step_ns
    assert any(" and " in note and "rivals of both" in note for note in both.notes)


def test_of_many_rivals_the_step_takes_the_best_and_times_only_a_few_of_them_long(short: Cut) -> None:
    class Counting(StepClock):
        long = 0

        def __call__(self, programs: Sequence[tuple[str, Program]], **more: Any) -> Timing:
            if more["rounds"] > LOOK_ROUNDS and more["processes"] == 1:
                self.long = max(self.long, len(programs))
            return super().__call__(programs, **more)

    clock = Counting({**dict.fromkeys(range(1, 10), 100), 4: 90, 6: 80, 8: 300})
    found = admitted(short, Rivals(short.regions, near=(2, 3, 4, 5, 6, 7, 8, 9), far=()), clock)
    assert variants(found) == {6}
    assert clock.long == FEW + 1


def test_a_region_is_tried_again_only_when_it_or_a_neighbour_changed(short: Cut) -> None:
    improving = next(part.region for part in cover_of(short) if "gateup" in short.regions[part.region].name)

    class One(Rivals):
        def of(self, part: Part, reach: int = 1) -> tuple[Choice, ...]:
            found = super().of(part, reach)
            return found if part.region == improving else ()

    rivals = One(short.regions, far=())
    found = admitted(short, rivals, StepClock(flat(best=3)))
    asked = [region for region, reach in rivals.asked if reach == 1]
    order = [step.region.id for step in schedule(short.graph, short.partition, found.parts)]
    around = {improving} | {
        other for one, other in [*itertools.pairwise(order), *itertools.pairwise(order[::-1])] if one == improving
    }
    own = {part.region for part in found.parts}
    assert around < own
    again = {region for region in own if asked.count(region) > 1}
    # Neighbours that came after it in the first pass were tried beside what it changed to.
    assert improving in again
    assert again <= around
    assert max(asked.count(region) for region in own) == 2


def test_what_a_shorter_context_settled_changes_only_beside_a_neighbour_that_is_new(short: Cut) -> None:
    long, cost = cut_of((33, 64)), {**dict.fromkeys(range(1, 10), 100), 5: 104}
    settled = {part.region: part.choice for part in admitted(short, Rivals(short.regions), StepClock(cost)).parts}
    found = admitted(long, Rivals(long.regions, together=(5,)), CrowdedClock(cost), settled)
    changed = {part.region for part in found.parts if part.choice != settled.get(part.region)}
    own = {part.region for part in found.parts} - set(settled)
    order = [step.region.id for step in schedule(long.graph, long.partition, found.parts)]
    follows = {frozenset(pair) for pair in itertools.pairwise(order)}
    assert variants(found) == {1, 5}
    assert changed & set(settled)
    assert all(any({region, other} in follows for other in own) for region in changed & set(settled))


def test_blocks_of_a_small_grid_leave_room_on_a_multiprocessor_whatever_they_are_made_of() -> None:
    def takes(grid: int, block: int, shared: int) -> tuple[int, int]:
        launch = Launch(entry="k", arguments=(), grid=(str(grid),), block=(str(block),), shared_bytes=str(shared))
        return _at_once(launch, 132)

    assert takes(132, 256, 64 << 10) == (64 << 10, 256)
    assert takes(1024, 128, 0) == (0, 1024)  # 8 blocks for each
    assert takes(100_000, 256, 0) == (0, 2048)  # as many as fit
    assert takes(1000, 64, 100 << 10) == (200 << 10, 128)


class Space:
    """A survey over points of three parameters, of which some were measured alone."""

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
        self.trials = {runs.REGION: list(self._measured(known))}
        self.asked: list[Candidate] = []
        self.seconds = 1.0

    def left(self) -> float:
        return self.seconds

    def _measured(self, known: Mapping[tuple[int, int, int], int]) -> Iterator[Any]:
        for point, ns in known.items():
            verdict = runs.measured()
            timed = replace(verdict, measurement=replace(verdict.measurement, median_ns=ns))
            yield replace(runs.trial(), candidate=self.points[point], source=self.points[point].id, verdict=timed)

    def space(self, region: str) -> tuple[Candidate, ...]:
        return tuple(self.points.values())

    def judged(self, region: str, wanted: Sequence[Candidate]) -> list[Any]:
        self.asked = list(wanted)
        return []

    def sources(self) -> Mapping[str, Source]:
        """A block's threads and shared memory are A and B."""
        found = {}
        for candidate in self.points.values():
            (_, a), (_, b), _ = candidate.params
            launch = Launch(entry="k", arguments=(), grid=("1",), block=(str(a),), shared_bytes=str(b))
            found[candidate.id] = Source(language="cuda", text="", launches=(launch,), workspaces=(), flags=())
        return found


def distance(candidate: Candidate) -> int:
    return sum(value != 0 for _, value in candidate.params)


def test_near_rivals_differ_in_one_parameter_and_far_ones_in_two() -> None:
    known = {(0, 5, 5): 900, (0, 1, 1): 700, (5, 5, 5): 100}
    survey: Any = Space(known)
    chosen = Kernel(candidate=survey.points[0, 0, 0], source="s", speedup=2.0, half_width=0.0)
    part = Part(region=runs.REGION, choice=chosen)
    Around(survey, 132).of(part)
    assert {distance(one) for one in survey.asked} == {1}
    assert len(survey.asked) == 15
    Around(survey, 132).of(part, 2)
    assert {distance(one) for one in survey.asked} == {2}
    assert len(survey.asked) == WIDE
    # What is known to be fast by itself comes first.
    assert survey.asked[:2] == [survey.points[0, 1, 1], survey.points[0, 5, 5]]
    assert Around(survey, 132).of(Part(region=runs.REGION, choice=Fallback(reason="none")), 2) == ()


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
    survey: Any = Space(known)
    (fastest, *_) = survey.trials[runs.REGION]
    chosen = Kernel(candidate=fastest.candidate, source=fastest.source, speedup=2.0, half_width=0.0)
    found = Around(survey, 132).lean(Part(region=runs.REGION, choice=chosen))
    points = [tuple(value for _, value in one.candidate.params) for one in found if isinstance(one, Kernel)]
    assert points == [(4, 5, 0), (5, 4, 0), (3, 3, 0)]
    # The fastest is one of them for a region that runs another.
    other = Kernel(candidate=survey.points[5, 5, 1], source="s", speedup=2.0, half_width=0.0)
    rivals = Around(survey, 132).lean(Part(region=runs.REGION, choice=other))
    assert isinstance(rivals[0], Kernel)
    assert rivals[0].candidate == fastest.candidate
    survey.seconds = 0.0
    assert Around(survey, 132).lean(Part(region=runs.REGION, choice=other)) == ()


def test_every_step_has_time_for_the_regions_that_it_is_the_first_to_choose(short: Cut) -> None:
    long, longer = cut_of((33, 64)), cut_of((65, 96))
    covers = [cover_of(cut) for cut in (short, long, longer)]
    shares = _shares(covers)
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] > 0.5 > shares[1] == shares[2] > 0
    assert _shares_of(0, "cuda") == (math.inf, math.inf)
    assert _shares_of(100, "cuda") == (50, 50)
    assert _shares_of(100, "cpu") == (100, 0)
