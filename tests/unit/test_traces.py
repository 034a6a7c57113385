"""Transformations of points: every one in a menu is legal and exactly that change, and a trace replays to its end."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agentcompile.ir.codec import decode, encode
from agentcompile.ir.search_events import ProposalNode, Transformation
from agentcompile.ir.template import Candidate, Param
from agentcompile.search.points import Points
from agentcompile.search.traces import menu, replayed, trace_between, transformed
from agentcompile.space import Space
from tests.unit.fakes import linear_region, rows_template, target


@functools.cache
def whole() -> tuple[Candidate, ...]:
    """Two templates that share a number and a text; each has a parameter that the other has not."""
    number = Param(name="A", domain=(1, 2, 4, 16), default=1, about="a number")
    text = Param(name="B", domain=("row", "column"), default="row", about="a text")
    own = [Param(name=name, domain=(3, 5, 7), default=3, about="its own") for name in "CD"]
    made = [rows_template(id=f"linear/{one.name}", params=(number, text, one), requires=()) for one in own]
    return tuple(Space(linear_region(), made, target()))


SPACES = st.lists(st.sampled_from(range(48)), min_size=1, max_size=40, unique=True).map(
    lambda kept: tuple(whole()[at] for at in kept)
)
"""Spaces with holes, so that many changes lead to no candidate."""


def changed_values(candidates: Sequence[Candidate], first: int, second: int) -> dict[str, object]:
    before, after = dict(candidates[first].params), dict(candidates[second].params)
    return {name: value for name, value in after.items() if before.get(name) != value}


@given(candidates=SPACES, seed=st.integers(0, 99))
def test_everything_in_a_menu_is_legal_and_exactly_that_change(candidates: tuple[Candidate, ...], seed: int) -> None:
    points = Points(candidates)
    at = random.Random(seed).randrange(len(points))
    before, reached = candidates[at], []
    for change in menu(points, at):
        found = transformed(points, at, change)
        assert found is not None
        assert found != at
        after = candidates[found]
        if change.change == "template":
            assert (before.template, after.template) == (change.name, change.value)
            kept = {"A", "B"} & {name for name, _ in before.params}
            first = dict(next(one.params for one in candidates if one.template == after.template))
            had = {
                name: {dict(one.params)[name] for one in candidates if one.template == after.template} for name in kept
            }
            for name in kept:
                own = dict(before.params)[name]
                assert dict(after.params)[name] == (own if own in had[name] else first[name])
        else:
            assert after.template == before.template
            assert changed_values(candidates, at, found) == {change.name: change.value}
        reached.append(found)
    assert len(set(reached)) == len(reached)
    assert set(reached) == set(points.changes(at))


@given(candidates=SPACES, seed=st.integers(0, 99))
def test_a_trace_replays_to_its_end(candidates: tuple[Candidate, ...], seed: int) -> None:
    points = Points(candidates)
    rng = random.Random(seed)
    first, last = rng.randrange(len(points)), rng.randrange(len(points))
    trace = trace_between(points, first, last)
    end = replayed(points, first, trace)
    assert end == last
    assert candidates[end].id == candidates[last].id
    assert len({(one.change == "template", one.name) for one in trace}) == len(trace), "nothing is changed twice"
    node = ProposalNode(candidate=candidates[last].id, origin="changed", parent=candidates[first].id, trace=trace)
    assert replayed(points, first, decode(ProposalNode, encode(node), "node").trace) == last


@given(candidates=SPACES, seed=st.integers(0, 99))
def test_a_trace_without_its_last_change_leads_elsewhere(candidates: tuple[Candidate, ...], seed: int) -> None:
    points = Points(candidates)
    rng = random.Random(seed)
    first, last = rng.randrange(len(points)), rng.randrange(len(points))
    if trace := trace_between(points, first, last):
        assert replayed(points, first, trace[:-1]) != last


def points_of(*values: tuple[int, str]) -> Points:
    """The points of the first template with these values of A and B, and C = 3."""
    found = {(dict(one.params)["A"], dict(one.params)["B"]): one for one in whole()[:24] if dict(one.params)["C"] == 3}
    return Points(tuple(found[pair] for pair in values))


def test_a_step_is_to_the_number_next_to_it() -> None:
    points = points_of((1, "row"), (2, "row"), (4, "row"), (1, "column"))
    said = [(one.change, one.name, one.value) for one in menu(points, 0)]
    assert said == [("step", "A", 2), ("parameter", "A", 4), ("parameter", "B", "column")]
    assert transformed(points, 0, Transformation(change="step", name="A", value=4)) is None
    assert transformed(points, 0, Transformation(change="parameter", name="A", value=2)) == 1


def test_a_trace_goes_through_legal_points_where_it_can() -> None:
    points = points_of((1, "row"), (1, "column"), (4, "column"))
    assert [one.name for one in trace_between(points, 0, 2)] == ["B", "A"]


def test_only_the_end_of_a_trace_is_legal_where_no_order_is() -> None:
    points = points_of((1, "row"), (4, "column"))
    trace = trace_between(points, 0, 1)
    assert len(trace) == 2
    assert menu(points, 0) == ()
    assert transformed(points, 0, trace[0]) is None
    assert replayed(points, 0, trace) == 1


def test_what_changes_nothing_or_is_unknown_is_not_legal() -> None:
    points = points_of((1, "row"), (2, "row"))
    for change in (
        Transformation(change="parameter", name="A", value=1),
        Transformation(change="parameter", name="A", value="2"),
        Transformation(change="parameter", name="Z", value=2),
        Transformation(change="template", name="linear/C", value="linear/C"),
        Transformation(change="template", name="linear/C", value="linear/none"),
        Transformation(change="layout", name="rows16-k2", value="row-major"),
    ):
        assert transformed(points, 0, change) is None
