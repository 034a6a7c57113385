"""The space of a region: every legal point, in order, once, with the reason for the others."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.ir.evaluate import EvaluationError, evaluate
from agentcompile.ir.expr import parse
from agentcompile.ir.scope import scope
from agentcompile.ir.template import Param, Template
from agentcompile.space import OutsideError, Space
from tests.unit.fakes import linear_region, rows_template, target

CONSTRAINTS = ("rows % ROWS == 0", "hidden % (16 * UNROLL) == 0", "ROWS * UNROLL <= 8", "threads <= rows // ROWS")
MORE = (*CONSTRAINTS, "hidden % (UNROLL - 2) == 0", "UNROLL != 2 or ROWS > 1", "weight_bytes == 2", "not has_b")


def _library() -> Template:
    return Template(
        id="linear/library", region="linear", language="library", about="torch", dtypes=("bf16",), call="torch.linear"
    )


@given(
    st.lists(st.sampled_from(MORE), max_size=4, unique=True),
    st.integers(1, 300),
    st.integers(1, 300),
)
def test_the_space_is_what_brute_force_finds(requires: list[str], hidden: int, rows: int) -> None:
    template = rows_template(requires=tuple(requires))
    region = linear_region(hidden=hidden, rows=rows)
    space = Space(region, [template], target())
    names = [param.name for param in template.params]
    expected = []
    for values in itertools.product(*(param.domain for param in template.params)):
        params = tuple(zip(names, values, strict=True))
        try:
            holds = all(evaluate(parse(text), scope(region, target(), params)) for text in requires)
        except EvaluationError:
            holds = False
        expected += [params] if holds else []
    found = [candidate.params for candidate in space]
    assert found == expected
    assert len(space) == len(found)
    product = math.prod(len(param.domain) for param in template.params)
    assert len(space) + space.rejected == product
    assert sum(exclusion.points for exclusion in space.exclusions) == space.rejected


def test_candidates_come_in_one_order_and_have_distinct_identities() -> None:
    templates = [_library(), rows_template()]
    first = list(Space(linear_region(), templates, target()))
    again = list(Space(linear_region(), templates[::-1], target()))
    assert first == again
    assert len({candidate.id for candidate in first}) == len(first) == 13
    assert [candidate.label for candidate in first[:3]] == [
        "linear/library",
        "linear/rows(ROWS=1, UNROLL=1)",
        "linear/rows(ROWS=1, UNROLL=2)",
    ]


def test_a_rejected_point_is_counted_with_the_figures_of_the_first() -> None:
    space = Space(linear_region(hidden=1008), [rows_template()], target())
    (exclusion,) = space.exclusions
    assert exclusion.points == 8
    assert exclusion.constraint == "hidden % (16 * UNROLL) == 0"
    assert exclusion.reason.endswith("with hidden=1008, UNROLL=2 → 1008 % (16 * 2) = 16")


def test_a_constraint_without_parameters_rejects_the_whole_template_at_once() -> None:
    space = Space(linear_region(), [rows_template(requires=("threads > 2", "ROWS == 1"))], target())
    assert len(space) == 0
    assert [(e.constraint, e.points) for e in space.exclusions] == [("threads > 2", 12)]


def test_templates_of_other_kinds_do_not_enter() -> None:
    assert len(Space(linear_region(count=2), [rows_template()], target())) == 0


def test_a_template_without_parameters_is_one_point() -> None:
    (only,) = Space(linear_region(), [_library()], target())
    assert only.params == ()


def test_a_huge_space_gives_its_first_points_at_once() -> None:
    wide = tuple(Param(name=f"P{i}", domain=tuple(range(16)), default=0, about="one of many") for i in range(12))
    space = Space(linear_region(), [rows_template(params=wide, requires=())], target())
    head = list(itertools.islice(space, 3))
    assert [dict(candidate.params)["P11"] for candidate in head] == [0, 1, 2]


@pytest.mark.parametrize(
    ("template", "params", "reason"),
    [
        ("linear/other", {}, "linear/other is not a template of linear here"),
        ("linear/rows", {"ROWS": 4}, "linear/rows: UNROLL is missing"),
        ("linear/rows", {"ROWS": 4, "UNROLL": 1, "VEC": 2}, "linear/rows has no parameter VEC"),
        ("linear/rows", {"ROWS": 3, "UNROLL": 1}, "linear/rows: ROWS=3 is not one of 1, 2, 4, 8"),
        ("linear/rows", {"ROWS": True, "UNROLL": 1}, "linear/rows: ROWS=True is not one of 1, 2, 4, 8"),
        ("linear/rows", {"ROWS": "4", "UNROLL": 1}, "linear/rows: ROWS=4 is not one of 1, 2, 4, 8"),
        ("linear/rows", {"ROWS": 4, "UNROLL": 2}, "1008 % (16 * 2) = 16"),
    ],
)
def test_a_point_outside_is_refused_with_its_reason(template: str, params: dict[str, int], reason: str) -> None:
    space = Space(linear_region(hidden=1008), [rows_template()], target())
    with pytest.raises(OutsideError) as caught:
        space.candidate(template, params)
    assert reason in str(caught.value)


def test_parameters_may_be_named_in_any_order() -> None:
    space = Space(linear_region(), [rows_template()], target())
    assert space.candidate("linear/rows", {"UNROLL": 2, "ROWS": 4}).params == (("ROWS", 4), ("UNROLL", 2))


def test_membership_needs_the_same_region_target_template_text_and_parameters() -> None:
    space = Space(linear_region(), [rows_template()], target())
    candidate = next(iter(space))
    assert candidate in space
    assert replace(candidate, target="other") not in space
    assert replace(candidate, region="other") not in space
    assert replace(candidate, template_digest="other") not in space
    assert replace(candidate, params=(("ROWS", 3), ("UNROLL", 1))) not in space
    assert "candidate" not in space


def test_the_default_is_a_candidate_unless_a_constraint_rejects_it() -> None:
    space = Space(linear_region(), [rows_template()], target())
    default = space.default("linear/rows")
    assert default is not None
    assert default.params == (("ROWS", 4), ("UNROLL", 1))
    assert Space(linear_region(rows=3), [rows_template()], target()).default("linear/rows") is None


def test_an_absent_optional_port_reads_as_zero_and_a_present_one_as_one() -> None:
    template = rows_template(requires=("has_b == 0 and b_count == 0 and x_count == 1",))
    assert len(Space(linear_region(), [template], target())) == 12
    assert len(Space(linear_region(bias=True), [template], target())) == 0


def test_instruction_sets_and_caches_are_visible_to_constraints() -> None:
    template = rows_template(requires=("isa_avx512f", "cache_l2 >= 1024 * 1024", "line_bytes == 64", "tokens == 1"))
    assert len(Space(linear_region(), [template], target())) == 12
    assert len(Space(linear_region(), [template], target(isa=("avx2", "fma")))) == 0
    assert len(Space(linear_region(), [template], target(cache_bytes=(32768,)))) == 0
