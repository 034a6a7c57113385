"""Items of a review: what an approval covers, what makes it stale, and what nobody can select."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcompile.control.commands import (
    Approve,
    ApproveSafe,
    Command,
    Edit,
    Override,
    Reject,
    RejectRest,
    Rerun,
    Undo,
    WriteLock,
)
from agentcompile.control.deciding import RefusedError, answer
from agentcompile.control.review import items, open_items
from agentcompile.events import Decided, PlanAdmitted, RunStarted, StageStarted, TrialFinished
from agentcompile.ir.trial import Crashed, Decision
from agentcompile.runs.progress import State, apply, fold
from tests.unit import runs
from tests.unit.reviewed import EVENTS, PLAN, REGIONS, SEARCHED, kernel, point, trial


@pytest.fixture
def state() -> State:
    return fold(EVENTS)


def after(state: State, *commands: Command, live: bool = False) -> State:
    """The state once these commands were obeyed."""
    for command in commands:
        events, _ = answer(state, command, live=live)
        state = fold(events, state)
    return state


def refused(state: State, command: Command, *, live: bool = False) -> str:
    with pytest.raises(RefusedError) as caught:
        answer(state, command, live=live)
    return str(caught.value)


def standings(state: State) -> dict[str, str]:
    return {item.name.partition("@")[0]: item.standing for item in items(state)}


def use(name: str, rows: int, reason: str = "because") -> Override:
    return Override(region=REGIONS[name], candidate=point(name, rows).id, reason=reason)


def test_a_review_asks_for_every_region_with_a_kernel_and_no_other(state: State) -> None:
    assert standings(state) == {"linear": "undecided", "add": "undecided", "rmsnorm": "undecided"}
    assert state.status == "review"
    assert [item.safe for item in items(state)] == [True, True, False]


def test_an_approval_holds_while_nothing_changes(state: State) -> None:
    approved = after(state, Approve(region=REGIONS["linear"]))
    assert standings(approved)["linear"] == "approved"
    assert refused(approved, Approve(region=REGIONS["linear"])) == "It is approved already."


@pytest.mark.parametrize(
    "later",
    [
        TrialFinished(trial=trial("linear", 4, 0.6, fidelity="confirm")),
        TrialFinished(trial=replace(trial("linear", fidelity="confirm"), source="another")),
        TrialFinished(trial=trial("linear", fidelity="confirm", verdict=Crashed(stage="validate", signal=11))),
    ],
    ids=["measurement", "source", "checks"],
)
def test_any_change_of_what_was_seen_makes_an_approval_stale(state: State, later: TrialFinished) -> None:
    approved = after(state, Approve(region=REGIONS["linear"]))
    assert standings(apply(approved, later))["linear"] == "stale"


def test_another_kernel_in_the_plan_makes_an_approval_stale(state: State) -> None:
    approved = after(state, Approve(region=REGIONS["linear"]))
    other = replace(PLAN, parts=(replace(PLAN.parts[0], choice=kernel("linear", 8)), *PLAN.parts[1:]))
    changed = apply(approved, PlanAdmitted(plan=other))
    (item, *_) = items(changed)
    assert (item.standing, item.why != "") == ("stale", True)
    assert REGIONS["linear"] in [item.region for item in open_items(changed)]


def test_an_approval_of_a_screen_that_is_out_of_date_is_refused(state: State) -> None:
    shown = items(state)[0].approval
    changed = apply(state, TrialFinished(trial=trial("linear", 4, 0.7, fidelity="confirm")))
    assert "has changed since it was shown" in refused(changed, Approve(region=REGIONS["linear"], approval=shown))
    assert standings(after(state, Approve(region=REGIONS["linear"], approval=shown)))["linear"] == "approved"


@pytest.mark.parametrize(("rows", "why"), [(16, "incorrect"), (32, "cancelled"), (64, "never measured")])
def test_what_failed_or_was_never_evaluated_cannot_be_selected_by_anyone(state: State, rows: int, why: str) -> None:
    for live in (True, False):
        assert why in refused(state, use("linear", rows), live=live)


def test_a_kernel_that_failed_later_cannot_be_approved(state: State) -> None:
    failed = apply(
        state, TrialFinished(trial=trial("linear", fidelity="confirm", verdict=Crashed(stage="build", signal=9)))
    )
    assert "it failed: crashed" in refused(failed, Approve(region=REGIONS["linear"]))
    assert not items(failed)[0].safe


def test_an_override_needs_a_reason_and_keeps_it(state: State) -> None:
    assert "needs a reason" in refused(state, use("linear", 8, "  "))
    chosen = after(state, use("linear", 8, "smaller"))
    decision = chosen.decisions[REGIONS["linear"]]
    assert (decision.word, decision.candidate, decision.reason) == ("override", point("linear", 8), "smaller")
    assert standings(chosen)["linear"] == "overridden"
    assert refused(state, use("linear", 4)) == "It is the chosen one already: approve it."
    assert refused(state, Override(region=REGIONS["add"], candidate=point("linear", 8).id, reason="x")) != ""


def test_an_override_outlives_the_trial_that_confirms_it_and_not_one_that_fails(state: State) -> None:
    chosen = after(state, use("linear", 8))
    confirmed = apply(chosen, TrialFinished(trial=trial("linear", 8, 0.31, fidelity="confirm")))
    assert standings(confirmed)["linear"] == "overridden"
    again = apply(chosen, TrialFinished(trial=trial("linear", 8, 0.1)))
    assert standings(again)["linear"] == "stale"
    failed = apply(chosen, TrialFinished(trial=trial("linear", 8, verdict=Crashed(stage="build", signal=9))))
    assert standings(failed)["linear"] == "stale"


def test_a_region_that_runs_in_pytorch_can_be_overridden(state: State) -> None:
    chosen = after(state, use("softmax", 8, "to compare"))
    assert standings(chosen)["softmax"] == "overridden"
    assert "nothing to decide" in refused(state, Approve(region=REGIONS["softmax"]))


def test_undo_takes_back_a_whole_decision(state: State) -> None:
    done = after(state, Approve(region=REGIONS["rmsnorm"]), ApproveSafe())
    assert standings(done) == dict.fromkeys(("linear", "add", "rmsnorm"), "approved")
    once = after(done, Undo())
    assert standings(once) == {"linear": "undecided", "add": "undecided", "rmsnorm": "approved"}
    assert standings(after(once, Undo()))["rmsnorm"] == "undecided"
    assert refused(state, Undo()) == "There is no decision to take back."


def test_undo_brings_back_the_decision_before(state: State) -> None:
    twice = after(state, Approve(region=REGIONS["linear"]), Reject(region=REGIONS["linear"], reason="no"))
    assert standings(twice)["linear"] == "rejected"
    assert standings(after(twice, Undo()))["linear"] == "approved"


def test_safe_ones_are_approved_and_the_rest_rejected_at_once(state: State) -> None:
    safe = after(state, ApproveSafe())
    assert standings(safe) == {"linear": "approved", "add": "approved", "rmsnorm": "undecided"}
    assert refused(safe, ApproveSafe()) == "No undecided region is safe to approve."
    whole = after(safe, RejectRest(reason="not sure"))
    assert whole.decisions[REGIONS["rmsnorm"]].reason == "not sure"
    assert open_items(whole) == ()
    assert refused(whole, RejectRest()) == "Every region is decided."
    assert answer(whole, WriteLock(), live=False)[0] == ()


def test_a_reviewed_lock_waits_for_every_region_and_says_for_how_many(state: State) -> None:
    left = after(state, Approve(region=REGIONS["linear"]))
    assert refused(left, WriteLock()).startswith("Not decided yet: 2 regions, 0 of them stale")
    assert "at work" in refused(left, WriteLock(), live=True)


def test_decisions_before_there_is_a_choice_are_refused() -> None:
    early = fold(SEARCHED)
    for command in (Approve(region=REGIONS["linear"]), Reject(region=REGIONS["linear"]), use("linear", 8)):
        assert "still searched" in refused(early, command, live=True)


def test_a_region_that_is_none_is_refused(state: State) -> None:
    assert "no region" in refused(state, Approve(region="e" * 64))


def test_a_rerun_forgets_the_trials_and_makes_the_approval_stale(state: State) -> None:
    approved = after(state, Approve(region=REGIONS["linear"]), Rerun(candidate=point("linear").id))
    assert standings(approved)["linear"] == "stale"
    assert point("linear") not in [one.candidate for one in approved.trials]
    row = approved.row(REGIONS["linear"])
    assert row is not None
    assert row.best is not None
    assert row.best.candidate == point("linear", 8).id, "the best of what is left"
    assert [asked.what for asked in approved.asked] == ["rerun"]
    assert refused(approved, Rerun(candidate=point("linear").id)) == "It waits to be evaluated already."
    evaluated = apply(approved, TrialFinished(trial=trial("linear", 4, 0.4)))
    assert evaluated.asked == ()


def test_an_edit_is_a_point_of_the_same_template(state: State) -> None:
    base = point("linear").id
    events, said = answer(state, Edit(candidate=base, params=(("ROWS", 2),)), live=False)
    assert events[0].point == point("linear", 2)  # type: ignore[union-attr]
    assert "linear/rows(ROWS=2)" in said
    assert "evaluated already" in refused(state, Edit(candidate=base, params=(("ROWS", 8),)))


def test_a_point_outside_the_space_is_refused_with_the_reason(state: State) -> None:
    edit = Edit(candidate=point("linear").id, params=(("ROWS", 3),))
    with pytest.raises(RefusedError, match="ROWS is one of 1, 2, 4"):
        answer(state, edit, live=True, legal=lambda candidate: "ROWS is one of 1, 2, 4")


def test_a_resumed_run_keeps_decisions_and_whole_plans(state: State) -> None:
    again = fold([runs.STARTED], after(state, ApproveSafe()))
    assert isinstance(runs.STARTED, RunStarted)
    assert (again.status, again.settled, again.plans) == ("running", True, (PLAN,))
    assert again.layouts == (("w", "packed-rows"),)
    assert standings(again)["linear"] == "approved"
    anew = apply(again, StageStarted(stage="search"))
    assert (anew.plans, anew.settled) == ((), False)


def test_plans_that_a_person_changed_stand_beside_those_that_the_step_admitted(state: State) -> None:
    other = replace(PLAN, parts=PLAN.parts[1:], step_ns=30_000)
    ruled = apply(state, PlanAdmitted(plan=other, ruled=True))
    assert (ruled.plans, ruled.final) == ((PLAN,), (other,))
    decided = apply(ruled, Decided(rulings=(Decision(region=REGIONS["add"], word="reject"),)))
    assert decided.final == (PLAN,), "another decision makes another plan"
