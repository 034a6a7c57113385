"""Checkpoints of transformers' architectures: captured without weights, the same logits as the model itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from agentcompile.capture import Captured, capture
from agentcompile.errors import AgentCompileError
from agentcompile.ir.graph import Graph
from agentcompile.ops.reference import OPERATORS
from bench.models.presets import PRESETS, materialise, with_layers
from tests.models import tiny

CONTEXT = 48


@dataclass(frozen=True)
class Case:
    path: Path
    captured: Captured


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """A checkpoint of an architecture and what was captured of it: once for all tests that look at it."""

    @cache
    def make(name: str) -> Case:
        path = tiny.write(name, tmp_path_factory.mktemp(name))
        return Case(path, capture(path, context=CONTEXT))

    return make


@pytest.fixture(scope="module", params=list(tiny.CONFIGS))
def case(request: pytest.FixtureRequest, made: Callable[[str], Case]) -> Case:
    return made(request.param)


def expected(path: Path, tokens: torch.Tensor) -> torch.Tensor:
    """[T, vocab]: one forward pass of the model over all tokens, no cache."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", attn_implementation="eager").eval()
    with torch.no_grad():
        logits: torch.Tensor = model(tokens[None], use_cache=False).logits[0]
    return logits


def prompt(captured: Captured, length: int = CONTEXT, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, captured.info.vocab, (length,), generator=torch.Generator().manual_seed(seed))


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def worst(got: dict[int, torch.Tensor], want: torch.Tensor) -> float:
    return max(float((logits - want[position]).abs().max()) for position, logits in got.items())


def test_chunked_prefill_and_decode_match_a_full_recompute(case: Case) -> None:
    tokens = prompt(case.captured)
    got = tiny.Stepper(case.captured).logits(tokens, chunks=(1, 2, 7, 5))
    assert len(got) == 4 + CONTEXT - 15
    assert worst(got, expected(case.path, tokens)) < 2e-5


@pytest.mark.parametrize("preset", ["tiny-qwen3", "tiny-llama"])
def test_presets_match_a_full_recompute(preset: str, tmp_path: Path) -> None:
    path = materialise(preset, tmp_path / preset, dtype="fp32")
    captured = capture(path, context=CONTEXT)
    tokens = prompt(captured)
    got = tiny.Stepper(captured).logits(tokens, chunks=(11, 9))
    assert worst(got, expected(path, tokens)) < 1e-5


def test_every_operator_has_its_normalised_name(case: Case) -> None:
    captured = case.captured
    for graph in (captured.decode, captured.prefill):
        assert set(kinds(graph)) <= set(OPERATORS)
        assert graph.notes == ()
    counts, layers = kinds(captured.decode), captured.info.layers
    assert counts["attention"] == layers
    assert counts["cache_append"] == counts["rope"] == 2 * layers
    assert counts["silu"] == layers
    assert counts["argmax"] == 1


def test_a_window_is_kept_and_its_cache_is_whole(made: Callable[[str], Case]) -> None:
    captured = made("mistral").captured
    windows = {node.attr("window") for node in captured.decode.nodes if node.op == "attention"}
    assert windows == {7}
    assert {state.shape[2] for state in captured.info.states} == {CONTEXT}


def test_bfloat16_steps_stay_close_to_eager_and_beside_float64(tmp_path: Path) -> None:
    path = tiny.write("qwen3", tmp_path, dtype=torch.bfloat16)
    captured = capture(path, context=CONTEXT)
    assert captured.info.dtype == "bf16"
    tokens = prompt(captured)
    exact = tiny.Stepper(captured, "float64").logits(tokens, chunks=(8,))
    model = tiny.Stepper(captured).logits(tokens, chunks=(8,))
    want = expected(path, tokens)
    ours = torch.stack([(model[p].double() - exact[p]).square().mean() for p in exact]).mean().sqrt()
    eager = torch.stack([(want[p].double() - exact[p]).square().mean() for p in exact]).mean().sqrt()
    assert all(logits.dtype == torch.float64 for logits in exact.values())
    assert ours <= 1.2 * eager


def test_a_bfloat16_layer_has_the_very_bits_of_eager_before_attention(tmp_path: Path) -> None:
    import transformers

    path = tiny.write("llama-bias", tmp_path, dtype=torch.bfloat16)
    captured = capture(path, context=CONTEXT)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()
    tokens = prompt(captured, 6)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(tokens[None], past_key_values=cache)
    stepper = tiny.Stepper(captured)
    stepper.feed("prefill", tokens, 0)
    assert torch.equal(stepper.states["k.0"][:, :, :6], cache.layers[0].keys)
    assert torch.equal(stepper.states["v.0"][:, :, :6], cache.layers[0].values)


def test_shards_and_tied_heads_are_read_under_their_stored_names(tmp_path: Path) -> None:
    captured = capture(tiny.write("llama-tied", tmp_path, shard="60KB"), context=CONTEXT)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    weights = {value.name for value in captured.decode.values if value.role == "weight"}
    assert "model.embed_tokens.weight" in weights
    assert "lm_head.weight" not in weights


def test_the_same_architecture_gives_the_same_digest_whatever_the_weights(
    tmp_path: Path, made: Callable[[str], Case]
) -> None:
    first = made("llama").captured
    second = capture(tiny.write("llama", tmp_path, seed=2), context=CONTEXT)
    assert first.decode.digest() == second.decode.digest()
    assert first.prefill.digest() == second.prefill.digest()
    assert first.decode.digest() != capture(first.checkpoint, context=CONTEXT - 1).decode.digest()


def test_states_are_the_only_values_written_and_say_so(case: Case) -> None:
    for graph in (case.captured.decode, case.captured.prefill):
        table = graph.table()
        for node in graph.nodes:
            assert node.mutates == ((0,) if node.op == "cache_append" else ())
            for index in node.mutates:
                assert table[node.inputs[index].value].role == "state"
                assert table[node.outputs[0]].alias == node.inputs[index].value
        assert [value.id for value in graph.values if value.alias] == [
            n.outputs[0] for n in graph.nodes if n.op == "cache_append"
        ]


def test_decode_views_are_one_reshape_at_most(made: Callable[[str], Case]) -> None:
    captured = made("llama").captured
    chains = [use.views for node in captured.decode.nodes for use in node.inputs]
    assert all(len(chain) <= 1 and all(view.op == "reshape" for view in chain) for chain in chains)


def test_values_and_nodes_are_in_topological_order(case: Case) -> None:
    for graph in (case.captured.decode, case.captured.prefill):
        known = set(graph.inputs)
        for node in graph.nodes:
            assert {use.value for use in node.inputs} <= known
            known |= set(node.outputs)
        assert [value.id for value in graph.values if value.id in graph.inputs] == list(graph.inputs)
        assert {value.id for value in graph.values} == known


def test_operators_carry_the_module_and_line_they_come_from(made: Callable[[str], Case]) -> None:
    captured = made("llama").captured
    linear = next(node for node in captured.decode.nodes if node.op == "linear")
    assert linear.module == "model.layers.0.self_attn.q_proj"
    assert linear.source.partition(":")[2].isdigit()


def test_stop_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    tiny.write("llama", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3]}))
    assert capture(tmp_path, context=CONTEXT).info.eos == (3, 7)
    (tmp_path / "generation_config.json").unlink()
    assert capture(tmp_path, context=CONTEXT).info.eos == (1,)


def test_a_published_shape_is_captured_without_its_weights(tmp_path: Path) -> None:
    preset = with_layers(PRESETS["qwen3-0.6b"], 3)
    path = tiny.header_only(tmp_path / "shape", dict(preset.config), {t.name: t.shape for t in preset.tensors})
    captured = capture(path, context=4096)
    assert kinds(captured.decode)["linear"] == 7 * 3 + 1
    assert captured.constants["rope.cos"].shape == (4096, 128)
    assert captured.constants["rope.cos"].dtype == torch.bfloat16


def test_an_unknown_architecture_is_refused_with_its_name(tmp_path: Path) -> None:
    tiny.write("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "gizmo"}))
    with pytest.raises(AgentCompileError, match="model_type: 'gizmo'") as caught:
        capture(tmp_path, context=CONTEXT)
    assert "transformers" in caught.value.hint


def test_weights_of_another_shape_are_refused_with_both_shapes(tmp_path: Path) -> None:
    tiny.write("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    with pytest.raises(
        AgentCompileError, match=r"gate_proj.weight: shape \[112, 64\], but config.json asks for \[128, 64\]"
    ):
        capture(tmp_path, context=CONTEXT)


def test_more_layers_than_tensors_are_refused_before_they_are_built(tmp_path: Path) -> None:
    tiny.write("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5_000_000}))
    with pytest.raises(AgentCompileError, match="num_hidden_layers: 5000000, but only 21 tensors are stored"):
        capture(tmp_path, context=CONTEXT)


def test_a_context_beyond_the_models_own_is_refused(tmp_path: Path) -> None:
    tiny.write("llama", tmp_path)
    with pytest.raises(AgentCompileError, match="257 is more than max_position_embeddings 256"):
        capture(tmp_path, context=257)
    with pytest.raises(AgentCompileError, match="less than 2"):
        capture(tmp_path, context=1)
