"""The regions that are tried first: those of a plan, parts of those that fail, others while there is time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentcompile.events import Event, Warned
from agentcompile.ir.advice import Advice
from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Regime, Region
from agentcompile.planning.first import FirstRegions
from agentcompile.regions.partition import partition
from agentcompile.regions.summary import summarise
from agentcompile.space import Space
from agentcompile.system.notes import Notes
from agentcompile.system.store import Store
from agentcompile.tuning.baselines import BaselineTimes
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.partitions import Cut
from agentcompile.tuning.run_trials import RunTrials
from agentcompile.tuning.scheduler import BATCH, FINISH_TIMES, Finishing, TaskScheduler
from agentcompile.tuning.tasks import TuneTask
from agentcompile.tuning.untimed import Estimates
from tests.unit import runs
from tests.unit.fakes import linear_region, rows_template, target
from tests.unit.graphs import qwen3
from tests.unit.test_admission import CEILING

PYTORCH = 20.0
"""How many times as long as by estimate PyTorch takes here."""
SERVED = {"linear", "rmsnorm", "add", "silu-mul", "embedding"}
"""Kinds of single operators that a template serves, beside all of several operators."""


@dataclass
class Scheduler:
    """Times of regions in ns by id, and PyTorch's."""

    best: dict[str, float] = field(default_factory=dict)

    def best_ns(self) -> Mapping[str, float]:
        return self.best

    def fallback_ns(self, region: Region) -> float:
        return PYTORCH * Estimates(ceiling=CEILING, residency="dram", rankings={}).fallback_ns(region)


class Desk:
    """A decoder's step and chunk, of which most regions have a space."""

    def __init__(self, device: str = "cpu") -> None:
        graph = qwen3(2)
        self.decode, self.prefill = cut_of(graph, "decode"), cut_of(graph, "prefill")
        self.tasks, self.prompts = tasks_of(self.decode), tasks_of(self.prefill)
        self.scheduler = Scheduler()
        prepared: Any = SimpleNamespace(
            decode=(self.decode,),
            prefill=self.prefill,
            tasks=self.tasks,
            prompt_tasks=self.prompts,
            ceiling=CEILING,
            here=SimpleNamespace(device=device),
        )
        scheduler: Any = self.scheduler
        self.first = FirstRegions(prepared=prepared, scheduler=scheduler)

    def kinds(self, some: Sequence[TuneTask]) -> set[str]:
        return {task.region.kind for task in some}

    def try_all(self, some: Sequence[TuneTask], speedup: float = 10.0) -> None:
        for task in some:
            self.scheduler.best[task.region.id] = self.scheduler.fallback_ns(task.region) / speedup


def cut_of(graph: Graph, phase: Any) -> Cut:
    found = partition(graph, Regime(phase=phase, context=(1, 64)))
    return Cut(graph=graph, partition=found, summary=summarise(graph, found, CEILING, "dram"), residency="dram")


def tasks_of(cut: Cut) -> tuple[TuneTask, ...]:
    served = [one for one in cut.regions.values() if len(one.body.nodes) > 1 or one.kind in SERVED]
    return tuple(SimpleNamespace(region=one, floor_ns=1.0) for one in served)  # type: ignore[misc]


def test_a_plan_needs_fewer_than_half_of_the_regions_and_the_largest_of_them() -> None:
    desk = Desk()
    needed = desk.first.needed(desk.scheduler.best)
    assert 0 < len(needed) < (len(desk.tasks) + len(desk.prompts)) / 2
    covered = {node for task in needed for site in task.region.sites for node in site.nodes}
    alone = [one for one in desk.decode.regions.values() if len(one.body.nodes) == 1 and one.kind not in SERVED]
    assert covered | {node for one in alone for site in one.sites for node in site.nodes} >= {
        node.id for node in desk.decode.graph.nodes
    }
    assert {"rmsnorm-gateup-silu-mul", "linear-residual"} <= desk.kinds(needed), sorted(desk.kinds(needed))


def test_nothing_more_is_needed_where_those_kernels_are_fast() -> None:
    desk = Desk()
    desk.try_all(desk.first.needed(desk.scheduler.best))
    assert desk.first.needed(desk.scheduler.best) == ()


def test_a_region_that_stays_in_pytorch_makes_its_parts_needed_and_no_other() -> None:
    desk = Desk()
    needed = desk.first.needed(desk.scheduler.best)
    desk.try_all(needed)
    failed = next(task for task in needed if task.region.kind == "rmsnorm-gateup-silu-mul")
    desk.try_all([failed], speedup=1.0)
    more = desk.first.needed(desk.scheduler.best)
    assert more
    nodes = {node for site in failed.region.sites for node in site.nodes}
    assert all({node for site in task.region.sites for node in site.nodes} & nodes for task in more)
    assert not set(map(id, more)) & set(map(id, needed))


def test_parts_are_needed_until_some_are_fast_or_none_is_left() -> None:
    desk = Desk()
    for _ in range(len(desk.tasks) + len(desk.prompts)):
        if not (needed := desk.first.needed(desk.scheduler.best)):
            break
        desk.try_all(needed, speedup=1.0)
    assert desk.first.needed(desk.scheduler.best) == ()
    singles = {task.region.id for task in desk.tasks if task.region.kind in SERVED}
    assert singles <= desk.scheduler.best.keys(), "where all large ones fail, every operator with a template is tried"


def test_the_others_are_all_untried_ones_and_likely_ones_come_first() -> None:
    desk = Desk()
    desk.try_all(desk.first.needed(desk.scheduler.best))
    others = desk.first.others(desk.scheduler.best)
    assert {task.region.id for task in others} == {
        task.region.id for task in (*desk.tasks, *desk.prompts)
    } - desk.scheduler.best.keys()
    unlikely = others[-1].region.kind
    assert unlikely in SERVED, "a single operator's kernel saves no launch"


def test_on_a_gpu_all_regions_of_a_chunk_are_needed() -> None:
    desk = Desk("cuda:0")
    needed = {id(task) for task in desk.first.needed(desk.scheduler.best)}
    assert needed >= {id(task) for task in desk.prompts}


class AttemptEvaluator:
    """Prepares nothing, and takes a second for each task."""

    def __init__(self) -> None:
        self.now, self.tried, self.prepared = 0.0, list[str](), list[int]()

    def prepare_first(self, tasks: Sequence[TuneTask]) -> None:
        self.prepared.append(len(tasks))

    def first_trials(self, task: TuneTask, most: int, fresh: int, left: Any) -> list[Any]:
        if not fresh:
            return []
        self.now += 1.0
        self.tried.append(task.region.id)
        return [SimpleNamespace(candidate=SimpleNamespace(id=task.region.id))]


@pytest.mark.parametrize(
    ("seconds", "tried"),
    [(1000.0, 30), (36.0, 22), (4.0, 10), (0.0, 10), (19.0, 10), (20.0, 14)],
    ids=["ample", "half", "short", "none", "just", "one"],
)
def test_without_time_only_needed_regions_are_tried(tmp_path: Path, seconds: float, tried: int) -> None:
    tasks = [of_rows(64 * at) for at in range(1, 31)]
    evaluator: Any = AttemptEvaluator()
    notes, jobs = Notes(Store(tmp_path)), JobMaker(target())
    baselines = BaselineTimes(evaluator, notes, target(), "p", 0)
    trials = RunTrials(tasks, jobs)
    scheduler = TaskScheduler(trials, evaluator, baselines, "dram", lambda: seconds - evaluator.now)

    def needed(tried: Collection[str]) -> list[TuneTask]:
        return [task for task in tasks[:10] if task.region.id not in tried]

    scheduler.try_first_candidates(1000, needed, lambda _: tasks[10:])
    assert evaluator.tried == [task.region.id for task in tasks[:tried]]
    assert list(trials.by_region) == evaluator.tried, "those that were not tried have no entry"
    assert evaluator.prepared[0] == 10
    assert all(one <= BATCH for one in evaluator.prepared[1:])


@pytest.mark.parametrize("each_s", [1.0, 4.0], ids=["quiet", "busy"])
def test_confirming_leaves_time_for_acceptance_which_takes_about_as_long_as_first_candidates(
    tmp_path: Path, each_s: float
) -> None:
    tasks, confirming = [of_rows(64 * at) for at in range(1, 11)], list[float]()

    class Slow(AttemptEvaluator):
        def first_trials(self, task: TuneTask, most: int, fresh: int, left: Any) -> list[Any]:
            self.now += each_s - 1.0
            return [SimpleNamespace(verdict=None, **vars(one)) for one in super().first_trials(task, most, fresh, left)]

        def confirm(self, task: TuneTask, trials: Sequence[Any], left: Any) -> list[Any]:
            confirming.append(left() * (len(tasks) - len(confirming)))
            return []

    evaluator: Any = Slow()
    baselines = BaselineTimes(evaluator, Notes(Store(tmp_path)), target(), "p", 0)
    for task in tasks:
        baselines.note(task.region.id, 1000)

    def until(end_s: float) -> Callable[[], float]:
        return lambda: end_s - evaluator.now

    scheduler = TaskScheduler(
        RunTrials(tasks, JobMaker(target())), evaluator, baselines, "dram", *map(until, (50, 75, 100))
    )
    scheduler.try_first_candidates(1000)
    scheduler.confirm(tasks)
    used = 10 * each_s
    assert confirming[0] == pytest.approx(min(75.0 - used, 100.0 - used - FINISH_TIMES * used))


def of_rows(rows: int) -> TuneTask:
    space = Space(linear_region(rows=rows), [rows_template()], target())
    return TuneTask(region=space.region, space=space, advice=Advice(label="none"), residency="dram", floor_ns=1.0)


def test_pytorchs_time_of_an_untried_region_is_estimated_from_tried_ones_of_its_phase(tmp_path: Path) -> None:
    one, other = of_rows(64), of_rows(128)
    baselines = BaselineTimes(None, Notes(Store(tmp_path)), target(), "p", 0)  # type: ignore[arg-type]
    baselines.note(one.region.id, 3000)
    trials = RunTrials([one, other], JobMaker(target()))
    tuner: Any = None
    scheduler = TaskScheduler(trials, tuner, baselines, "dram", lambda: 1.0, estimate=lambda region: 1000.0)
    assert scheduler.fallback_ns(other.region) == 1000.0
    trials.put(one.region.id, [])
    assert scheduler.fallback_ns(one.region) == 3000.0
    assert scheduler.fallback_ns(other.region) == 3000.0, "three times the estimate, as of the other"


def test_a_search_that_is_short_of_time_estimates_what_pytorch_takes_where_nothing_serves(tmp_path: Path) -> None:
    tried, unserved = of_rows(64), of_rows(128).region
    evaluator: Any = AttemptEvaluator()
    measured = list[str]()

    def of(found: dict[str, int], seconds: float) -> float:
        baselines: Any = SimpleNamespace(
            has=lambda region: region.id in found, of=lambda region, _: measured.append(region.id) or found[region.id]
        )
        evaluator.now = 0.0
        trials = RunTrials([tried], JobMaker(target()))
        scheduler = TaskScheduler(
            trials, evaluator, baselines, "dram", lambda: seconds - evaluator.now, estimate=lambda region: 1000.0
        )
        scheduler.try_first_candidates(1)
        return scheduler.fallback_ns(unserved)

    assert of({tried.region.id: 3000}, 1.0) == 3000.0, "three times the estimate"
    assert unserved.id not in measured
    assert of({tried.region.id: 3000, unserved.id: 7000}, 1.0) == 7000.0, "it is known"
    assert of({tried.region.id: 3000, unserved.id: 7000}, 100.0) == 7000.0


class Searcher(AttemptEvaluator):
    """Finds nothing, and keeps which regions it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.searched, self.confirmed = list[str](), list[str]()

    def search(self, task: TuneTask, *_: object) -> list[Any]:
        self.searched.append(task.region.id)
        return []

    def confirm(self, task: TuneTask, *_: object) -> list[Any]:
        self.confirmed.append(task.region.id)
        return []


def test_an_untried_region_may_be_searched_and_one_without_trials_is_not_confirmed(tmp_path: Path) -> None:
    tried, untried = of_rows(64), of_rows(128)
    evaluator: Any = Searcher()
    baselines = BaselineTimes(evaluator, Notes(Store(tmp_path)), target(), "p", 0)
    baselines.note(tried.region.id, 3000)
    trials = RunTrials([tried, untried], JobMaker(target()))
    trials.put(tried.region.id, [runs.trial()])
    scheduler = TaskScheduler(trials, evaluator, baselines, "dram", lambda: 9.0, estimate=lambda region: 1000.0)
    scheduler.confirm([tried, untried])
    assert evaluator.confirmed == [tried.region.id]
    assert untried.region.id not in trials.by_region, "it still counts as untried"
    assert scheduler.fallback_ns(untried.region) == 3000.0
    scheduler.search([untried], 100, None)  # type: ignore[arg-type]
    assert untried.region.id not in trials.by_region, "nor does a search that found nothing make it a tried one"
    evaluator.search = lambda task, *_: evaluator.searched.append(task.region.id) or [runs.trial()]
    baselines.note(untried.region.id, 4000)
    scheduler.search([tried, untried], 100, None)  # type: ignore[arg-type]
    assert set(evaluator.searched) == {tried.region.id, untried.region.id}


@pytest.mark.parametrize(
    ("first_s", "left_s"), [(1.0, 50.0), (20.0, 45.0), (60.0, -15.0)], ids=["quiet", "busy", "busier"]
)
def test_a_search_leaves_the_time_in_which_finalists_are_confirmed(
    tmp_path: Path, first_s: float, left_s: float
) -> None:
    one, found = of_rows(64), list[float]()
    evaluator: Any = Searcher()
    evaluator.search = lambda *asked: found.append(asked[-1]()) or []
    baselines = BaselineTimes(evaluator, Notes(Store(tmp_path)), target(), "p", 0)
    baselines.note(one.region.id, 3000)
    scheduler = TaskScheduler(
        RunTrials([one], JobMaker(target())), evaluator, baselines, "dram", lambda: 50.0 + first_s - evaluator.now,
        lambda: 75.0 + first_s - evaluator.now,
    )  # fmt: skip
    evaluator.first_trials = lambda *_: setattr(evaluator, "now", first_s) or [runs.trial()]
    scheduler.try_first_candidates(1)
    scheduler.search([one], 100, None)  # type: ignore[arg-type]
    assert found == [pytest.approx(max(0.0, min(left_s, 75.0 - 1.5 * first_s)))]


@pytest.mark.parametrize(
    ("accept_s", "steps_s", "left_s", "said"),
    [(0.0, 0.0, 127.0, ""), (0.0, 60.0, 72.0, ""), (0.0, 300.0, 0.0, "330 s"), (30.0, 60.0, 60.0, "")],
)
def test_a_search_leaves_the_time_in_which_a_plan_is_accepted_and_timed_and_says_so_when_there_is_none(
    tmp_path: Path, accept_s: float, steps_s: float, left_s: float, said: str
) -> None:
    one, found, told = of_rows(64), list[float](), list[Event]()
    evaluator: Any = Searcher()
    evaluator.search = lambda *asked: found.append(asked[-1]()) or []
    baselines = BaselineTimes(evaluator, Notes(Store(tmp_path)), target(), "p", 0)
    baselines.note(one.region.id, 3000)
    asked = list[tuple[dict[str, float], float]]()

    def finishing(best: Any, fallback: Any, accepted: Any) -> Finishing:
        asked.append((dict(best), fallback(one.region)))
        assert not accepted
        return Finishing(accept_s=accept_s, steps_s=steps_s)

    left = [lambda: 200.0 - evaluator.now] * 3
    scheduler = TaskScheduler(
        RunTrials([one], JobMaker(target())), evaluator, baselines, "dram", *left, emit=told.append, finishing=finishing
    )
    evaluator.first_trials = lambda *_: setattr(evaluator, "now", 20.0) or [runs.trial()]
    scheduler.try_first_candidates(1)
    scheduler.search([one], 100, None)  # type: ignore[arg-type]
    assert found == [pytest.approx(left_s)]
    assert asked[0][1] == 3000, "by what PyTorch takes now"
    warned = [event.text for event in told if isinstance(event, Warned)]
    assert bool(warned) == bool(said)
    assert all(said in text and "150 s more" in text for text in warned)


def test_a_trial_that_a_person_asked_for_takes_no_first_candidates_from_its_region(tmp_path: Path) -> None:
    one, other = of_rows(64), of_rows(128)
    evaluator: Any = AttemptEvaluator()
    baselines = BaselineTimes(evaluator, Notes(Store(tmp_path)), target(), "p", 0)
    for task in (one, other):
        baselines.note(task.region.id, 3000)
    trials = RunTrials([one, other], JobMaker(target()))
    trials.put(one.region.id, [runs.trial()])
    scheduler = TaskScheduler(trials, evaluator, baselines, "dram", lambda: 9.0)
    scheduler.try_first_candidates(100)
    assert evaluator.tried == [one.region.id, other.region.id]
    assert len(trials.of(one.region.id)) == 2
