"""The recording of a whole space: a drifting machine, failures, stops and continuations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fakes import linear_region, rows_template, target

from agentcompile.build.binary import Binary
from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.jobs import Baseline, EvaluationJob, Prepared
from agentcompile.interchange import t4
from agentcompile.interchange.trials import pretty
from agentcompile.ir.advice import Advice
from agentcompile.ir.timing import Timing
from agentcompile.ir.trial import BuildFailed, Crashed, Disturbed, Measured, Verdict
from agentcompile.measure import POLICY
from agentcompile.space import Space
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.tasks import TuneTask
from bench.ablation.measuring import AGAIN_ROUNDS, AGAIN_WITHIN, BATCH, Recorder, Whole
from bench.ablation.spaces import read_space
from bench.harness.ledger import Ledger
from tests.unit.fakes import RIGHT
from tests.unit.test_floors import timing

SPACE = Space(
    linear_region(),
    [rows_template(requires=())],
    target(),
)
TASK = TuneTask(region=SPACE.region, space=SPACE, advice=Advice(label="none"), residency="dram", floor_ns=1e9)
IDS = [one.id for one in SPACE]
TRUTH = {id: 1000.0 + 100 * at for at, id in enumerate(IDS)}


@dataclass
class Device:
    """Becomes 7 % slower with every timing; what `fails` names has no time."""

    fails: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])
    speed: float = 1.0
    timed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    batches: list[int] = field(default_factory=list[int])
    broken: int = -1
    """The arm that is given up in every timing."""
    built: list[str] = field(default_factory=list[str])
    prepared: list[str] = field(default_factory=list[str])
    lucky: Mapping[str, float] = field(default_factory=dict[str, float])
    """Times that candidates seem to have in a short timing."""

    def build(self, jobs: Iterable[EvaluationJob]) -> Iterator[EvaluationJob]:
        for job in jobs:
            self.built.append(job.candidate.id)
            yield job

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: str = "search"
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        for job in jobs:
            self.prepared.append(job.candidate.id)
            verdict = self.fails.get(job.candidate.id)
            yield job, verdict or Prepared(job=job, binary=Binary(digest="d"), report=RIGHT)

    def time(self, _region: Any, arms: Sequence[Prepared | Baseline], *, rounds: int, **_: Any) -> Timing:
        self.speed *= 1.07
        names = [arm.job.candidate.id for arm in arms if isinstance(arm, Prepared)]
        self.timed += [(name, rounds) for name in names[1:]]
        self.batches.append(len(names) - 1)
        assert isinstance(arms[0], Baseline)
        seen = TRUTH if rounds > POLICY.search_rounds else {**TRUTH, **self.lucky}
        found = timing(5000.0 * self.speed, *(seen[name] * self.speed for name in names))
        if self.broken >= 0:
            live = tuple(at for at in found.live if at != self.broken)
            gone = ((self.broken, Crashed(stage="measure", signal=11, detail="")),)
            return Timing(arms=found.arms, live=live, failed=gone, processes=found.processes, residency="dram")
        return found


def record(
    device: Device, path: Path | None = None, *, batches: int = 1000, ready: dict[str, Prepared] | None = None
) -> Whole | None:
    """Record the space; time is up after so many timings."""
    return recorder_of(device, path, batches, {} if ready is None else ready).record()


def recorder_of(device: Device, path: Path | None, batches: int, ready: dict[str, Prepared]) -> Recorder:
    return Recorder(
        task=TASK,
        evaluator=device,  # type: ignore[arg-type]
        jobs=JobMaker(target()),
        ledger=Ledger(path, ("test",)),
        say=lambda _: None,
        over=lambda: len(device.batches) >= batches,
        clock=lambda: 1.0,
        ready=ready,
    )


def times_of(whole: Whole) -> dict[str, int]:
    return {
        one.trial.candidate.id: one.trial.verdict.measurement.median_ns
        for one in whole.tried
        if isinstance(one.trial.verdict, Measured)
    }


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.ablation.measuring.BATCH", 5)


def test_a_drift_of_the_machine_does_not_change_the_ratios_of_times() -> None:
    whole = record(Device())
    assert whole is not None
    found = times_of(whole)
    best = found[IDS[0]]
    assert [one.trial.candidate.id for one in whole.tried] == IDS, "in the space's order"
    assert {id: found[id] / best for id in IDS} == pytest.approx({id: TRUTH[id] / 1000 for id in IDS}, rel=2e-3)
    assert whole.anchor == next(iter(SPACE)).label


def test_only_what_is_near_the_best_is_timed_again_with_more_rounds() -> None:
    device = Device()
    whole = record(device)
    assert whole is not None
    again = {id for id, rounds in device.timed if rounds == AGAIN_ROUNDS * POLICY.search_rounds}
    assert again == {id for id in IDS if TRUTH[id] <= AGAIN_WITHIN * 1000}
    assert whole.again == len(again)
    assert sorted(id for id, rounds in device.timed if rounds == POLICY.search_rounds) == sorted(IDS)
    assert max(device.batches) == 5
    assert BATCH > 5


def test_a_time_that_is_low_by_luck_keeps_nothing_from_a_second_timing() -> None:
    """The slowest seems to be twice as fast as the best: by its time alone nothing else would be near."""
    device = Device(lucky={IDS[-1]: 500.0})
    whole = record(device)
    assert whole is not None
    again = {id for id, rounds in device.timed if rounds > POLICY.search_rounds}
    assert {id for id in IDS if TRUTH[id] <= AGAIN_WITHIN * 1000} <= again
    assert IDS[-1] in again
    found = times_of(whole)
    assert min(found, key=found.__getitem__) == IDS[0]


def test_a_second_recording_times_everything_and_validates_only_its_anchor_again() -> None:
    ready, first, second = dict[str, Prepared](), Device(), Device()
    once, twice = record(first, ready=ready), record(second, ready=ready)
    assert once is not None
    assert twice is not None
    assert sorted(first.prepared[1:]) == sorted(IDS), "each once, also what was timed twice"
    assert second.prepared == [IDS[0]]
    assert times_of(once).keys() == times_of(twice).keys() == set(IDS)


def test_a_build_before_the_recording_builds_all_and_times_nothing() -> None:
    device = Device()
    recorder_of(device, None, 1000, {}).build(list(SPACE))
    assert device.built == IDS
    assert not device.timed
    assert not device.prepared


def test_candidates_are_timed_in_a_random_order() -> None:
    device = Device()
    record(device)
    assert [id for id, _ in device.timed[: len(IDS)]] != IDS


@pytest.mark.parametrize("stop", range(1, 4))
def test_a_stopped_recording_goes_on_and_times_nothing_twice(tmp_path: Path, stop: int) -> None:
    first, second = Device(), Device()
    assert record(first, tmp_path / "part.jsonl", batches=stop) is None
    whole = record(second, tmp_path / "part.jsonl")
    assert whole is not None
    once = [*first.timed, *second.timed]
    assert len(once) == len(set(once)) == len(IDS) + whole.again
    assert len(times_of(whole)) == len(IDS)


def test_a_line_that_was_cut_by_a_kill_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    record(Device(), path, batches=1)
    path.write_text(path.read_text()[:-40])
    whole = record(Device(), path)
    assert whole is not None
    assert len(times_of(whole)) == len(IDS)


def test_failures_are_points_of_the_space_and_read_back(tmp_path: Path) -> None:
    whole = record(
        Device(fails={IDS[3]: BuildFailed(log="no"), IDS[4]: Crashed(stage="validate", signal=8, detail="")})
    )
    assert whole is not None
    path = tmp_path / "space.json"
    path.write_bytes(pretty(t4.results("linear", whole.tried, target())))
    space = read_space(path)
    assert len(space.candidates) == len(IDS)
    assert len(space.times_ns) == len(IDS) - 2
    assert space.best_ns == times_of(whole)[IDS[0]]


def test_where_the_first_candidates_fail_another_is_the_anchor_and_where_all_do_nothing_is_recorded() -> None:
    no = BuildFailed(log="no")
    whole = record(Device(fails={IDS[0]: no, IDS[1]: no}))
    assert whole is not None
    assert whole.anchor == list(SPACE)[2].label
    assert record(Device(fails=dict.fromkeys(IDS, no))) is None


def test_what_the_machine_disturbed_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    shaken = Device(fails={IDS[5]: Disturbed(stage="validate", detail="")})
    assert record(shaken, tmp_path / "part.jsonl") is None
    whole = record(Device(), tmp_path / "part.jsonl")
    assert whole is not None
    assert IDS[5] in times_of(whole)


def test_an_anchor_that_fails_beside_others_is_an_error_of_the_machine() -> None:
    with pytest.raises(AgentCompileError, match="which was correct, failed beside others"):
        record(Device(broken=1))


def test_a_candidate_that_fails_while_it_is_timed_is_recorded_with_its_reason() -> None:
    whole = record(Device(broken=2))
    assert whole is not None
    kinds = [one.trial.verdict.kind for one in whole.tried]
    assert "crashed" in kinds
    assert "measured" in kinds
