"""The step decides: alternatives near and far, choices taken over from shorter contexts, and plans that do not pay."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentcompile.evaluation.time_budget import Left, any_time
from agentcompile.events import Emit, silent
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Ceiling
from agentcompile.ir.template import Candidate, Launch, Source
from agentcompile.ir.timing import Clock, Round, Samples
from agentcompile.ir.trial import Choice, Crashed, Fallback, Kernel, Part
from agentcompile.measure import Timing
from agentcompile.planning.admission import ABREAST, EVALUATED, FEW, LOOK_ROUNDS, Admitted, admit
from agentcompile.planning.plans import Planned
from agentcompile.planning.steps import _shares
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import partition
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.regions.summary import summarise
from agentcompile.search import STRATEGIES, StepStrategy
from agentcompile.tuning.partitions import Cut
from tests.unit.graphs import qwen3

DESCENT = STRATEGIES["halving"].step
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


def variant_of(choice: Choice) -> int:
    return int(str(choice.candidate.params[0][1])) if isinstance(choice, Kernel) else 0


def cover_of(cut: Cut) -> tuple[Part, ...]:
    option = Option(cost_ns=1.0, choice=Fallback(reason="a test"))
    found = cover(Problem(graph=cut.graph, partition=cut.partition, options=dict.fromkeys(cut.regions, (option,))))
    return tuple(
        Part(region=part.region, choice=kernel(cut.regions[part.region], 1), sites=part.sites)
        for part in found.parts[0]
    )


@dataclass
class Fakes:
    """Every region has variants 1 … 9; the step tells apart what is near from what is far."""

    regions: Mapping[str, Region]
    near: tuple[int, ...] = (2, 3)
    together: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    forgotten: list[str] = field(default_factory=list)
    refused: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    asked: list[str] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    orders: list[list[int]] = field(default_factory=list)
    made: dict[str, Source] = field(default_factory=dict)

    def candidates_for(self, part: Part) -> tuple[Choice, ...]:
        self.asked.append(part.region)
        return tuple(kernel(self.regions[part.region], variant) for variant in self.near)

    def note_order(self, part: Part, order: Sequence[Choice]) -> None:
        self.orders.append([variant_of(choice) for choice in order])

    def correct_of(self, part: Part, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        self.evaluated += [variant_of(choice) for choice in choices]
        return tuple(choice for choice in choices if variant_of(choice) not in self.wrong)

    def limit(self, left: Left) -> None:
        raise AssertionError("who tunes the steps says it, not the step")

    def partners(self, part: Part, *, first: bool) -> tuple[Choice, ...]:
        variants = (*(self.others if first else ()), *self.together)
        return tuple(kernel(self.regions[part.region], variant) for variant in variants)

    def forget(self, part: Part) -> None:
        self.forgotten.append(part.region)

    def shippable(self, part: Part, known: Choice) -> Choice:
        return known if variant_of(part.choice) in self.refused else part.choice

    def sources(self) -> Mapping[str, Source]:
        every = (source(region, variant) for region in self.regions.values() for variant in range(1, 100))
        self.made = self.made or {one.digest: one for one in every}
        return self.made


class StepClock:
    """A step costs what its launches cost, by variant; PyTorch's cost `PYTORCH_NS` each."""

    def __init__(self, cost: Mapping[int, int]) -> None:
        self.cost, self.at = cost, list[Regime]()
        self.known: dict[str, Timing] = {}

    def __call__(
        self,
        programs: Sequence[tuple[str, Program]],
        *,
        at: Regime,
        rounds: int,
        processes: int,
        claim: float,
        seed: int,
        trusted: bool = True,
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


def admitted(
    cut: Cut,
    alternatives: Fakes,
    clock: StepClock,
    settled: Mapping[str, Choice] | None = None,
    emit: Emit = silent,
    strategy: StepStrategy = DESCENT,
    left: Left = any_time,
) -> Admitted:
    parts = cover_of(cut)
    planned = Planned(decode=(parts,), prefill=(), layouts=(), exact=True, decode_ns=1.0)
    return admit(cut, parts, planned, alternatives, clock, emit, 0, "cuda", settled or {}, strategy, left)


def variants(found: Admitted) -> set[int]:
    return {variant_of(part.choice) for part in found.parts}


def flat(best: int) -> dict[int, int]:
    return {variant: 50 if variant == best else 100 for variant in range(1, 10)}


@pytest.fixture
def short() -> Cut:
    return cut_of((1, 32))


def test_the_step_takes_the_nearest_better_variant_of_every_region(short: Cut) -> None:
    alternatives, clock = Fakes(short.regions), StepClock(flat(best=3))
    found = admitted(short, alternatives, clock)
    assert variants(found) == {3}
    assert found.plan.step_ns == 50 * sum(len(part.sites) for part in found.parts)
    assert set(clock.at) == {short.partition.regime}


def test_a_kernel_that_looks_best_and_is_wrong_is_never_timed_in_earnest(short: Cut) -> None:
    crowd = tuple(range(2, 40))
    cost = {**dict.fromkeys(range(1, 100), 100), 7: 40, 8: 60, 9: 70}
    alternatives = Fakes(short.regions, near=crowd, wrong=frozenset({7}))
    found = admitted(short, alternatives, StepClock(cost))
    assert variants(found) == {8}
    # A look is no evaluation: all were ranked, a few of the best were evaluated, and not one of the others.
    assert all(order[:3] == [7, 8, 9] for order in alternatives.orders)
    assert {len(order) for order in alternatives.orders} == {len(crowd)}
    assert len(set(alternatives.evaluated)) == EVALUATED


def test_looks_end_when_time_is_up_after_the_first(short: Cut) -> None:
    alternatives = Fakes(short.regions, near=tuple(range(2, 40)))
    asked = itertools.count()
    found = admitted(
        short,
        alternatives,
        StepClock({**dict.fromkeys(range(1, 100), 100), 3: 50, 39: 10}),
        left=lambda: float(next(asked) == 0),
    )
    assert variants(found) == {1, 3}
    assert [len(order) for order in alternatives.orders] == [ABREAST]
    assert any("regions not tried: time is up" in note for note in found.notes)


def test_a_look_that_crashes_leaves_the_others(short: Cut) -> None:
    class Fragile(StepClock):
        def __call__(self, programs: Sequence[tuple[str, Program]], **more: Any) -> Any:
            if not more["trusted"] and any(_has(program, 36) for _, program in programs):
                return Crashed(stage="measure", signal=9, detail="")
            assert more["trusted"] or more["rounds"] == LOOK_ROUNDS
            return super().__call__(programs, **more)

    def _has(program: Program, variant: int) -> bool:
        calls = [call for call in program.calls if isinstance(call, NativeCall)]
        return any(call.launch.entry == f"variant:{variant}" for call in calls)

    alternatives = Fakes(short.regions, near=tuple(range(2, 40)))
    found = admitted(short, alternatives, Fragile({**dict.fromkeys(range(1, 100), 100), 3: 50, 39: 10}))
    assert variants(found) == {3}  # the second look has the 36, and with it the 39
    assert any("not looked at" in note for note in found.notes)


def test_a_winner_that_may_not_ship_yields_to_what_may(short: Cut) -> None:
    alternatives = Fakes(short.regions, refused=frozenset({3}))
    assert variants(admitted(short, alternatives, StepClock(flat(best=3)))) == {1}


def test_a_longer_context_takes_over_what_the_shorter_one_settled(short: Cut) -> None:
    first = admitted(short, Fakes(short.regions), StepClock(flat(best=3)))
    long = cut_of((33, 64))
    alternatives = Fakes(long.regions)
    settled = {part.region: part.choice for part in first.parts}
    found = admitted(long, alternatives, StepClock(flat(best=2)), settled)
    shared = set(settled) & set(long.regions)
    assert shared
    own = {part.region for part in found.parts} - shared
    assert own
    order = [step.region.id for step in schedule(long.graph, long.partition, found.parts)]
    beside = {one for pair in itertools.pairwise(order) if set(pair) & own for one in pair}
    assert shared - beside
    for part in found.parts:
        assert variant_of(part.choice) == (2 if part.region in beside else 3)
    assert set(alternatives.asked) == beside


def test_what_is_new_is_chosen_before_what_stands_beside_it(short: Cut) -> None:
    cover, shares = cover_of(short), {row.region.id: row.share for row in short.summary.rows}
    for new in cover:
        settled = {part.region: part.choice for part in cover if part.region != new.region}
        alternatives = Fakes(short.regions)
        admitted(short, alternatives, StepClock(flat(best=3)), settled)
        assert alternatives.asked[0] == new.region
        assert {*alternatives.asked} - {new.region}
    assert len({shares[part.region] for part in cover}) > 1


def test_a_plan_that_does_not_beat_pytorch_is_given_back(short: Cut) -> None:
    slow = dict.fromkeys(range(1, 10), 3 * PYTORCH_NS)
    found = admitted(short, Fakes(short.regions), StepClock(slow))
    assert variants(found) == {0}
    assert any("measured 0.33x PyTorch" in note and "retrying with " in note for note in found.notes)


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
    alone = admitted(short, Fakes(short.regions), CrowdedClock(cost))
    assert 5 not in variants(alone)
    both = admitted(short, Fakes(short.regions, together=(5, 6)), CrowdedClock(cost))
    assert 5 in variants(both)
    assert both.plan.step_ns < 0.6 * alone.plan.step_ns
    assert any(" and " in note and "alternatives of both" in note for note in both.notes)


def test_of_many_rivals_the_step_takes_the_best_and_times_only_a_few_of_them_long(short: Cut) -> None:
    class Counting(StepClock):
        long = 0

        def __call__(self, programs: Sequence[tuple[str, Program]], **more: Any) -> Timing:
            if more["rounds"] > LOOK_ROUNDS and more["processes"] == 1:
                self.long = max(self.long, len(programs))
            return super().__call__(programs, **more)

    clock = Counting({**dict.fromkeys(range(1, 10), 100), 4: 90, 6: 80, 8: 300})
    found = admitted(short, Fakes(short.regions, near=(2, 3, 4, 5, 6, 7, 8, 9)), clock)
    assert variants(found) == {6}
    assert clock.long == FEW + 1


def test_a_region_is_tried_again_only_when_it_or_a_neighbour_changed(short: Cut) -> None:
    improving = next(part.region for part in cover_of(short) if "gateup" in short.regions[part.region].name)

    class One(Fakes):
        def candidates_for(self, part: Part) -> tuple[Choice, ...]:
            found = super().candidates_for(part)
            return found if part.region == improving else ()

    alternatives = One(short.regions)
    found = admitted(short, alternatives, StepClock(flat(best=3)))
    asked = alternatives.asked
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
    settled = {part.region: part.choice for part in admitted(short, Fakes(short.regions), StepClock(cost)).parts}
    found = admitted(long, Fakes(long.regions, together=(5,)), CrowdedClock(cost), settled)
    changed = {part.region for part in found.parts if part.choice != settled.get(part.region)}
    own = {part.region for part in found.parts} - set(settled)
    order = [step.region.id for step in schedule(long.graph, long.partition, found.parts)]
    follows = {frozenset(pair) for pair in itertools.pairwise(order)}
    assert variants(found) == {1, 5}
    assert changed & set(settled)
    assert all(any({region, other} in follows for other in own) for region in changed & set(settled))


def test_a_new_region_may_turn_to_another_kind_beside_a_lean_neighbour_and_is_then_looked_at_anew(short: Cut) -> None:
    class Kinds(Fakes):
        """Variants from 5 on are of another template."""

        def partners(self, part: Part, *, first: bool) -> tuple[Choice, ...]:
            found = super().partners(part, first=False)
            other = super().partners(part, first=first)[: len(self.others)] if first and part.region == new else ()
            return (*(_of_another_template(one) for one in other), *found)

        def candidates_for(self, part: Part) -> tuple[Choice, ...]:
            self.asked.append(part.region)
            best = (4,) if self.forgotten and part.region == new else ()
            return tuple(_of_another_template(kernel(self.regions[part.region], variant)) for variant in best)

    long, cost = cut_of((33, 64)), {**dict.fromkeys(range(1, 10), 100), 4: 60, 5: 104}
    settled = {part.region: part.choice for part in admitted(short, Fakes(short.regions), StepClock(cost)).parts}
    (new,) = {part.region for part in cover_of(long)} - set(settled)
    alternatives = Kinds(long.regions, together=(5,), others=(5,))
    found = admitted(long, alternatives, CrowdedClock(cost), settled)
    (part,) = (part for part in found.parts if part.region == new)
    assert alternatives.forgotten == [new]
    assert alternatives.asked.count(new) == 2  # at first, and after it had turned
    assert isinstance(part.choice, Kernel)
    assert part.choice.candidate.template == "linear/another"


def _of_another_template(choice: Choice) -> Kernel:
    assert isinstance(choice, Kernel)
    return replace(choice, candidate=replace(choice.candidate, template="linear/another"))


def test_every_step_has_time_for_the_regions_that_it_is_the_first_to_choose(short: Cut) -> None:
    long, longer = cut_of((33, 64)), cut_of((65, 96))
    covers = [cover_of(cut) for cut in (short, long, longer)]
    shares = _shares(covers)
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] > 0.5 > shares[1] == shares[2] > 0
