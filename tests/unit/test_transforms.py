"""Transformations and traces: what they lead to is always legal, and replaying a trace gives the same candidate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.ir.codec import decode, encode
from agentcompile.ir.template import Param
from agentcompile.ir.transform import SetParams, SwitchTemplate, Trace
from agentcompile.space import OutsideError, Space
from agentcompile.space.transforms import apply, menu, replay, start, trace_of
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG
from tests.unit.fakes import linear_region, rows_template, target
from tests.unit.test_space import CONSTRAINTS, MORE

SHIPPED = ("linear", "rmsnorm-gateup-silu-mul", "rope-attention-decode")


def held(space: Space) -> int:
    """Holds every trace of a space against its candidate; how many there are."""
    count = 0
    for candidate in space:
        trace = trace_of(space, candidate)
        assert replay(space, trace).id == candidate.id
        assert decode(Trace, encode(trace)) == trace
        at = start(space, candidate.template)
        for step in trace.steps:
            at = apply(space, at, step)
            assert at in space
        count += 1
    return count


@given(st.lists(st.sampled_from(MORE), max_size=4, unique=True), st.integers(1, 300), st.integers(1, 300))
def test_a_trace_leads_to_its_candidate_and_is_legal_on_the_way(requires: list[str], hidden: int, rows: int) -> None:
    held(Space(linear_region(hidden=hidden, rows=rows), [rows_template(requires=tuple(requires))], target()))


@pytest.mark.parametrize("kind", SHIPPED)
def test_shipped_spaces_are_reached_from_their_defaults(kind: str) -> None:
    templates = [one for one in CATALOG.templates if one.region == kind and one.language == "cpp"]
    assert held(Space(region(kind, Extents()), templates, target())) > 20


def test_what_no_single_changes_reach_is_one_step() -> None:
    params = tuple(Param(name=name, domain=(1, 2), default=1, about="") for name in ("A", "B"))
    template = replace(rows_template(), params=params, requires=("A == B",))
    space = Space(linear_region(), [template], target())
    far = space.candidate(template.id, {"A": 2, "B": 2})
    assert trace_of(space, far).steps == (SetParams(values=(("A", 2), ("B", 2))),)
    assert menu(space, far) == ()


def test_an_order_is_found_where_only_one_is_legal() -> None:
    params = tuple(Param(name=name, domain=(1, 2), default=1, about="") for name in ("A", "B"))
    template = replace(rows_template(), params=params, requires=("A <= B",))
    space = Space(linear_region(), [template], target())
    steps = trace_of(space, space.candidate(template.id, {"A": 2, "B": 2})).steps
    assert steps == (SetParams(values=(("B", 2),)), SetParams(values=(("A", 2),)))


def test_an_illegal_default_is_replaced_by_the_nearest_legal_point() -> None:
    params = tuple(Param(name=name, domain=(1, 2, 4), default=1, about="") for name in ("A", "B"))
    template = replace(rows_template(), params=params, requires=("A * B >= 4",))
    space = Space(linear_region(), [template], target())
    assert dict(start(space, template.id).params) == {"A": 1, "B": 4}
    with pytest.raises(OutsideError):
        start(Space(linear_region(), [replace(template, requires=("A > 4",))], target()), template.id)


def test_the_menu_is_what_is_legal() -> None:
    space = Space(linear_region(), [rows_template(requires=CONSTRAINTS)], target())
    for candidate in space:
        reached = {apply(space, candidate, change).id for change in menu(space, candidate)}
        assert reached == {other.id for other in space if candidate.distance(other) == 1}


def test_another_template_keeps_what_it_allows() -> None:
    other = replace(
        rows_template(),
        id="linear/other",
        params=(
            Param(name="ROWS", domain=(2, 4), default=2, about=""),
            Param(name="OWN", domain=(7, 8), default=7, about=""),
        ),
        requires=(),
    )
    space = Space(linear_region(), [rows_template(requires=()), other], target())
    switch = SwitchTemplate(template=other.id)
    for candidate in space.of(rows_template().id):
        made = apply(space, candidate, switch)
        rows = dict(candidate.params)["ROWS"]
        assert dict(made.params) == {"ROWS": rows if rows in (2, 4) else 2, "OWN": 7}
    with pytest.raises(OutsideError):
        apply(space, candidate, SwitchTemplate(template="linear/none"))


def test_an_illegal_step_ends_a_replay() -> None:
    space = Space(linear_region(), [rows_template()], target())
    with pytest.raises(OutsideError):
        replay(space, Trace(template=rows_template().id, steps=(SetParams(values=(("ROWS", 3),)),)))
    with pytest.raises(OutsideError):
        trace_of(space, replace(next(iter(space)), region="f" * 64))
