"""The reference: what operators mean, how views and unknown operators run, and what float64 does."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import Graph, Node, Use, Value, View, concrete
from agentcompile.ir.region import Regime
from agentcompile.ops.attention import attend_in_parts, attention, in_sixteens
from agentcompile.ops.reference import DTYPES, Interpreter, aten, rms_norm, rope, run
from agentcompile.regions.partition import partition
from agentcompile.runtime.sites import one_operator
from tests.unit.graphs import qwen3


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def explicit(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: list[int], scale: float, window: int
) -> torch.Tensor:
    """Attention written out slot by slot."""
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for head in range(q.shape[1]):
        for i, position in enumerate(at):
            first = max(0, position - window + 1) if window else 0
            keys, values = k[0, head // group, first : position + 1], v[0, head // group, first : position + 1]
            out[0, head, i] = torch.softmax(keys @ q[0, head, i] * scale, 0) @ values
    return out


@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("positions", [[0], [6], [0, 1, 2], [4, 5, 6]])
def test_attention_reads_the_slots_it_says_and_no_other(positions: list[int], window: int) -> None:
    q, k, v = randn(1, 4, len(positions), 8, seed=1), randn(1, 2, 10, 8, seed=2), randn(1, 2, 10, 8, seed=3)
    k[:, :, positions[-1] + 1 :] = v[:, :, positions[-1] + 1 :] = torch.nan
    got = attention(q, k, v, torch.tensor(positions), scale=0.3, window=window)
    assert torch.allclose(got, explicit(q, k, v, positions, 0.3, window), atol=1e-6)


@pytest.mark.parametrize("first", [1, 5, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_two_parts_is_attention(first: int, dtype: torch.dtype) -> None:
    positions = list(range(first, first + 7))
    q = 3 * randn(1, 4, 7, 16, seed=1, dtype=dtype)
    k, v = randn(1, 2, 40, 16, seed=2, dtype=dtype), randn(1, 2, 40, 16, seed=3, dtype=dtype)
    asked: list[tuple[int, bool]] = []

    def partial(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A fused kernel of the host's, whose mask begins at the first of both."""
        asked.append((keys.shape[2], causal))
        keys, values = (x.repeat_interleave(2, 1) for x in (keys, values))
        made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, keys, values, 0.0, causal, scale=scale)
        return made[0], made[1]

    seen = slice(0, positions[-1] + 1)
    got = attend_in_parts(q, k[:, :, seen], v[:, :, seen], 0.3, partial)
    expected = explicit(q.double(), k.double(), v.double(), positions, 0.3, 0)
    assert asked == [(first, False), (7, True)]
    assert got.dtype == dtype
    assert got.shape == q.shape
    assert float((got - expected).norm() / expected.norm()) < (1e-6 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize(("dtype", "width"), [(torch.bfloat16, 64), (torch.float16, 8), (torch.float32, 80)])
def test_a_copy_by_sixteen_bytes_has_every_bit(dtype: torch.dtype, width: int) -> None:
    made = randn(2, 3, 5, width, seed=1, dtype=dtype)
    made[0, 0, 0, :2] = torch.nan
    turned = made.transpose(1, 2)
    found = in_sixteens(turned)
    assert found.is_contiguous()
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(found.view(bits), turned.contiguous().view(bits))


def test_rms_norm_rounds_once_before_the_weight() -> None:
    x, weight = randn(1, 3, 16, dtype=torch.bfloat16), 1 + randn(16, seed=1, dtype=torch.bfloat16)
    wide = x.float()
    scaled = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
    assert torch.equal(rms_norm(x, weight, eps=1e-6), weight * scaled)


def test_an_offset_is_added_to_the_weight_before_the_rounding() -> None:
    x, weight = randn(1, 3, 16), randn(16, seed=1)
    assert torch.allclose(rms_norm(x, weight, eps=1e-6, offset=1.0), F.rms_norm(x, (16,), 1 + weight, 1e-6), atol=1e-6)


def test_rope_rotates_pairs_half_a_head_apart() -> None:
    angles = randn(1, 3, 4)
    x, cos, sin = randn(1, 2, 3, 8, seed=2), angles.cos(), angles.sin()
    turned = (
        torch.view_as_complex(torch.stack([x[..., :4], x[..., 4:]], -1)) * torch.polar(torch.ones(()), angles)[:, None]
    )
    got = rope(x, torch.cat([cos, cos], -1), torch.cat([sin, sin], -1), style="half")
    assert torch.allclose(got, torch.cat([turned.real, turned.imag], -1), atol=1e-6)


def value(id: str, *shape: int | str, dtype: str = "fp32", role: str = "activation", alias: str = "") -> Value:
    return Value(id=id, shape=shape, dtype=dtype, role=role, alias=alias)  # type: ignore[arg-type]


def plain(op: str, *inputs: str, out: str = "y", **attrs: object) -> Node:
    named = tuple(attrs.items())
    return Node(id="n", op=op, inputs=tuple(Use(value=i) for i in inputs), outputs=(out,), attrs=named)  # type: ignore[arg-type]


def test_symbolic_views_are_bound_to_the_chunk_at_hand() -> None:
    views = (View(op="reshape", args=(1, "T", 2, 3)), View(op="permute", args=(0, 2, 1, 3)))
    last = (View(op="slice", args=(1, -1, "T")),)
    node = Node(id="n", op="silu", inputs=(Use(value="x", views=views),), outputs=("y",))
    graph = Graph(
        phase="prefill",
        values=(value("x", 1, "T", 6), value("y", 1, 2, "T", 3)),
        nodes=(node,),
        inputs=("x",),
        outputs=(("y", Use(value="y")), ("last", Use(value="x", views=last))),
    )
    interpreter = Interpreter(graph)
    for count in (1, 4):
        x = randn(1, count, 6)
        out = interpreter({"x": x})
        assert torch.equal(out["y"], F.silu(x.view(1, count, 2, 3).transpose(1, 2)))
        assert torch.equal(out["last"], x[:, -1:])


def test_a_state_is_written_in_place_and_seen_through_its_new_value() -> None:
    append = Node(
        id="n",
        op="cache_append",
        inputs=(Use(value="k"), Use(value="new"), Use(value="p")),
        outputs=("k2",),
        mutates=(0,),
    )
    graph = Graph(
        phase="decode",
        values=(
            value("k", 1, 1, 4, 2, role="state"),
            value("new", 1, 1, 1, 2),
            value("p", 1, dtype="int64", role="position"),
            value("k2", 1, 1, 4, 2, alias="k"),
        ),
        nodes=(append,),
        inputs=("k", "new", "p"),
        outputs=(("k2", Use(value="k2")),),
    )
    cache, new = torch.zeros(1, 1, 4, 2), randn(1, 1, 1, 2)
    out = run(graph, {"k": cache, "new": new, "p": torch.tensor([2])})
    assert torch.equal(cache[:, :, 2:3], new)
    assert out["k2"].data_ptr() == cache.data_ptr()


def unknown(op: str, template: dict[str, object], *outs: Value) -> Graph:
    attrs = (("template", json.dumps({"kwargs": {}, **template})),)
    node = Node(id="n", op=op, inputs=(Use(value="x"),), outputs=tuple(out.id for out in outs), attrs=attrs)
    outputs = tuple((out.id, Use(value=out.id)) for out in outs)
    return Graph(phase="prefill", values=(value("x", 1, "T", 4), *outs), nodes=(node,), inputs=("x",), outputs=outputs)


def test_unknown_operators_run_by_name_with_their_arguments() -> None:
    x = randn(1, 3, 4)
    graph = unknown(
        "aten.cumsum.default", {"args": [{"$": 0}, -1], "kwargs": {"dtype": {"$dtype": "fp32"}}}, value("y", 1, "T", 4)
    )
    assert torch.equal(run(graph, {"x": x})["y"], x.cumsum(-1))
    assert run(graph, {"x": x}, precision="float64")["y"].dtype == torch.float64
    graph = unknown(
        "aten.sort.default", {"args": [{"$": 0}, -1]}, value("a", 1, "T", 4), value("b", 1, "T", 4, dtype="int64")
    )
    out = run(graph, {"x": x})
    assert torch.equal(out["a"], x.sort(-1).values)
    assert torch.equal(out["b"], x.sort(-1).indices)
    graph = unknown("aten.reshape.default", {"args": [{"$": 0}, [{"$t": 2}, 2]]}, value("y", "T", 2))
    assert run(graph, {"x": x})["y"].shape == (6, 2)


def test_an_operator_that_does_not_exist_is_named() -> None:
    with pytest.raises(KeyError, match=r"aten\.nonsense\.default"):
        aten("aten.nonsense.default")


def test_float64_takes_casts_and_parameters_along() -> None:
    graph = Graph(
        phase="decode",
        values=(
            value("x", 1, 1, 4, dtype="bf16"),
            value("w", 4, dtype="bf16", role="weight"),
            value("a", 1, 1, 4),
            value("y", 1, 1, 4),
        ),
        nodes=(plain("cast", "x", out="a", to="fp32"), plain("mul", "a", "w")),
        inputs=("x", "w"),
        outputs=(("y", Use(value="y")),),
    )
    x, w = randn(1, 1, 4, dtype=torch.bfloat16), randn(4, seed=1, dtype=torch.bfloat16)
    seen: dict[str, torch.dtype] = {}
    out = run(
        graph, {"x": x, "w": w}, precision="float64", observe=lambda name, tensor: seen.update({name: tensor.dtype})
    )
    assert torch.equal(out["y"], x.double() * w.double())
    assert seen == {"a": torch.float64, "y": torch.float64}


def test_tensors_are_mapped_from_the_file_without_copies(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {"a": randn(3, 4), "b": randn(5, dtype=torch.bfloat16), "c": torch.arange(6)}
    save_file(tensors, tmp_path / "model.safetensors")
    sizes = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    opened = Checkpoint.open(tmp_path)
    for name, tensor in tensors.items():
        assert torch.equal(opened.tensor(name), tensor)
    assert opened.tensor("a").untyped_storage().data_ptr() == opened.tensor("b").untyped_storage().data_ptr()
    opened.tensor("a").zero_()
    assert torch.equal(Checkpoint.open(tmp_path).tensor("a"), tensors["a"])


def test_tensors_at_odd_offsets_are_read_all_the_same(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "o": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
            "f": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        }
    )
    raw = struct.pack("<Q", len(header)) + header.encode() + b"\1" + struct.pack("<2f", 1.5, -2.0)
    (tmp_path / "model.safetensors").write_bytes(raw)
    sizes = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    assert Checkpoint.open(tmp_path).tensor("f").tolist() == [1.5, -2.0]


def test_one_operator_by_itself_is_what_the_interpreter_makes_of_it() -> None:
    graph = qwen3(2)
    found = partition(graph, Regime(phase="decode", context=(1, 32)))
    singles = [region for region in found.regions if len(region.body.nodes) == 1]
    tried = 0
    for region in singles:
        run = one_operator(region.body, 1)
        if run is None:
            continue
        generator = torch.Generator().manual_seed(3)
        values = region.body.table()
        inputs = {
            name: torch.zeros(concrete(values[name].shape), dtype=torch.int64)
            if values[name].dtype == "int64"
            else torch.randn(concrete(values[name].shape), generator=generator).to(DTYPES[values[name].dtype])
            for name in region.body.inputs
        }
        other = {name: tensor.clone() for name, tensor in inputs.items()}
        expected = Interpreter(region.body)(inputs)
        made = run([other[name] for name in region.body.inputs])
        assert all(torch.equal(made, tensor) for tensor in expected.values())
        assert all(torch.equal(other[name], inputs[name]) for name in inputs)  # what an append writes, too
        tried += 1
    assert tried >= 10
    assert one_operator(graph, 1) is None
