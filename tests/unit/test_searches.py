"""The fold of a search: its curve, its tree with visits and values, its rungs, and where its proposals came from."""

from __future__ import annotations

import gc
import time

import pytest

from agentcompile.events import Event, Proposed, TrialFinished
from agentcompile.ir.search_events import Transformation
from agentcompile.ir.trial import Impossible, Trial
from agentcompile.runs.progress import fold
from agentcompile.runs.searches import Curve, Search, search_of
from tests.unit import runs, searched
from tests.unit.searched import CANCELLED, DISTURBED, UNBUILT, WRONG, node, point, proposed, trial

ROOT, LEFT, RIGHT, LEAF = point(1, 1), point(2, 1), point(4, 1), point(2, 2)
STEP = Transformation(change="parameter", name="ROWS", value="2")
GROWN = (
    proposed(node(ROOT, "advised")),
    proposed(node(LEFT, "changed", ROOT, STEP), node(RIGHT, "changed", ROOT)),
    proposed(node(LEAF, "crossed", LEFT)),
)
BAD_TIME = Impossible(report=runs.REPORT, measurement=runs.measured(3.0).measurement, floor_ns=900)


def of(*trials: Trial, proposals: tuple[Proposed, ...] = GROWN, best: str = "") -> Search:
    return search_of(trials, proposals, best)


def folded(events: list[Event]) -> Search:
    trials = [event.trial for event in events if isinstance(event, TrialFinished)]
    return search_of(trials, [event for event in events if isinstance(event, Proposed)])


def test_nothing_was_searched_yet() -> None:
    assert search_of((), ()) == Search()
    assert not Search().branched


def test_the_curve_holds_the_best_so_far_and_where_candidates_failed() -> None:
    found = of(trial(ROOT, verdict=WRONG), trial(LEFT, 1.2), trial(RIGHT, 1.1), trial(LEAF, 1.5), proposals=())
    assert found.curve.best == pytest.approx((0.0, 1.2, 1.2, 1.5))
    assert found.curve.failed == (0,)
    assert found.curve.unknown == ()


@pytest.mark.parametrize("verdict", [DISTURBED, CANCELLED, BAD_TIME])
def test_what_says_nothing_of_a_candidate_is_no_failure_and_no_speed(verdict: object) -> None:
    found = of(trial(ROOT, 1.4), trial(LEFT, verdict=verdict))  # type: ignore[arg-type]
    assert found.curve.best == pytest.approx((1.4, 1.4))
    assert (found.curve.failed, found.curve.unknown) == ((), (1,))
    assert (found.nodes[LEFT.id].visits, found.nodes[LEFT.id].value) == (0, 0.0)
    assert found.nodes[ROOT.id].visits == 1


def test_a_candidate_that_is_timed_again_counts_once_with_what_is_known_best() -> None:
    again = of(trial(ROOT, 1.9), trial(LEFT, 1.5), trial(ROOT, 1.3))
    assert again.curve.best == pytest.approx((1.3, 1.5))
    confirmed = of(trial(ROOT, 1.2, fidelity="confirm"), trial(ROOT, 1.9))
    assert confirmed.curve.best == pytest.approx((1.2,))
    kept = of(trial(ROOT, 1.2), trial(ROOT, verdict=DISTURBED))
    assert kept.curve == Curve(best=kept.curve.best)
    assert kept.curve.best == pytest.approx((1.2,))
    failed = of(trial(ROOT, 1.2), trial(ROOT, verdict=WRONG))
    assert (failed.curve.best, failed.curve.failed) == ((0.0,), (0,))


def test_visits_and_values_are_of_whole_subtrees_where_a_failure_counts_as_none() -> None:
    found = of(trial(ROOT, 1.0), trial(LEFT, 1.2), trial(RIGHT, verdict=UNBUILT), trial(LEAF, 1.6))
    assert {one.id: found.nodes[one.id].visits for one in (ROOT, LEFT, RIGHT, LEAF)} == {
        ROOT.id: 4, LEFT.id: 2, RIGHT.id: 1, LEAF.id: 1,
    }  # fmt: skip
    assert found.nodes[LEFT.id].value == pytest.approx(1.4)
    assert found.nodes[RIGHT.id].value == 0.0
    assert found.nodes[ROOT.id].value == pytest.approx((1.0 + 1.2 + 0.0 + 1.6) / 4)
    assert found.nodes[ROOT.id].best == pytest.approx(1.6)
    assert found.nodes[ROOT.id].children == (LEFT.id, RIGHT.id)
    assert found.roots == (ROOT.id,)
    assert found.branched


def test_a_node_that_waits_for_its_verdict_has_no_visit() -> None:
    found = of(trial(ROOT, 1.1), trial(LEFT, 1.2))
    assert found.nodes[LEAF.id].visits == 0
    assert found.nodes[ROOT.id].visits == 2
    assert found.path == (ROOT.id, LEFT.id)


def test_the_best_path_leads_to_the_fastest_or_to_the_one_that_counts_as_it() -> None:
    trials = (trial(ROOT, 1.0), trial(LEFT, 1.2), trial(RIGHT, 1.5), trial(LEAF, 1.6))
    assert of(*trials).path == (ROOT.id, LEFT.id, LEAF.id)
    confirmed = of(*trials, best=RIGHT.id)
    assert confirmed.path == (ROOT.id, RIGHT.id)
    assert confirmed.nodes[ROOT.id].children[0] == RIGHT.id
    assert of(*trials, best="not proposed").path == (ROOT.id, LEFT.id, LEAF.id)
    assert of().path == ()


def test_a_parent_that_did_not_come_before_its_child_is_none() -> None:
    circle = (proposed(node(LEFT, "changed", RIGHT), node(RIGHT, "changed", LEFT), node(LEAF, "changed", LEAF)),)
    found = of(trial(RIGHT), proposals=circle)
    assert [found.nodes[one.id].parent for one in (LEFT, RIGHT, LEAF)] == ["", LEFT.id, ""]


def test_a_proposal_to_time_a_candidate_again_is_counted_and_moves_no_node() -> None:
    again = proposed(node(LEAF, "timed-again"), rounds=10)
    found = of(trial(LEAF), proposals=(*GROWN, again))
    assert found.nodes[LEAF.id].parent == LEFT.id
    assert found.nodes[LEAF.id].node.origin == "crossed"
    assert found.origins == {"advised": 1, "changed": 2, "crossed": 1, "timed-again": 1}
    assert [(rung.rounds, len(rung.proposed), rung.survivors) for rung in found.rungs] == [
        (5, 4, (LEAF.id,)), (10, 1, ()),
    ]  # fmt: skip


def test_the_rungs_of_halving_say_how_many_failed_and_who_survived() -> None:
    found = folded(searched.halving())
    assert [(rung.rounds, len(rung.proposed), len(rung.survivors), rung.failed) for rung in found.rungs] == [
        (5, 24, 12, 4), (10, 12, 6, 0), (20, 6, 0, 0),
    ]  # fmt: skip
    assert set(found.rungs[0].survivors) == set(found.rungs[1].proposed)
    assert not found.branched
    assert found.strategy == "halving"


def test_a_run_from_before_proposals_were_recorded_has_its_curve() -> None:
    found = folded(searched.unrecorded())
    assert len(found.curve.best) == 29
    assert (found.nodes, found.rungs, found.origins, found.strategy) == ({}, (), {}, "")


def test_the_state_of_a_run_holds_what_the_fold_needs() -> None:
    state = fold(searched.run(searched.tree(40)))
    row = state.row(runs.REGION)
    assert row is not None
    found = search_of(state.trials, row.proposed)
    assert len(found.nodes) == 40
    assert sum(found.nodes[root].visits for root in found.roots) == len(found.tried) - len(found.curve.unknown)


def test_two_thousand_trials_are_folded_at_once() -> None:
    """A screen folds a region's search anew when something of it came, twice a second at most.

    Time on the processor is taken, without the collector, which the app keeps from walking its heap as often.
    """
    points = [point(rows, vec) for rows in range(1, 101) for vec in range(1, 21)]
    proposals = [proposed(node(points[0]))]
    proposals += [proposed(node(one, "changed", points[at // 2])) for at, one in enumerate(points[1:])]
    trials = [trial(one, 1 + at % 7 / 10) for at, one in enumerate(points)]
    took = []
    gc.disable()
    try:
        for _ in range(5):
            begin = time.process_time()
            found = search_of(trials, proposals)
            took.append(time.process_time() - begin)
    finally:
        gc.enable()
    assert found.nodes[points[0].id].visits == 2_000
    assert min(took) < 0.050
