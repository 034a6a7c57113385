"""A decoder outside transformers: every spelling of it is one program, and what has no name is kept and run."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from agentcompile.capture import Captured, capture
from agentcompile.capture.module import save, spec_of
from agentcompile.capture.protocol import DecoderSpec
from agentcompile.checkpoint import Checkpoint
from agentcompile.errors import AgentCompileError
from tests.models import tiny
from tests.models.handwritten import Handwritten, Leaky, Odd, Shape, Spelling, Stubborn

CONTEXT = 32
BETWEEN = frozenset({"cache", "mask", "sums", "flat"})
"""Spellings of what goes from layer to layer, or serves all of them: two layers show it. Each of the others lies within
one layer, which is captured in half the time."""


Plain = Callable[[Handwritten], Captured]


def options() -> list[dict[str, object]]:
    """One departure from the default spelling at a time, and a few together."""
    hints = typing.get_type_hints(Spelling)
    single: list[dict[str, object]] = [
        {name: value}
        for name, hint in hints.items()
        for value in ((True,) if hint is bool else typing.get_args(hint)[1:])
    ]
    together: list[dict[str, object]] = [
        {"norm": "pow", "attention": "softmax", "rotate": "chunk", "mask": "additive", "linear": "matmul"},
        {
            "norm": "divide",
            "attention": "masked",
            "rotate": "halves",
            "cache": "scatter",
            "silu": "sigmoid",
            "flat": True,
        },
        {"norm": "wide", "attention": "einsum", "rotate": "before", "cache": "assign", "mask": "where", "packed": True},
    ]
    return single + together


def eager(model: Handwritten, tokens: torch.Tensor, context: int = CONTEXT) -> torch.Tensor:
    """[T, vocab]: the module itself over all tokens at once."""
    with torch.no_grad():
        logits: torch.Tensor = model(tokens[None], torch.arange(tokens.numel()), model.fresh(context))[0]
    return logits


def taken(model: nn.Module, tmp_path: Path) -> Captured:
    return capture(model, context=CONTEXT, save_to=tmp_path / "weights")


def agrees(
    model: Handwritten, captured: Captured, chunks: tuple[int, ...] = (1, 2, 5), tolerance: float = 1e-5
) -> None:
    tokens = torch.randint(0, model.shape.vocab, (CONTEXT,), generator=torch.Generator().manual_seed(5))
    got, want = tiny.Stepper(captured).logits(tokens, chunks), eager(model, tokens)
    assert len(got) >= 20
    assert max(float((logits - want[position]).abs().max()) for position, logits in got.items()) < tolerance


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return taken(Handwritten(), tmp_path_factory.mktemp("default"))


def test_a_handwritten_decoder_runs_as_itself(tmp_path: Path, default: Captured) -> None:
    agrees(Handwritten(), default)
    assert default.info.architecture == "Handwritten"
    assert default.decode.notes == ()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, default: Captured) -> Plain:
    """The default spelling of a shape in a dtype, captured once for all other spellings of it."""
    known = {(Shape(), torch.float32): default}

    def of(model: Handwritten) -> Captured:
        key = (model.shape, next(model.parameters()).dtype)
        if key not in known:
            known[key] = taken(Handwritten(model.shape).to(key[1]), tmp_path_factory.mktemp("plain"))
        return known[key]

    return of


@pytest.mark.parametrize("changes", options(), ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()))
def test_two_spellings_of_one_program_have_one_digest(changes: dict[str, object], tmp_path: Path, plain: Plain) -> None:
    layers = 2 if len(changes) > 1 or BETWEEN & set(changes) else 1
    model = Handwritten(Shape(layers=layers)).respelled(**changes)
    captured, default = taken(model, tmp_path), plain(model)
    assert captured.decode.digest() == default.decode.digest()
    assert captured.prefill.digest() == default.prefill.digest()
    assert {name: table.tobytes() for name, table in numpy(captured).items()} == {
        n: t.tobytes() for n, t in numpy(default).items()
    }
    agrees(model, captured)


def numpy(captured: Captured) -> dict[str, typing.Any]:
    return {name: table.numpy() for name, table in captured.constants.items()}


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pow", "attention": "softmax", "rotate": "halves", "linear": "matmul"}]
)
@pytest.mark.parametrize(
    "extents", [{"kv_heads": 1}, {"kv_heads": 4}, {"heads": 1, "kv_heads": 1}, {"bias": True}, {"window": 5}]
)
def test_spellings_agree_at_other_extents(
    changes: dict[str, object], extents: dict[str, int], plain: Plain, tmp_path: Path
) -> None:
    default = Handwritten(Shape(layers=1, **extents))  # type: ignore[arg-type]
    model = default.respelled(**changes)
    captured = taken(model, tmp_path / "a") if changes else plain(default)
    assert captured.decode.notes == captured.prefill.notes == ()
    assert captured.decode.digest() == plain(default).decode.digest()
    agrees(model, captured)
    windows = {node.attr("window") for node in captured.decode.nodes if node.op == "attention"}
    assert windows == {extents.get("window", 0)}


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "wide", "attention": "masked", "rotate": "chunk"}, {"norm": "times", "attention": "softmax"}],
)
def test_spellings_agree_in_bfloat16(changes: dict[str, object], plain: Plain, tmp_path: Path) -> None:
    default = Handwritten().to(torch.bfloat16)
    captured = taken(default.respelled(**changes), tmp_path / "a") if changes else plain(default)
    assert captured.info.dtype == "bf16"
    assert captured.decode.notes == ()
    assert captured.decode.digest() == plain(default).decode.digest()
    agrees(default.respelled(**changes), captured, tolerance=0.15)


def test_a_handwritten_llama_is_the_llama_of_transformers(tmp_path: Path) -> None:
    theirs = capture(tiny.write("llama", tmp_path / "llama"), context=CONTEXT)
    config = theirs.info
    eps = next(node.attr("eps") for node in theirs.decode.nodes if node.op == "rms_norm")
    ours = taken(Handwritten(Shape(vocab=config.vocab, hidden=config.hidden, eps=float(eps))), tmp_path)  # type: ignore[arg-type]
    assert ours.decode.digest() == theirs.decode.digest()
    assert ours.prefill.digest() == theirs.prefill.digest()


def test_another_program_has_another_digest(plain: Plain) -> None:
    shapes = [Shape(), *(Shape(layers=1, **more) for more in ({}, {"eps": 1e-6}, {"window": 5}, {"bias": True}))]  # type: ignore[arg-type]
    assert len({plain(Handwritten(shape)).decode.digest() for shape in shapes}) == len(shapes)


def test_unknown_operators_are_kept_named_and_run(tmp_path: Path) -> None:
    model = Odd()
    captured = taken(model, tmp_path)
    kept = {node.op for node in captured.decode.nodes if node.op.startswith("aten.")}
    assert {"aten.sort.default", "aten.cumsum.default", "aten.special_erf.default"} <= kept
    assert any("aten.cumsum.default" in note for note in captured.decode.notes)
    assert "attention" in {node.op for node in captured.decode.nodes}
    agrees(model, captured)


def test_a_write_that_is_no_append_is_declared_and_run(tmp_path: Path) -> None:
    model = Leaky()
    captured = taken(model, tmp_path)
    writers = [node for node in captured.decode.nodes if node.mutates]
    assert {node.op for node in writers} == {"aten.copy_.default", "cache_append"}
    table = captured.decode.table()
    assert all(table[node.outputs[0]].alias in ("k.0", "k.1", "v.0", "v.1") for node in writers)
    stepper, caches = tiny.Stepper(captured), model.fresh(CONTEXT)
    for state in stepper.states.values():
        state.zero_()
    tokens = torch.arange(6)
    with torch.no_grad():
        want = [model(tokens[None, p : p + 1], torch.tensor([p]), caches)[0, 0] for p in range(6)]
    got = stepper.logits(tokens, chunks=())
    assert max(float((got[p] - want[p]).abs().max()) for p in range(6)) < 1e-5


def test_a_decoder_for_one_token_alone_prefills_one_by_one(tmp_path: Path, default: Captured) -> None:
    captured = taken(Stubborn(), tmp_path)
    assert captured.prefill.table()["tokens"].shape == (1, 1)
    assert any("one token at a time" in note for note in captured.prefill.notes)
    assert captured.decode.digest() == default.decode.digest()
    agrees(Handwritten(), captured, chunks=(1, 1, 1))


def test_prefill_computes_the_last_tokens_logits_alone(default: Captured) -> None:
    logits = default.prefill.producers()[default.prefill.outputs[0][1].value]
    assert default.prefill.table()[logits.outputs[0]].shape == (1, 1, 96)
    norm = default.prefill.producers()[logits.inputs[0].value]
    assert norm.op == "rms_norm"
    assert [view.op for view in norm.inputs[0].views] == ["slice"]


def test_capture_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    model = Handwritten(Shape(layers=1)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    taken(model, tmp_path)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_is_no_decoder_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="Linear: spec: missing"):
        taken(nn.Linear(2, 2), tmp_path)
    with pytest.raises(AgentCompileError, match="nowhere to save"):
        capture(Handwritten(), context=CONTEXT)
    broken = Handwritten()
    broken.spec = DecoderSpec(vocab=96, hidden=64, layers=2, heads=4, kv_heads=3, head_dim=16)
    with pytest.raises(AgentCompileError, match="kv_heads: 3 does not divide heads 4"):
        taken(broken, tmp_path)
    mistaken = Handwritten()
    mistaken.spec = DecoderSpec(vocab=96, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=8)
    with pytest.raises(AgentCompileError, match="cannot be traced") as caught:
        taken(mistaken, tmp_path)
    assert "protocol" in caught.value.hint


class Tabled(Handwritten):
    """Rotary rows come from a buffer, as many decoders keep them."""

    def __init__(self, theta: float) -> None:
        super().__init__(Shape(theta=theta))
        cos, sin = super().rows(torch.arange(64))
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin, persistent=False)

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cos[positions], self.sin[positions]  # type: ignore[index]


def test_tables_kept_in_buffers_are_the_same_program(tmp_path: Path, default: Captured) -> None:
    model = Tabled(10000.0)
    captured = taken(model, tmp_path / "a")
    assert captured.decode.digest() == default.decode.digest()
    agrees(model, captured)
    other = Tabled(500.0)
    save(other, spec_of(other), tmp_path / "b")
    assert Checkpoint.open(tmp_path / "b").config_digest() != captured.info.config_digest


def test_a_saved_module_is_not_captured_from_its_directory(default: Captured) -> None:
    with pytest.raises(AgentCompileError, match="saved from a module"):
        capture(default.checkpoint, context=CONTEXT)
