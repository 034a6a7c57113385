"""Advisers: they order what is there, say why, and can do nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.advice.advisers import ADVISERS, adviser_of
from agentcompile.advice.heuristic import Heuristic
from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Advice, Question
from agentcompile.ir.graph import Phase
from agentcompile.ir.region import Region
from agentcompile.ir.target import Ceiling, Residency, Target
from agentcompile.ir.template import Launch, Param, ParamValue, Template
from agentcompile.space import Space
from tests.unit.fakes import linear_region, rows_template, target

CEILING = Ceiling(dram_bytes_per_s=30e9, cache_bytes_per_s=60e9, flops_per_s=2e11)


def param(name: str, *domain: ParamValue, default: ParamValue | None = None, about: str = "what it trades") -> Param:
    return Param(name=name, domain=domain, default=domain[0] if default is None else default, about=about)


def gemv(**changes: object) -> Template:
    """Packed rows with the usual parameters."""
    plain = rows_template(
        id="linear/packed",
        arch=(),
        requires=("TILES * UNROLL <= 32",),
        params=(param("TILES", 1, 2, 4), param("UNROLL", 1, 2, 4, 8, 16), param("AHEAD", 0, 1024, 4096, 8192)),
        workspaces=(),
        launches=(Launch(entry="gemv", arguments=("x", "w", "b", "y")),),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def library() -> Template:
    return Template(id="linear/library", region="linear", language="library", about="t", dtypes=("bf16",), call="f")


def question(
    *templates: Template, region: Region | None = None, residency: Residency = "dram", machine: Target | None = None
) -> Question:
    region, machine = region or linear_region(), machine or target()
    return Question(
        region=region,
        target=machine,
        ceiling=CEILING,
        residency=residency,
        templates=templates,
        candidates=tuple(Space(region, templates, machine)),
    )


def labels(asked: Question, advice: Advice) -> list[str]:
    by_id = {candidate.id: candidate.label for candidate in asked.candidates}
    return [by_id[id] for id in advice.order]


def best_params(asked: Question) -> dict[str, ParamValue]:
    head = Heuristic().advise(asked).order[0]
    return dict(next(candidate.params for candidate in asked.candidates if candidate.id == head))


@pytest.mark.parametrize("spec", ["heuristic", "none", "random:7"])
def test_an_adviser_orders_the_space_and_adds_nothing(spec: str) -> None:
    asked = question(gemv(), library(), rows_template())
    advice = adviser_of(spec).advise(asked)
    ordered = advice.sorted(asked.candidates)
    assert advice.label == spec
    assert sorted(candidate.id for candidate in ordered) == sorted(candidate.id for candidate in asked.candidates)
    assert advice == adviser_of(spec).advise(asked)


def test_no_adviser_leaves_the_order_of_the_space() -> None:
    asked = question(gemv())
    assert adviser_of("none").advise(asked).sorted(asked.candidates) == asked.candidates


def test_a_random_adviser_differs_by_seed_and_by_region() -> None:
    asked = question(gemv())
    first = adviser_of("random:1").advise(asked).order
    assert first != adviser_of("random:2").advise(asked).order
    assert sorted(first) == sorted(candidate.id for candidate in asked.candidates)


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("huristic", "no such adviser", "did you mean heuristic? advisers: heuristic, none, random:SEED"),
        ("", "no such adviser", "advisers: heuristic, none, random:SEED"),
        ("random", "it is written random:SEED", "advisers: heuristic"),
        ("random:x", "it is written random:SEED", "advisers: heuristic"),
        ("random:-1", "it is written random:SEED", "advisers: heuristic"),
        ("none:1", "it is written none", "advisers: heuristic"),
        ("heuristic:fast", "it is written heuristic", "advisers: heuristic"),
    ],
)
def test_a_wrong_adviser_is_refused_with_what_there_is(spec: str, message: str, hint: str) -> None:
    with pytest.raises(AgentCompileError) as caught:
        adviser_of(spec)
    assert message in caught.value.message
    assert caught.value.hint.startswith(hint)


def test_a_stream_from_dram_is_prefetched_a_page_ahead_and_a_cached_one_less() -> None:
    near = gemv(params=(param("AHEAD", 0, 1024, 2048, 4096, 8192),), requires=())
    assert best_params(question(near))["AHEAD"] == 4096
    assert best_params(question(near, residency="cache"))["AHEAD"] == 2048


def test_a_prefetch_that_is_too_long_costs_less_than_one_that_is_too_short() -> None:
    for residency in ("dram", "cache"):
        asked = question(gemv(params=(param("AHEAD", 512, 16384),), requires=()), residency=residency)
        assert labels(asked, Heuristic().advise(asked))[0] == "linear/packed(AHEAD=16384)"


def test_more_sums_are_wanted_where_a_thread_reads_more() -> None:
    template = gemv(params=(param("UNROLL", 1, 2, 4, 8),), requires=())
    assert best_params(question(template))["UNROLL"] == 2
    assert best_params(question(template, residency="cache"))["UNROLL"] == 4


def test_keys_side_by_side_leave_every_thread_its_heads() -> None:
    heads = replace(linear_region(), dims=(("kv_heads", 2), ("head_dim", 64), ("context", 512), ("tokens", 1)))
    template = gemv(layouts=(), params=(param("STREAMS", 1, 2, 4),), requires=())
    asked = question(template, region=heads, residency="cache")
    assert all("2 pieces over 2 threads" in text for _, text in Heuristic().advise(asked).rationales)


def test_the_head_is_spread_over_templates_and_neighbours() -> None:
    asked = question(gemv(), gemv(id="linear/other", layouts=()))
    head = labels(asked, Heuristic().advise(asked))[:12]
    assert {label.partition("(")[0] for label in head} == {"linear/packed", "linear/other"}
    assert len({label.partition("AHEAD=")[2] for label in head}) >= 2


def test_a_lone_sum_comes_after_several() -> None:
    for residency in ("dram", "cache"):
        asked = question(gemv(requires=(), params=(param("UNROLL", 1, 2, 4, 8),)), residency=residency)
        assert labels(asked, Heuristic().advise(asked))[-1] == "linear/packed(UNROLL=1)"


def test_a_prefetch_distance_may_count_cache_lines() -> None:
    lines = gemv(params=(param("AHEAD", 0, 16, 64, 128, about="cache lines ahead"),), requires=())
    assert best_params(question(lines))["AHEAD"] == 64


def test_dram_wants_one_stream_a_thread_and_a_cache_several() -> None:
    assert best_params(question(gemv()))["TILES"] == 1
    assert best_params(question(gemv(), residency="cache"))["TILES"] == 2


@pytest.mark.parametrize(("isa", "fitting"), [(("avx2", "fma"), [4, 8]), (("avx2", "avx512f", "fma"), [4, 8, 16])])
def test_accumulators_that_spill_come_after_those_that_fit(isa: tuple[str, ...], fitting: list[int]) -> None:
    asked = question(gemv(requires=(), params=(param("UNROLL", 4, 8, 16, 32),)), machine=target(isa=isa))
    order = labels(asked, Heuristic().advise(asked))
    assert order[: len(fitting)] == [f"linear/packed(UNROLL={chains})" for chains in fitting]


def test_the_library_comes_last_where_the_work_is_small_or_streams_from_dram() -> None:
    for region in (linear_region(), linear_region(hidden=64, rows=64)):
        asked = question(gemv(), library(), region=region)
        assert labels(asked, Heuristic().advise(asked))[-1] == "linear/library"


def test_packed_weights_come_before_row_major_ones_at_the_same_parameters() -> None:
    rows = gemv(id="linear/rows", layouts=())
    asked = question(gemv(), rows)
    order = labels(asked, Heuristic().advise(asked))
    best = "(TILES=1, UNROLL=4, AHEAD=4096)"
    assert order.index(f"linear/packed{best}") < order.index(f"linear/rows{best}")


def test_short_vectors_come_after_wide_ones() -> None:
    asked = question(gemv(id="linear/avx2", arch=("avx2",)), gemv(id="linear/avx512", arch=("avx512f",)))
    assert labels(asked, Heuristic().advise(asked))[0].startswith("linear/avx512")


def test_a_second_launch_counts_where_the_region_is_short() -> None:
    one = Launch(entry="gemv", arguments=("x", "w", "b", "y"))
    two = gemv(id="linear/atwo", launches=(one, replace(one, entry="join")))
    asked = question(two, gemv(), region=linear_region(hidden=128, rows=128))
    assert labels(asked, Heuristic().advise(asked))[0].startswith("linear/packed")


def test_pieces_that_do_not_feed_every_thread_come_after_those_that_do() -> None:
    few = linear_region(hidden=1024, rows=64)
    template = gemv(params=(param("TILES", 1, 2, 4),), requires=())
    asked = question(template, region=few, machine=target(threads=4), residency="cache")
    assert best_params(asked)["TILES"] == 1


def test_splitting_is_for_too_few_pieces() -> None:
    template = gemv(layouts=(), params=(param("SPLITS", 1, 2, 4, 8),), requires=())
    assert best_params(question(template))["SPLITS"] == 1
    heads = replace(linear_region(), dims=(("kv_heads", 2), ("head_dim", 64), ("tokens", 1)))
    assert best_params(question(template, region=heads, machine=target(threads=8)))["SPLITS"] == 4


def test_tiles_of_a_cache_stay_within_the_first_level() -> None:
    heads = replace(linear_region(), dims=(("kv_heads", 8), ("head_dim", 128), ("tokens", 1)))
    template = gemv(params=(param("BLOCK", 16, 32, 64, 256, 1024),), requires=())
    assert best_params(question(template, region=heads))["BLOCK"] == 32


def test_an_unknown_parameter_stays_near_its_default() -> None:
    template = gemv(params=(param("FLAVOUR", "a", "b", "c", default="b"), param("X", 1, 2, 3, default=3)), requires=())
    assert best_params(question(template)) == {"FLAVOUR": "b", "X": 3}


@pytest.mark.parametrize(
    ("phase", "first"), [("prefill", {"ROWS": 128, "BLOCK": 256}), ("decode", {"ROWS": 64, "BLOCK": 64})]
)
def test_a_chunk_s_kernels_begin_at_their_defaults(phase: Phase, first: dict[str, ParamValue]) -> None:
    rows, block = param("ROWS", 64, 128, 256, default=128), param("BLOCK", 64, 128, 256, default=256)
    template = gemv(params=(rows, block), requires=(), layouts=(), phases=(phase,))
    heads = replace(linear_region(), dims=(("kv_heads", 8), ("head_dim", 64), ("tokens", 1)))
    region = replace(heads, regime=replace(heads.regime, phase=phase))
    assert best_params(question(template, region=region)) == first


def test_the_head_has_one_sentence_each_and_hints_name_the_best_values() -> None:
    asked = question(gemv(), library())
    advice = Heuristic().advise(asked)
    assert [id for id, _ in advice.rationales] == list(advice.order[:12])
    for _, sentence in advice.rationales:
        assert sentence.endswith("above the roofline.")
        assert "\n" not in sentence
        assert len(sentence) < 300
    hints = {(hint.template, hint.param): hint.values for hint in advice.hints}
    assert hints["linear/packed", "AHEAD"][0] == 4096


def test_risks_are_told_from_the_manifest() -> None:
    risky = gemv(deterministic=False, rounds=(("n", "bf16"),))
    texts = [risk.text for risk in Heuristic().advise(question(risky)).risks]
    assert texts == ["its result may differ between runs", "it rounds n to bf16, which costs accuracy"]


def test_an_empty_space_gets_empty_advice() -> None:
    advice = Heuristic().advise(question())
    assert (advice.order, advice.hints, advice.rationales) == ((), (), ())


NAMES = st.sampled_from(["AHEAD", "TILES", "UNROLL", "SPLITS", "BLOCK", "THREADS", "OTHER", "VECS", "ROWS"])
DOMAINS = st.one_of(
    st.lists(st.integers(-4, 70000), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True),
)


@given(
    st.dictionaries(NAMES, DOMAINS, max_size=4),
    st.integers(1, 5000),
    st.integers(1, 64),
    st.sampled_from(["dram", "cache"]),
    st.sampled_from([(), (32768,), (32768, 1 << 20)]),
)
def test_whatever_the_parameters_the_order_is_a_permutation(
    domains: dict[str, list[ParamValue]], rows: int, threads: int, residency: Residency, caches: tuple[int, ...]
) -> None:
    params = tuple(param(name, *domain) for name, domain in domains.items())
    region = replace(linear_region(rows=rows), dims=(("rows", rows), ("head_dim", 64), ("tokens", 1)))
    asked = question(
        gemv(params=params, requires=()),
        library(),
        region=region,
        residency=residency,
        machine=target(threads=threads, cache_bytes=caches),
    )
    assert sorted(Heuristic().advise(asked).order) == sorted(candidate.id for candidate in asked.candidates)


def test_every_adviser_of_the_table_can_be_named_as_its_usage_says() -> None:
    for _, usage, _ in ADVISERS:
        spec = usage.replace("SEED", "3")
        assert adviser_of(spec).label == spec
