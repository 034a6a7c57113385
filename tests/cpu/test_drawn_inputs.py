"""What is drawn for special cases: an argmax meets NaNs of either sign, and a chunk the scores that a case is about."""

from __future__ import annotations

import pytest
import torch

from agentcompile.ir.graph import DType
from agentcompile.validate import DeclaredArithmetic
from agentcompile.validate.cases import Case, cases
from agentcompile.validate.inputs import Generator
from agentcompile.validate.propagate import propagate
from tests.kernels.regions_for import region_for
from tests.templates.shapes import Extents, region


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp16"])
def test_an_argmax_meets_nans_of_either_sign(dtype: DType) -> None:
    drawn = Generator(region_for("rmsnorm-linear-argmax", dtype=dtype), seed=0)
    broken = next(case for case in cases(drawn.region, "search") if case.style == "nan")
    x = drawn.draw(broken, drawn.parameters(0))["x"]
    signs = torch.signbit(x[x.isnan()]).double()
    assert 0.2 < float(signs.mean()) < 0.8
    assert bool((~x.isnan()).any())


def met(case: Case, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last query of a chunk meets in its first head: scores [slots] and values [slots, D]."""
    extents = Extents(q_heads=4, kv_heads=2, head_dim=16, context=400, dtype="fp32", tokens=tokens)
    made = region("rope-attention-prefill", extents)
    draws = Generator(made, seed=0, tokens=tokens)
    given = draws.draw(case, draws.parameters(case.weights))
    found = propagate(made.body, given, DeclaredArithmetic(), tokens=tokens)
    (node,) = (one for one in made.body.nodes if one.op == "attention")
    query = found.values[node.inputs[0].value].wide()[0, 0, -1]
    tables = []
    for use in node.inputs[1:3]:
        append = found.appends[use.value]
        table, (span,) = given[append.port][0, 0].double(), append.spans
        table[slice(*span)] = append.new.wide()[0, 0]
        tables.append(table[: span[1]])
    return tables[0] @ query * float(str(dict(node.attrs)["scale"])), tables[1]


@pytest.mark.parametrize("tokens", [1, 8, 33])
def test_a_chunk_attends_to_the_keys_and_values_that_a_case_puts_before_it(tokens: int) -> None:
    extents = Extents(q_heads=4, kv_heads=2, head_dim=16, context=400, dtype="fp32", tokens=tokens)
    for case in cases(region("rope-attention-prefill", extents), "accept"):
        if case.length - tokens < 5:
            continue
        scores, values = met(case, tokens)
        match case.past:
            case "peaked":
                assert float(scores.max()) > 100.0, case.name
            case "towering":
                assert float(scores.max()) > 1e4, case.name
            case "twins":
                assert int((scores > 39.0).sum()) == 2, case.name
            case "sunk" | "drowned":
                assert int((scores < -100.0).sum()) >= case.length - tokens, case.name
            case "balanced" | "edges" | "ridges":
                weights = (scores - scores.max()).exp()
                assert float((weights @ values).abs().max()) < 1e-3 * float((weights @ values.abs()).max()), case.name
                assert int(values.any(1).sum()) > 3, case.name
            case "ladder":
                assert float(scores.min() - scores.max()) < -150.0, case.name
