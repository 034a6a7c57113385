"""Which launches may overlap: whatever is read early was written before the last launch that overlaps nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcompile.runtime.overlap import CallAccess, overlapping

NAMES = ("position", "cache", "x", "y", "w")


def call(early: str = "", writes: str = "", *, waits: bool = True) -> CallAccess:
    return CallAccess(early=frozenset(early.split()), writes=frozenset(writes.split()), waits=waits)


def test_a_launch_that_reads_nothing_early_overlaps() -> None:
    assert overlapping([call(writes="x"), call(writes="y")], ()) == [True, True]


def test_a_launch_outside_dependent_launch_overlaps_nothing() -> None:
    assert overlapping([call(writes="x", waits=False), call(early="y")], ()) == [False, True]


def test_at_the_start_of_a_step_only_what_never_changes_may_be_read_early() -> None:
    assert overlapping([call(early="position")], ("w",)) == [False]
    assert overlapping([call(early="w")], ("w",)) == [True]


def test_what_was_written_since_makes_a_boundary_and_a_boundary_clears_it() -> None:
    step = [
        call(writes="table"),
        call(early="position table", writes="cache.0"),
        call(writes="x"),
        call(early="position table", writes="cache.1"),
        call(early="x"),
        call(early="x cache.0"),
    ]
    assert overlapping(step, ()) == [True, False, True, True, False, True]


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES[:-1])), st.booleans()), max_size=12
    )
)
def test_the_last_writer_of_what_is_read_early_has_ended(drawn: list[tuple[set[str], set[str], bool]]) -> None:
    calls = [
        CallAccess(early=frozenset(early), writes=frozenset(writes), waits=waits) for early, writes, waits in drawn
    ]
    step = overlapping(calls, ("w",))
    # Two steps, one after another: the second's first launches must not read early what the first's last ones wrote.
    twice, flags = calls * 2, step * 2
    for at, (one, overlaps) in enumerate(zip(twice, flags, strict=True)):
        if not overlaps:
            continue
        boundary = max((i for i in range(at) if not flags[i]), default=None)
        for name in one.early - {"w"}:
            writers = [i for i in range(at) if name in twice[i].writes]
            assert boundary is not None
            assert not writers or writers[-1] < boundary or (at < len(calls) and not writers)
