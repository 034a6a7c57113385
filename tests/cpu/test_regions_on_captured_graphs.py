"""Regions of graphs that capture makes from tiny random checkpoints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from agentcompile.capture import Captured
from agentcompile.ir.graph import Graph, concrete
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.target import Ceiling
from agentcompile.ir.trial import Fallback
from agentcompile.ops import reference
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import Partition, partition
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.regions.summary import summarise
from tests.models import captures, tiny

LAYERS = 3
CONTEXT = 64
COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**COMMON, tie_word_embeddings=True))
    else:
        model = LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=False))
    model.to(torch.bfloat16).save_pretrained(path)
    return captures.captured(path, CONTEXT)


def cut(graph: Graph) -> Partition:
    return partition(graph, Regime(phase=graph.phase, context=(1, CONTEXT)))


def by_kind(found: Partition) -> dict[str, list[Region]]:
    kinds: dict[str, list[Region]] = {}
    for region in found.regions:
        kinds.setdefault(region.kind, []).append(region)
    return kinds


def test_equal_layers_of_a_decode_graph_are_one_region_with_a_site_each(captured: Captured):
    found = cut(captured.decode)
    assert not found.boundaries
    kinds = by_kind(found)
    attention = "rope-attention-decode"
    if captured.info.architecture.startswith("Qwen3"):
        attention = f"qknorm-{attention}"
    for name in (attention, "rmsnorm-gateup-silu-mul", "gateup-silu-mul", "silu-mul"):
        assert [len(region.sites) for region in kinds[name]] == [LAYERS]
    assert [len(region.sites) for region in kinds["linear-residual"]] == [LAYERS, LAYERS]
    projections = [region for region in kinds["rmsnorm-linear"] if len(region.family("w")) == 3]
    assert [len(region.sites) for region in projections] == [LAYERS]
    (head,) = kinds["rmsnorm-linear-argmax"]
    assert [port.name for port in head.ports if port.role == "output"] == ["logits", "token"]
    assert all(region.dense for region in found.regions)


def test_the_cover_by_floors_takes_the_fused_regions(captured: Captured):
    found = cut(captured.decode)
    ceiling = Ceiling(dram_bytes_per_s=30e9, cache_bytes_per_s=60e9, flops_per_s=1e12)
    summary = summarise(captured.decode, found, ceiling, "dram")
    taken = Counter({row.region.kind: row.covered for row in summary.rows if row.covered})
    assert summary.exact
    assert len(taken) == 7
    weights = {v.name: v.nbytes() for v in captured.decode.values if v.role == "weight"}
    table = max(weights.values()) if captured.info.architecture.startswith("Llama") else 0
    assert summary.step_bytes >= sum(weights.values()) - table


def test_prefill_is_covered_and_only_permuted_edges_stay_in_bodies(captured: Captured):
    found = cut(captured.prefill)
    heads = "qknorm-rope-append" if captured.info.architecture.startswith("Qwen3") else "rope-append"
    assert not found.boundaries
    assert {len(region.sites) for region in by_kind(found)["rmsnorm-gateup-silu-mul"]} == {LAYERS}
    assert {region.kind for region in found.regions if not region.dense} <= {
        "rope",
        "cache-append",
        "linear",
        "linear-residual",
        "rmsnorm",
        "rmsnorm-linear",
        "rope-append",
        "rope-attention-prefill",
        heads,
        heads.replace("append", "attention-prefill"),
        "heads-linear-residual",
        "last-rmsnorm-linear",
    }
    for name, sites in ((heads, LAYERS), ("add-rmsnorm", 2 * LAYERS - 1)):
        assert [len(region.sites) for region in by_kind(found)[name]] == [sites]
        assert all(region.dense or region.stated for region in by_kind(found)[name])


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_running_region_by_region_gives_what_the_graph_gives(captured: Captured, phase: str):
    graph = captured.decode if phase == "decode" else captured.prefill
    found = cut(graph)
    options = {r.id: (Option(cost_ns=1.0, choice=Fallback(reason="whole")),) for r in found.regions}
    plan = cover(Problem(graph=graph, partition=found, options=options))
    tokens = 1 if phase == "decode" else 5
    generator = torch.Generator().manual_seed(0)
    given: dict[str, torch.Tensor] = {}
    for id in graph.inputs:
        value = graph.table()[id]
        shape = concrete(value.shape, tokens)
        if value.role == "token":
            given[id] = torch.randint(0, 128, shape, generator=generator)
        elif value.role == "position":
            given[id] = torch.arange(tokens)
        else:
            given[id] = torch.randn(shape, generator=generator).to(torch.bfloat16)
    whole = reference.run(graph, {id: tensor.clone() for id, tensor in given.items()})
    aliases = {value.id: value.alias for value in graph.values}
    buffers = {id: tensor.clone() for id, tensor in given.items()}
    for step in schedule(graph, found, plan.parts[0]):
        bound = dict(step.site.bindings)
        outputs = {port.name for port in step.region.ports if port.role == "output"}
        inputs = {}
        for port in step.region.ports:
            if port.name not in outputs:
                owner = bound[port.name]
                while aliases[owner]:
                    owner = aliases[owner]
                inputs[port.name] = buffers[owner].view(concrete(port.shape, tokens))
        for name, tensor in reference.run(step.region.body, inputs).items():
            buffers[bound[name]] = tensor
    for name, use in graph.outputs:
        assert torch.equal(buffers[use.value], whole[name])


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_norm_over_all_heads_at_once_is_no_norm_of_each_head(phase: str, tmp_path: Path) -> None:
    """OLMo-2 normalises queries and keys before it cuts them into heads, Qwen3 afterwards."""
    captured = captures.captured(tiny.write("olmo2", tmp_path), CONTEXT)
    found = cut(captured.decode if phase == "decode" else captured.prefill)
    kinds = by_kind(found)
    assert not [kind for kind in kinds if kind.startswith("qknorm")]
    refused = {refusal.reason for refusal in found.refusals if refusal.kind.startswith("qknorm")}
    assert refused == {"head_dim is 16 and 64 in one region"}
    assert kinds["rope-attention-decode" if phase == "decode" else "rope-append"]
