"""Shares and gains of a ladder: every gain has an owner, and the owners sum to the whole."""

from __future__ import annotations

import pytest
from agentcompile.bench.harness.looks import Looked, PartTime, numbers_in, ranges
from agentcompile.bench.harness.result import Gain
from agentcompile.bench.ladder.gains import REST, gain, shares
from hypothesis import given
from hypothesis import strategies as st


def part(kind: str, ns: float, covers: str, sites: int = 1) -> PartTime:
    return PartTime(kind=kind, ns=ns, sites=sites, covers=covers)


APART = Looked(
    token_ns=1000,
    parts=(part("rmsnorm", 100, "0"), part("linear", 200, "1"), part("linear", 300, "2"), part("attention", 300, "3")),
)
FUSED = Looked(token_ns=500, parts=(part("rmsnorm-linear", 250, "0-2"), part("attention", 200, "3")))


def owners(found: Gain) -> dict[str, tuple[float, float]]:
    return {one.name: (pytest.approx(one.before_s), pytest.approx(one.after_s)) for one in found.owners}  # type: ignore[misc]


def test_numbers_are_written_as_runs_and_read_back() -> None:
    assert ranges([4, 3, 9, 0, 3]) == "0,3-4,9"
    assert numbers_in("0,3-4,9") == {0, 3, 4, 9}
    assert (ranges([]), numbers_in("")) == ("", frozenset())


@given(st.sets(st.integers(0, 400)))
def test_any_numbers_come_back(numbers: set[int]) -> None:
    assert numbers_in(ranges(sorted(numbers))) == numbers


def test_shares_are_by_kind_largest_first_and_what_is_left_is_between_the_regions() -> None:
    found, rest = shares(APART)
    assert [(one.kind, one.sites, one.share) for one in found] == [
        ("linear", 2, 0.5),
        ("attention", 1, 0.3),
        ("rmsnorm", 1, 0.1),
    ]
    assert rest == pytest.approx(0.1)


def test_nothing_is_shared_out_where_nobody_looked() -> None:
    assert shares(Looked(reason="no")) == ((), 0.0)


def test_regions_that_were_fused_are_compared_with_what_they_are_made_of() -> None:
    found = gain("below", 1.0, 0.5, APART, FUSED, "templates")
    assert owners(found) == {"rmsnorm-linear": (0.6, 0.25), "attention": (0.3, 0.2)}
    assert (found.rest.name, found.rest.before_s, found.rest.after_s) == (REST, pytest.approx(0.1), pytest.approx(0.05))


def test_regions_that_overlap_crosswise_are_one_owner() -> None:
    before = Looked(token_ns=10, parts=(part("a-b", 4, "0-1"), part("c", 2, "2"), part("d", 1, "3")))
    after = Looked(token_ns=10, parts=(part("a", 1, "0"), part("b-c", 2, "1-2"), part("d", 3, "3")))
    found = gain("below", 10.0, 10.0, before, after, "x")
    assert owners(found) == {"a + b-c": (6.0, 3.0), "d": (1.0, 3.0)}
    assert [one.gain_s for one in found.owners] == [pytest.approx(3.0), pytest.approx(-2.0)]


def test_a_look_on_a_slower_moment_counts_by_its_shares_of_the_rounds_time() -> None:
    slow = Looked(token_ns=2 * APART.token_ns, parts=tuple(part(p.kind, 2 * p.ns, p.covers) for p in APART.parts))
    assert gain("below", 1.0, 0.5, slow, FUSED, "x") == gain("below", 1.0, 0.5, APART, FUSED, "x")


def test_a_part_that_stands_for_nothing_known_is_an_owner_by_itself() -> None:
    before = Looked(token_ns=10, parts=(part("section", 5, ""), part("other", 1, "")))
    after = Looked(token_ns=10, parts=(part("a", 1, "0"),))
    found = gain("below", 1.0, 1.0, before, after, "x")
    assert owners(found) == {"section": (0.5, 0.0), "other": (0.1, 0.0), "a": (0.0, 0.1)}


@pytest.mark.parametrize("silent", [None, Looked(reason="it cannot say")])
def test_where_one_of_two_rungs_cannot_say_the_change_itself_owns_the_gain(silent: Looked | None) -> None:
    for before, after in ((silent, FUSED), (APART, silent)):
        found = gain("below", 3.0, 2.0, before, after, "a static cache")
        assert owners(found) == {"a static cache": (3.0, 2.0)}
        assert found.rest.gain_s == 0


LOOKS = st.builds(
    lambda times, runs: Looked(
        token_ns=sum(times) + 1.0,
        parts=tuple(
            part(f"kind{at % 3}", ns, f"{first}-{first + length}")
            for at, (ns, (first, length)) in enumerate(zip(times, runs, strict=False))
        ),
    ),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=8, max_size=8),
)


@given(LOOKS, LOOKS, st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_owners_and_rest_always_sum_to_the_whole_gain(
    before: Looked, after: Looked, before_s: float, after_s: float
) -> None:
    found = gain("below", before_s, after_s, before, after, "x")
    total = sum(one.gain_s for one in (*found.owners, found.rest))
    assert total == pytest.approx(before_s - after_s, abs=1e-9)
    assert sum(one.before_s for one in (*found.owners, found.rest)) == pytest.approx(before_s)
    assert sum(one.after_s for one in (*found.owners, found.rest)) == pytest.approx(after_s)
