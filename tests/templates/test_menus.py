"""The menu of every template that ships: each change leads to a legal candidate, and a trace replays to its end."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcompile.ir.graph import DType
from agentcompile.ir.search_events import Transformation
from agentcompile.ir.template import Candidate
from agentcompile.search.points import Points
from agentcompile.search.traces import menu, replayed, trace_between, transformed
from agentcompile.space import Space
from tests.templates.test_templates_static import CATALOG, EACH, KINDS, TARGET, region_of

STEPS = 4
"""Changes of a walk."""


@functools.cache
def space_of(kind: str, dtype: DType) -> tuple[Space, tuple[Candidate, ...], Points]:
    """All templates of a kind on a small region, so that a menu can switch the template too."""
    space = Space(region_of(KINDS[kind], dtype), CATALOG.templates, TARGET)
    candidates = tuple(space)
    return space, candidates, Points(candidates)


@pytest.mark.parametrize(("id", "dtype"), EACH)
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_a_walk_from_the_default_stays_legal_and_its_trace_replays(id: str, dtype: DType, data: st.DataObject) -> None:
    space, candidates, points = space_of(CATALOG.get(id, dtype).region, dtype)
    default = space.default(id)
    assert default is not None
    start = points.place(default.id)
    assert start is not None
    at, trace = start, list[Transformation]()
    for _ in range(STEPS):
        offered = menu(points, at)
        assert {transformed(points, at, one) for one in offered} == set(points.changes(at))
        if not offered:
            break
        trace.append(offered[data.draw(st.integers(0, len(offered) - 1))])
        end = transformed(points, at, trace[-1])
        assert end is not None
        made = candidates[end]
        assert made.id != candidates[at].id
        assert space.candidate(made.template, dict(made.params)) == made, "the constraints of the manifest hold"
        at = end
    for one in (trace, trace_between(points, start, at)):
        end = replayed(points, start, one)
        assert end is not None
        assert candidates[end].id == candidates[at].id


def test_templates_of_a_kind_share_a_menu_where_there_are_several() -> None:
    id, dtype = next(one for one in EACH if one[0] == "linear-residual/warp-rows")
    space, _, points = space_of(CATALOG.get(id, dtype).region, dtype)
    default = space.default(id)
    assert default is not None
    start = points.place(default.id)
    assert start is not None
    switches = {one.value for one in menu(points, start) if one.change == "template"}
    assert switches <= set(points.grid.templates) - {id}
    assert switches
