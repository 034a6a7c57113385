"""Evaluation of regions of several sequences: right arithmetic passes, inputs are ragged, library calls are right."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.capture.batched import batched
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.template import Depth, ParamValue
from agentcompile.ir.trial import NumericReport
from agentcompile.regions.partition import partition
from agentcompile.runtime import library
from agentcompile.validate import DeclaredArithmetic, insensitive, validate
from agentcompile.validate.cases import Case, cases
from agentcompile.validate.inputs import Generator
from tests.kernels.float32 import Run, eager, float32, sums
from tests.kernels.remembered import Remembered
from tests.templates.shapes import KINDS, Extents, region
from tests.templates.suite import CATALOG, FAMILIES, odd
from tests.unit.graphs import Shape, qwen3

LIBRARY = DeclaredArithmetic(accumulation="library")
REMEMBERED = Remembered()


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def shaped(kind: str, **extents: object) -> Region:
    """A region of a batch; families have two members."""
    rows = (48, 16) if kind in FAMILIES else (48,)
    return region(kind, Extents(**{"batch": 3, "rows": rows, **extents}))  # type: ignore[arg-type]


def evaluated(
    made: Region, run: Run, facts: DeclaredArithmetic, *, depth: Depth = "accept", seed: int = 0
) -> NumericReport:
    tools = REMEMBERED.tools(made, facts, seed)
    return validate(made, facts, run, seed=seed, repeats=2, depth=depth, tools=tools)


def failures(report: NumericReport) -> list[str]:
    return [f"{check.name}: {check.detail} ({check.measured:g})" for check in report.checks if not check.ok]


def right(made: Region) -> list[tuple[Run, DeclaredArithmetic]]:
    flipped = [(float32(made, flip=True), DeclaredArithmetic())] if sums(made) else []
    return [(eager(made), LIBRARY), (float32(made), DeclaredArithmetic()), *flipped]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kind", KINDS)
def test_right_arithmetic_is_kept_for_every_kind(kind: str, dtype: DType) -> None:
    made = shaped(kind, dtype=dtype)
    assert dict(made.dims)["tokens"] == made.regime.batch == 3
    for run, facts in right(made):
        report = evaluated(made, run, facts)
        assert report.ok, failures(report)
        report = evaluated(made, run, facts, depth="search", seed=1)
        assert report.ok, failures(report)


@pytest.mark.parametrize("kind", KINDS)
def test_right_arithmetic_is_kept_where_nothing_divides(kind: str) -> None:
    made = odd(kind, "bf16", 97, 22, batch=3)
    for run, facts in right(made):
        report = evaluated(made, run, facts)
        assert report.ok, failures(report)


ATTENTION = ("rope-attention-decode", "qknorm-rope-attention-decode")
SHAPES = (
    Extents(batch=3, window=1),
    Extents(batch=3, window=7),
    Extents(batch=3, window=19, context=37, q_heads=3, kv_heads=1, head_dim=22),
    Extents(batch=3, q_heads=3, kv_heads=3, context=130, window=33),  # as many heads as sequences
    Extents(batch=8, context=33),
    Extents(batch=2, context=2),
    Extents(batch=2, context=1),
    Extents(batch=5, context=260, q_heads=2, kv_heads=1),
)


@pytest.mark.parametrize("at", SHAPES, ids=[f"{e.batch} of {e.context}, window {e.window}" for e in SHAPES])
@pytest.mark.parametrize("kind", ATTENTION)
def test_right_attention_is_kept_at_every_shape(kind: str, at: Extents) -> None:
    made = region(kind, at)
    for run, facts in right(made):
        report = evaluated(made, run, facts)
        assert report.ok, failures(report)


@pytest.mark.parametrize("operator", ["attention", "cache-append", "rope", "position-table"])
def test_operators_by_themselves_are_evaluated_too(operator: str) -> None:
    made = next(one for one in parts() if one.kind == operator)
    report = evaluated(made, eager(made), LIBRARY)
    assert report.ok, failures(report)


@functools.cache
def parts() -> tuple[Region, ...]:
    """Every region of a decoder's step of three sequences, those of one operator among them."""
    regime = Regime(phase="decode", batch=3, context=(1, Shape().context))
    return partition(batched(qwen3(1), 3), regime).regions


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_of_every_sequence_changes_the_result(kind: str) -> None:
    for seed in range(2):
        assert insensitive(shaped(kind), seed=seed) == ()
        assert insensitive(shaped(kind, window=20), seed=seed) == ()


def lengths(made: Region, case: Case, seed: int = 0) -> list[int]:
    drawn = Generator(made, seed=seed)
    return [int(at) + 1 for at in drawn.draw(case, drawn.parameters(case.weights))["positions"]]


def test_sequences_are_of_different_lengths_and_the_longest_is_as_the_case_says() -> None:
    made = region("rope-attention-decode", Extents(batch=4, context=600))
    longest = set()
    for case in cases(made, "accept"):
        found = lengths(made, case)
        longest.add(found.index(case.length))
        assert max(found) == case.length
        assert len(set(found)) > 1 or case.length == 1
        assert found.count(case.length) == 1 or case.length < 3
        if case.style != "normal":
            assert 1 in found
        assert lengths(made, case) == found
    assert longest == {0, 1, 2, 3}


def test_integers_stay_exact_for_every_sequence() -> None:
    made = region("rope-attention-decode", Extents(batch=3))
    report = evaluated(made, float32(made), DeclaredArithmetic())
    (exact,) = [check for check in report.checks if check.name == "exact"]
    assert "0 integers of y differ" in exact.detail


def test_slots_that_a_sequence_has_not_reached_are_not_numbers() -> None:
    made = next(one for one in parts() if one.kind == "attention")
    drawn = Generator(made, seed=1)
    given = drawn.draw(cases(made, "search")[0], drawn.parameters(0))
    assert len(set(given["positions"].tolist())) == 3
    for name in ("k_cache", "v_cache"):
        for cache, at in zip(given[name], given["positions"].tolist(), strict=True):
            assert bool(cache[:, : at + 1].isfinite().all())
            assert bool(cache[:, at + 1 :].isnan().all())


CALLS = [
    (template.id, form, dtype)
    for template in CATALOG.templates
    if template.language == "library" and not template.arch
    for form in template.params[0].domain
    for dtype in template.dtypes
]


@pytest.mark.parametrize(("id", "form", "dtype"), CALLS)
def test_library_calls_are_right_for_a_batch(id: str, form: ParamValue, dtype: DType) -> None:
    template = CATALOG.get(id, dtype)
    assert template.tokens == (1, 8)
    for made in (shaped(template.region, dtype=dtype), odd(template.region, dtype, 97, 22, batch=8)):
        call = library.bind(template.call, made, (("FORM", form),))

        def run(buffers: Mapping[str, Tensor], call: library.Function = call) -> None:
            for name, tensor in call(buffers).items():
                buffers[name].copy_(tensor)

        report = evaluated(made, run, LIBRARY)
        assert report.ok, failures(report)
