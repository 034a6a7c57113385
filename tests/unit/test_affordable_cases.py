"""Cases of attention: all where their references are cheap, a few spread over them where a chunk is too long."""

from __future__ import annotations

import pytest

from agentcompile.ir.region import Region
from agentcompile.ir.template import Depth
from agentcompile.validate.cases import cases, many
from tests.templates.shapes import Extents, region


def attention(tokens: int, context: int) -> Region:
    at = Extents(q_heads=32, kv_heads=8, head_dim=64, context=context, tokens=tokens)
    return region("rope-attention-prefill", at)


def test_a_chunk_of_usual_length_has_all_cases() -> None:
    found = cases(attention(256, 2048), "accept")
    assert len(found) > 50
    assert {"towering", "twins", "drowned", "ladder", "edges"} <= {case.past for case in found}


@pytest.mark.parametrize("tokens", [2048, 4096, 8448])
def test_a_long_chunk_has_the_everyday_case_and_others_spread_over_all(tokens: int) -> None:
    found = cases(attention(tokens, 8448), "accept")
    assert 3 <= len(found) < 10
    assert (found[0].style, found[0].past) == ("normal", "normal")
    assert len(set(found)) == len(found)


def test_lengths_of_a_chunk_have_different_cases() -> None:
    one, other = (
        {(case.style, case.past, case.place, case.weights) for case in cases(attention(n, 8448), "accept")}
        for n in (4096, 8448)
    )
    assert one & other == {("normal", "normal", 0.5, 0)}


@pytest.mark.parametrize("depth", ["search", "length", "accept"])
@pytest.mark.parametrize("tokens", [33, 700, 2048, 4096])
def test_the_everyday_case_of_a_chunk_has_slots_before_it_and_behind_it(tokens: int, depth: Depth) -> None:
    found = cases(attention(tokens, 8192), depth)
    assert tokens + 60 < found[0].length < 8192
    assert all(case.length > tokens for case in found if case.past not in ("normal", "even", "ramp"))


def test_cases_of_a_chunk_that_fills_the_cache_need_no_slots_before_it() -> None:
    found = cases(attention(8192, 8192), "accept")
    assert len(found) >= 3
    assert {case.past for case in found} <= {"normal", "even"}
    assert {case.length for case in found} <= {1, 8192}


def test_a_decode_step_has_all_cases_however_many_sequences_and_slots_there_are() -> None:
    few, many = (
        region("rope-attention-decode", Extents(q_heads=32, kv_heads=8, head_dim=128, context=131072, batch=batch))
        for batch in (2, 64)
    )
    assert cases(many, "accept") == cases(few, "accept")


def test_three_lengths_of_a_chunk_have_all_cases_together() -> None:
    whole, *parts = (
        {(case.style, case.past, case.place, case.weights, case.angle) for case in cases(attention(n, 8448), depth)}
        for n, depth in ((128, "accept"), (32, "length"), (64, "length"), (128, "length"))
    )
    assert whole == set.union(*parts)
    assert max(map(len, parts)) < len(whole) / 2
    assert ("normal", "normal", 0.5, 0, 700) in set.intersection(*parts)


def test_rows_of_a_table_are_shared_out_among_the_lengths() -> None:
    table = region("embedding", Extents(tokens=64))
    rows = [{case.row for case in many(table, 0, depth)} for depth in ("accept", "length")]
    assert rows[1] < rows[0]
    assert len(rows[1]) > len(rows[0]) / 4
