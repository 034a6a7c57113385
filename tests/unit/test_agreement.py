"""How far two recordings of one space agree."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agentcompile.errors import AgentCompileError
from bench.ablation.agreement import agreement
from bench.ablation.documents import Failure
from bench.ablation.spaces import RecordedSpace


def space(outcomes: Mapping[str, float | Failure]) -> RecordedSpace:
    return RecordedSpace(name="some", device="", digest="", domains=(), candidates=(), outcomes=outcomes)


TIMES = {"a": 100.0, "b": 104.0, "c": 200.0, "d": 300.0}
FAILED = Failure(kind="runtime", text="no")


def test_equal_recordings_differ_in_nothing() -> None:
    assert agreement(space(TIMES), space(TIMES)) == (
        "some: 4 points timed in both, 0 and 0 in one; median difference 0.0 %, 95th percentile 0.0 %; the same best; "
        "2 of 2 within 5 % of the best in both"
    )


def test_a_difference_is_over_the_lesser_time_whichever_recording_has_it() -> None:
    slower, faster = {id: 1.1 * ns for id, ns in TIMES.items()}, {id: ns / 1.1 for id, ns in TIMES.items()}
    for other in (slower, faster):
        assert "median difference 10.0 %, 95th percentile 10.0 %" in agreement(space(TIMES), space(other))


def test_another_best_is_named_with_what_it_takes_in_the_first() -> None:
    said = agreement(space(TIMES), space({**TIMES, "b": 90.0, "a": 99.0}))
    assert "another best, 4.0 % slower in the first" in said
    assert "1 of 2 within 5 % of the best in both" in said


def test_a_point_that_failed_once_is_counted_and_not_compared() -> None:
    said = agreement(space({**TIMES, "d": FAILED}), space({**TIMES, "c": FAILED}))
    assert "2 points timed in both, 1 and 1 in one; median difference 0.0 %" in said


def test_a_best_that_failed_in_the_first_has_no_time_to_tell() -> None:
    assert "; another best; " in agreement(space({**TIMES, "a": FAILED}), space(TIMES))


@pytest.mark.parametrize(
    ("other", "why"), [({"a": 1.0}, "has other points"), (dict.fromkeys(TIMES, FAILED), "fewer than two")]
)
def test_what_cannot_be_compared_is_refused(other: Mapping[str, float | Failure], why: str) -> None:
    with pytest.raises(AgentCompileError, match=why):
        agreement(space(TIMES), space(other))
