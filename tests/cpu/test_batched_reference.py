"""Several sequences in one decode step: by the reference, each gets what it gets alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentcompile.capture import Captured
from agentcompile.capture.batched import batched
from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Regime
from agentcompile.ops import reference
from agentcompile.ops.attention import attention, masked_attention, rehearsing
from agentcompile.regions.partition import partition
from tests.models import captures, tiny
from tests.templates.shapes import Extents, region

BATCH = 4
CONTEXT = 24
POSITIONS = (5, 0, 23, 11)


@pytest.fixture(scope="module", params=["sample", "llama-bias", "mistral", "phi3"])
def captured(request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """The sample, and architectures with biases, with a window shorter than the context, and with fused matrices."""
    if request.param == "sample":
        return captures.captured(repository / "bench/models/sample", CONTEXT)
    return captures.captured(tiny.write(request.param, tmp_path_factory.mktemp("checkpoint")), CONTEXT)


def inputs(captured: Captured, graph: Graph) -> dict[str, Tensor]:
    """Every input in float64: weights as they are, tokens and caches of `BATCH` sequences, NaN in slots to come."""
    checkpoint, rng = Checkpoint.open(captured.checkpoint), torch.Generator().manual_seed(3)
    found: dict[str, Tensor] = {}
    for value in (graph.table()[name] for name in graph.inputs):
        shape = tuple(int(extent) for extent in value.shape)
        match value.role:
            case "weight":
                found[value.id] = checkpoint.tensor(value.name).double()
            case "constant":
                found[value.id] = captured.constants[value.name].double()
            case "position":
                found[value.id] = torch.tensor(POSITIONS)
            case "token":
                found[value.id] = torch.randint(0, 96, shape, generator=rng)
            case _:
                found[value.id] = torch.randn(shape, generator=rng, dtype=torch.float64)
                for cache, position in zip(found[value.id], POSITIONS, strict=True):
                    cache[:, position:] = torch.nan
    return found


def alone(graph: Graph, given: Mapping[str, Tensor], b: int) -> dict[str, Tensor]:
    """What sequence `b` has of the inputs of a batch, states as views."""
    shared = {value.id for value in graph.values if value.role in ("weight", "constant")}
    return {name: tensor if name in shared else tensor[b : b + 1] for name, tensor in given.items()}


def test_every_sequence_of_a_model_gets_what_it_gets_alone(captured: Captured) -> None:
    graph = batched(captured.decode, BATCH)
    together, apart = inputs(captured, graph), inputs(captured, graph)
    before = {name: tensor.clone() for name, tensor in together.items()}
    out = reference.run(graph, together, precision="float64")
    for b, position in enumerate(POSITIONS):
        single = reference.run(captured.decode, alone(graph, apart, b), precision="float64")
        torch.testing.assert_close(out["logits"][b : b + 1], single["logits"], rtol=1e-11, atol=1e-11)
        assert torch.equal(out["token"][b : b + 1], single["token"])
        for value in graph.values:
            if value.role == "state" and value.id in graph.inputs:
                cache, own, old = together[value.id][b], apart[value.id][b], before[value.id][b]
                torch.testing.assert_close(cache, own, rtol=1e-11, atol=1e-11, equal_nan=True)
                kept = torch.arange(cache.shape[1]) != position
                assert torch.equal(cache[:, kept].nan_to_num(7.0), old[:, kept].nan_to_num(7.0))
                assert bool(cache[:, position].isfinite().all())


def test_a_model_is_cut_into_the_same_regions_at_the_same_sites(captured: Captured) -> None:
    one = partition(captured.decode, Regime(phase="decode", context=(1, CONTEXT)))
    four = partition(batched(captured.decode, BATCH), Regime(phase="decode", batch=BATCH, context=(1, CONTEXT)))
    assert [(made.kind, made.sites) for made in four.regions] == [(made.kind, made.sites) for made in one.regions]
    assert not four.boundaries
    kinds = {made.kind for made in four.regions}
    assert kinds & {"rope-attention-decode", "qknorm-rope-attention-decode"}
    assert {"linear-argmax", "rmsnorm-linear-argmax", "linear-residual", "position-tables"} <= kinds


def test_a_model_runs_in_its_own_arithmetic_and_stays_close_to_the_reference(captured: Captured) -> None:
    graph, types = batched(captured.decode, BATCH), captured.decode.table()
    wide = inputs(captured, graph)
    narrow = {
        name: t.to(reference.DTYPES[types[name].dtype]) if t.is_floating_point() else t for name, t in wide.items()
    }
    exact = reference.run(graph, wide, precision="float64")["logits"]
    got = reference.run(graph, narrow)["logits"].double()
    assert float((got - exact).norm() / exact.norm()) < 0.05


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("window", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_attention_is_for_every_sequence_to_the_bit_what_it_is_alone(dtype: torch.dtype, window: int) -> None:
    q, positions = random(3, 4, 1, 8, seed=1, dtype=dtype), torch.tensor([6, 0, 9])
    keys, values = (random(3, 2, 10, 8, seed=seed, dtype=dtype) for seed in (2, 3))
    for b, position in enumerate(positions.tolist()):
        keys[b, :, position + 1 :] = values[b, :, position + 1 :] = torch.nan
    together = attention(q, keys, values, positions, scale=0.3, window=window)
    for b in range(3):
        one = slice(b, b + 1)
        single = attention(q[one], keys[one], values[one], positions[one], scale=0.3, window=window)
        assert torch.equal(together[one], single)


@pytest.mark.parametrize("window", [0, 1, 4])
def test_attention_under_a_mask_is_the_same_for_every_sequence(window: int) -> None:
    q, positions = random(3, 4, 1, 8, seed=1), torch.tensor([6, 0, 9])
    keys, values = (random(3, 2, 10, 8, seed=seed) for seed in (2, 3))
    told = {"scale": 0.3, "window": window}
    expected = attention(q, keys, values, positions, **told)  # type: ignore[arg-type]
    torch.testing.assert_close(masked_attention(q, keys, values, positions, **told), expected)  # type: ignore[arg-type]


def test_an_append_writes_one_slot_of_each_cache_and_returns_the_cache_it_was_given() -> None:
    cache, new, positions = random(3, 2, 5, 4, seed=1), random(3, 2, 1, 4, seed=2), torch.tensor([4, 0, 2])
    expected = cache.clone()
    for b, position in enumerate(positions.tolist()):
        expected[b, :, position] = new[b, :, 0]
    assert reference.cache_append(cache, new, positions).data_ptr() == cache.data_ptr()
    assert torch.equal(cache, expected)


def test_rope_turns_every_sequence_by_its_own_angle() -> None:
    x, angles = random(3, 3, 1, 8, seed=1), random(3, 1, 4, seed=2)  # as many heads as sequences: a mix-up has a shape
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    together = reference.rope(x, cos, sin, style="half")
    for b in range(3):
        one = slice(b, b + 1)
        assert torch.equal(together[one], reference.rope(x[one], cos[one], sin[one], style="half"))


def test_a_position_table_gives_rows_to_sequences_or_to_the_tokens_of_one() -> None:
    table, positions = random(9, 4, seed=1), torch.tensor([7, 0, 3])
    assert torch.equal(reference.position_table(positions, table), table[[7, 0, 3]][None])
    assert torch.equal(reference.position_table(positions, table, batch=3), table[[7, 0, 3]][:, None])
    made = region("position-table", Extents(batch=3, hidden=4, context=9))
    (y,) = reference.run(made.body, {"positions": positions, "table": table}).values()
    assert torch.equal(y, table[[7, 0, 3]][:, None])


def test_what_a_capture_will_do_is_rehearsed_and_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()

    def masked(q: torch.Tensor, *rest: object, **told: object) -> torch.Tensor:
        asked.append(True)
        return q

    monkeypatch.setattr("agentcompile.ops.attention.masked_attention", masked)
    q, cache = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 6, 8)
    with rehearsing():
        assert attention(q, cache, cache, torch.tensor([3]), scale=1.0) is q
    assert attention(q, cache, cache, torch.tensor([3]), scale=1.0) is not q
    assert asked == [True]
