"""Regions of a chunk of any length, at the lengths at which a worker sees them."""

from __future__ import annotations

import dataclasses

from agentcompile import check
from agentcompile.evaluation.chunk import any_chunk, at_length, lengths, validated
from agentcompile.ir.graph import TOKENS
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.template import COUNT, Launch, Template
from agentcompile.ir.trial import Check, NumericReport
from agentcompile.ops.layouts import fits
from agentcompile.regions.partition import partition
from agentcompile.validate.coverage import chunks
from tests.unit.graphs import Shape, decoder
from tests.unit.runs import TARGET

CONTEXT = Shape().context


def regions(tokens: int = 256) -> dict[str, Region]:
    graph = decoder(Shape(), "prefill")
    found = partition(graph, Regime(phase="prefill", context=(1, CONTEXT)), tokens=tokens)
    return {region.kind: region for region in reversed(found.regions)}  # the first of each kind


def tokens_of(region: Region) -> set[int]:
    assert not any_chunk(region)
    return {dict(region.dims)["tokens"], region.port("y").shape[1]}  # type: ignore[arg-type]


def test_a_region_has_a_length_and_what_it_was_made_for_stays() -> None:
    region = regions()["linear"]
    assert any_chunk(region)
    assert region.port("x").shape[1] == TOKENS
    assert tokens_of(at_length(region)) == {256}
    assert tokens_of(at_length(region, 7)) == {7}
    assert at_length(region, 7).sites == ()
    assert {value.shape[1] for value in at_length(region, 7).body.values if len(value.shape) == 3} == {7}


def test_no_chunk_is_longer_than_the_cache_or_its_tables() -> None:
    found = regions()
    assert found["qknorm-rope-attention-prefill"].longest_chunk == CONTEXT < 256
    assert found["position-tables"].longest_chunk == CONTEXT
    assert found["cache-append"].longest_chunk == CONTEXT
    assert found["linear"].longest_chunk == 256


def test_kernels_ship_at_both_ends_beside_the_length_of_the_suite() -> None:
    region = regions()["linear"]
    assert validated(region) == 33
    assert [dict(one.dims)["tokens"] for one in lengths(region)] == [1, 2, 255, 256]
    short = regions(tokens=2)["linear"]
    assert validated(short) == 2
    assert [dict(one.dims)["tokens"] for one in lengths(short)] == [1]


def test_chunks_of_all_small_lengths_begin_all_over_a_cache() -> None:
    found = chunks(2048, 256, seed=5)
    assert sorted(tokens for _, tokens in found) == list(range(1, 257))
    assert {tokens for _, tokens in found[:66]} == set(range(1, 67))
    assert all(begin >= 0 and begin + tokens <= 2048 for begin, tokens in found)
    assert {begin // 256 for begin, _ in found} == set(range(8))
    assert {begin % 64 for begin, _ in found} >= {0, 1, 63}
    assert any(begin + tokens == 2048 for begin, tokens in found)
    assert chunks(2048, 256, seed=6) != found


def test_of_long_chunks_every_residue_and_random_lengths_are_tested() -> None:
    found = {tokens for _, tokens in chunks(4096, 2048, seed=5)}
    assert found >= {*range(1, 67), *range(1024, 1088), 2048}
    assert len(found) == 320


def test_a_chunk_that_fills_its_cache_begins_at_its_first_slot() -> None:
    assert {begin for begin, tokens in chunks(80, 80, seed=1) if tokens == 80} == {0}


def test_a_region_of_one_length_is_left_as_it_is() -> None:
    region = at_length(regions()["linear"], 5)
    assert at_length(region) == region
    assert lengths(region) == ()
    assert validated(region) == 0


def test_only_kernels_that_are_given_the_number_serve_any() -> None:
    region = regions()["linear"]

    def found(arguments: tuple[str, ...], of: Region) -> list[str]:
        template = Template(
            id="linear/mine",
            region="linear",
            language="cpp",
            about="",
            dtypes=("bf16", "fp32"),
            phases=("prefill",),
            launches=(Launch(entry="run", arguments=arguments),),
            source="void run() {}",
        )
        target = dataclasses.replace(TARGET, kind="cpu", isa=())
        return [one.text for one in check.applicable(of, template, target, layout_fits=fits) if one.rule == "extents"]

    assert not found(("x", "w", "y", COUNT), region)
    assert found(("x", "w", "y"), region) == ["x, y: the number of tokens is open, a kernel needs one"]
    fixed = found(("x", "w", "y", COUNT), at_length(region))
    assert fixed == ["its kernels are given the number of tokens, which is fixed here"]


def test_what_is_wrong_at_one_length_is_in_the_report_with_it() -> None:
    right = Check(name="element", ok=True, measured=0.2, allowed=1.0)
    other = Check(name="fence", ok=True, measured=0.0, allowed=0.0)
    wrong = dataclasses.replace(right, ok=False, measured=4.0, detail="normal: y")
    one = NumericReport(checks=(right, other), error_ratio=1.0, cases=5, repeats=16)
    both = one.and_of(NumericReport(checks=(wrong, other), error_ratio=1.5, cases=2, repeats=2), "3 tokens")
    assert not both.ok
    assert {check.name: check.ok for check in both.checks} == {"element": False, "fence": True}
    assert both.checks[-1].detail == "3 tokens: normal: y"
    assert (both.error_ratio, both.cases, both.repeats) == (1.5, 7, 16)
    assert one.and_of(one, "3 tokens").checks == one.checks
