"""The lengths that a walk over a cache visits, for models of every size."""

from __future__ import annotations

import math

import pytest

from agentcompile.validate.coverage import SMALL, visited

PERIOD = 64
MOST = 768
WORK = 7e8
"""What a walk's reference may cost on a CPU."""


def budget(heads: int, width: int) -> float:
    return WORK / (heads * width)


def residues(lengths: tuple[int, ...], low: int, high: int) -> set[int]:
    return {n % PERIOD for n in lengths if low <= n <= high}


SHAPES = {
    "small": (9, 64, 2048),
    "1B": (32, 64, 2048),
    "4B": (32, 128, 2048),
    "4B, 8k": (32, 128, 8192),
    "wide": (64, 128, 2048),
    "wide, 8k": (64, 128, 8192),
    "4B, 32k": (32, 128, 32_768),
    "1B, 131k": (32, 64, 131_072),
    "wide, 131k": (64, 128, 131_072),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_small_lengths_and_every_residue_at_two_scales_are_visited_whatever_a_model_costs(name: str, seed: int) -> None:
    heads, width, context = SHAPES[name]
    found = visited(context, MOST, budget(heads, width), seed)
    assert list(found) == sorted(set(found))
    assert found[0] == 1
    assert found[-1] == context, "the whole cache"
    assert set(range(1, SMALL + 1)) <= set(found)
    assert residues(found, 1024, 1024 + PERIOD - 1) == set(range(PERIOD))
    assert residues(found, 1024 + PERIOD, context) == set(range(PERIOD)), "a second scale"
    assert len([n for n in found if n >= context - PERIOD]) >= 8
    assert len(found) >= 195 + 16


@pytest.mark.parametrize("name", ["small", "1B", "4B", "wide", "4B, 8k"])
def test_the_second_scale_is_the_end_of_the_cache_where_that_is_no_large_multiple_of_the_budget(name: str) -> None:
    heads, width, context = SHAPES[name]
    found = visited(context, MOST, budget(heads, width), 5)
    assert set(range(context - PERIOD, context + 1)) <= set(found)
    assert sum(found) <= 5 * budget(heads, width)


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_walk_costs_is_bounded(name: str) -> None:
    heads, width, context = SHAPES[name]
    allowed = 4 * budget(heads, width) + (2 * 8 + 8 + 8) * context
    assert sum(visited(context, MOST, budget(heads, width), 7)) <= allowed


def test_bounds_of_parts_differ_with_the_seed_where_there_is_no_room_for_all() -> None:
    heads, width, context = SHAPES["wide"]
    first, second = (set(visited(context, MOST, budget(heads, width), seed)) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("name", SHAPES)
def test_both_sides_of_powers_of_two_are_visited_always_and_of_equal_parts_where_they_cost_little(name: str) -> None:
    heads, width, context = SHAPES[name]
    found = set(visited(context, MOST, budget(heads, width), 4))
    assert {255, 256, 257, 511, 512, 513, 1023, 1024, 1025, context // 2 - 1, context // 2, context // 2 + 1} <= found
    if context == 2048:
        parts = {-(-context // parts) for parts in (3, 5, 6, 7, 12, 24, 48)}
        assert {n + side for n in parts for side in (-1, 0, 1)} <= found


@pytest.mark.parametrize("context", [1, 2, 65, 66, 67, 130, 700])
def test_a_short_cache_is_walked_slot_by_slot(context: int) -> None:
    assert visited(context, MOST, math.inf, 3) == tuple(range(1, context + 1))


@pytest.mark.parametrize("context", [1, 2, 40, 66, 100, 130, 200])
def test_without_a_budget_a_short_cache_has_few_lengths_all_of_them_in_it(context: int) -> None:
    found = visited(context, 10, 1.0, 3)
    assert set(range(1, min(SMALL, context) + 1)) <= set(found)
    assert found[-1] == context
