from __future__ import annotations

import typing
from dataclasses import replace

import pytest
from runs import FOUND, KERNEL, PLAN, REGION, REPORT, STARTED, WHOLE, measured, trial

from agentcompile.events import (
    BoundaryFound,
    ChoiceMade,
    DriftFound,
    PlanAdmitted,
    Proposed,
    RoundsProgress,
    RunFailed,
    SearchProgress,
    StageStarted,
    TrialFinished,
    TrialStarted,
    Warned,
)
from agentcompile.ir.search_events import ProposalNode
from agentcompile.ir.trial import BuildFailed, Incorrect, Verdict
from agentcompile.runs.progress import WARNINGS_KEPT, Counts, State, apply, fold


def test_a_whole_run_folds_to_its_result() -> None:
    state = fold(WHOLE)
    (row,) = state.rows
    assert (state.status, state.model, state.stage) == ("finished", "sample", None)
    assert [(stage.stage, stage.seconds) for stage in state.stages] == [("capture", 1.5), ("search", 3.0)]
    assert (row.state, row.choice, row.points, row.refused, row.running) == ("chosen", KERNEL, 40, 8, "")
    assert row.best is not None
    assert row.best.confirmed
    assert row.best.ratio == pytest.approx(1.6487, abs=1e-3)
    assert state.plans == (PLAN,)
    assert state.lock is not None


def test_applying_an_event_leaves_the_old_state_alone() -> None:
    before = fold(WHOLE[:5])
    copy = replace(before)
    apply(before, TrialFinished(trial=trial()))
    assert before == copy


def test_a_plan_that_is_admitted_again_stays_in_its_place() -> None:
    first = replace(PLAN, disturbed=0.9)
    prompt = replace(PLAN, regime=replace(PLAN.regime, phase="prefill"), step_ns=0)
    state = fold([STARTED, *(PlanAdmitted(plan=plan) for plan in (first, prompt, PLAN))])
    assert state.plans == (PLAN, prompt)


def test_the_running_stage_is_the_last_that_began() -> None:
    assert fold([STARTED, StageStarted(stage="capture"), StageStarted(stage="search")]).stage == "search"


def test_every_verdict_is_counted_under_its_name() -> None:
    kinds = [typing.get_args(typing.get_type_hints(cls)["kind"])[0] for cls in typing.get_args(Verdict)]
    assert {kind.replace("-", "_") for kind in kinds} | {"reused"} == set(Counts.__dataclass_fields__)


def test_trials_are_counted_by_verdict() -> None:
    verdicts = (measured(), BuildFailed(log="x"), Incorrect(report=REPORT))
    state = fold([STARTED, FOUND, *(TrialFinished(trial=trial(i, v)) for i, v in enumerate(verdicts))])
    assert state.counts == Counts(measured=1, build_failed=1, incorrect=1)
    assert state.counts.total == 3


def test_a_trial_that_is_told_twice_counts_once() -> None:
    state = fold([STARTED, FOUND, TrialFinished(trial=trial()), TrialFinished(trial=trial(reused=True))])
    assert state.counts.total == 1


def test_a_confirmed_number_outranks_a_faster_search_number() -> None:
    lucky = TrialFinished(trial=trial(1, measured(0.9)))
    sober = TrialFinished(trial=trial(2, measured(0.4), fidelity="confirm"))
    for order in ([lucky, sober], [sober, lucky]):
        best = fold([STARTED, FOUND, *order]).rows[0].best
        assert best is not None
        assert best.label == "linear/rows(ROWS=2)"


def test_a_later_confirmation_of_the_same_candidate_replaces_the_first() -> None:
    first, second = (TrialFinished(trial=trial(1, measured(r), fidelity="confirm")) for r in (0.9, 0.1))
    best = fold([STARTED, FOUND, first, second]).rows[0].best
    assert best is not None
    assert best.measurement.log_ratio == 0.1


def test_a_resumed_run_keeps_trials_and_choices_and_finds_its_regions_again() -> None:
    before = fold(WHOLE[:13])
    after = fold([STARTED, FOUND], before)
    assert after.resumed == 1
    assert after.stages == ()
    assert after.trials == before.trials
    assert (after.rows[0].counts, after.rows[0].best) == (before.rows[0].counts, before.rows[0].best)
    assert after.rows[0].choice == KERNEL


def test_a_resumed_run_keeps_what_was_proposed_for_a_region_that_it_finds_again() -> None:
    nodes = (ProposalNode(candidate="c", origin="order"),)
    proposals = [Proposed(region=REGION, strategy="halving", rounds=rounds, nodes=nodes) for rounds in (5, 10)]
    assert fold([STARTED, FOUND, *proposals, STARTED, FOUND]).rows[0].proposed == tuple(proposals)


def test_a_resumed_run_that_searches_nothing_keeps_what_its_search_took() -> None:
    told = SearchProgress(
        elapsed_s=60.0, budget_s=0.0, candidates=9, step_ns=1, measured=True, rounds=9, disturbed=0.0, overhead_s=1.5
    )
    assert fold([*WHOLE, told, STARTED]).pace == told


def test_rounds_show_on_the_row_that_runs() -> None:
    start = TrialStarted(region=REGION, candidate="c", label="linear/rows(ROWS=4)")
    state = fold([STARTED, FOUND, start, RoundsProgress(region=REGION, done=3, total=9)])
    assert (state.rows[0].running, state.rows[0].rounds) == ("linear/rows(ROWS=4)", (3, 9))


def test_a_choice_for_an_unknown_region_changes_nothing() -> None:
    state = fold([STARTED, ChoiceMade(region="b" * 64, choice=KERNEL)])
    assert state.rows == ()


def test_a_failure_is_kept_with_its_exit_code() -> None:
    state = fold([STARTED, RunFailed(exit_code=6, message="disk full", hint="free some space")])
    assert state.status == "failed"
    assert state.failure is not None
    assert state.failure.exit_code == 6


def test_boundaries_and_drift_are_listed_and_warnings_are_bounded() -> None:
    boundary = BoundaryFound(op="aten.x", reason="alias", detail="d")
    drift = DriftFound(field="target.threads", locked="2", here="4", grade="remeasure", remedy="--threads 2")
    state = fold([STARTED, boundary, drift, *(Warned(text=str(i)) for i in range(WARNINGS_KEPT + 5))])
    assert (state.boundaries, state.drift) == ((boundary,), (drift,))
    assert (len(state.warnings), state.warnings[-1]) == (WARNINGS_KEPT, str(WARNINGS_KEPT + 4))


def test_a_run_that_has_not_begun_is_waiting() -> None:
    assert State().status == "waiting"
