"""Neighbours' products as one: which of them, and what they make. On the host; how fast it is, a GPU says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentcompile.capture import capture
from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import concrete
from agentcompile.ir.program import Program, TorchCall
from agentcompile.runtime.arena import TORCH_DTYPES, Arena
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.pairs import paired
from agentcompile.runtime.sites import torch_site
from tests.models import tiny
from tests.models.planned import plan_of

CONTEXT, TOKENS = 256, 16
MANY = 132


class Layers:
    """A chunk of a tiny model whose activations all have a place."""

    def __init__(self, path: Path) -> None:
        found = capture(path, context=CONTEXT)
        self.program = plan_of(found, CONTEXT).at(TOKENS).program
        self.memory = Memory([self.program], Checkpoint.open(path).tensor, found.constants)
        self.regions = {region.id: region for region in self.program.regions}
        self.buffers = {buffer.name: buffer for buffer in self.program.buffers}
        arena = Arena(self.program.arena_bytes)
        self.env: dict[str, torch.Tensor] = {}
        for buffer in self.program.buffers:
            if buffer.role in ("weight", "constant", "state"):
                self.env[buffer.name] = self.memory.resident(buffer)
            elif buffer.role == "activation":
                self.env[buffer.name] = arena.view(buffer.offset, concrete(buffer.shape), TORCH_DTYPES[buffer.dtype])
        self.dying: list[tuple[str, ...]] = [() for _ in self.program.calls]

    def weight(self, at: int) -> str:
        return dict(_torch(self.program, at).bindings)["w"]


def _torch(program: Program, at: int) -> TorchCall:
    call = program.calls[at]
    assert isinstance(call, TorchCall)
    return call


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def layers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layers:
    return Layers(tiny.write(request.param, tmp_path_factory.mktemp(request.param)))


def test_keys_and_values_are_one_product_and_so_are_gate_and_up(layers: Layers) -> None:
    pairs = paired(layers.program, layers.regions, layers.env, layers.dying, MANY)
    together = {
        tuple(sorted(layers.weight(at).split(".")[-2] for at in (first, first + 1))) for first in sorted(pairs)[::2]
    }
    assert together == {("k_proj", "v_proj"), ("gate_proj", "up_proj")}
    layered = {layers.weight(at).split(".")[2] for at in pairs}
    assert len(pairs) == 4 * len(layered) - 2  # gate and up of the last layer are for one token


def test_a_pair_makes_what_two_products_make_where_they_make_it(layers: Layers) -> None:
    pairs = paired(layers.program, layers.regions, layers.env, layers.dying, MANY)
    first = min(pairs)
    names = [dict(_torch(layers.program, at).bindings) for at in (first, first + 1)]
    x = layers.env[names[0]["x"]]
    x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))
    for at in (first, first + 1):
        call = _torch(layers.program, at)
        torch_site(call, layers.regions[call.region], layers.buffers, layers.env, layers.memory, direct=True)()
    expected = [layers.env[name["y"]].clone() for name in names]
    others = {name: tensor.clone() for name, tensor in layers.env.items() if name not in {n["y"] for n in names}}
    for name in names:
        layers.env[name["y"]].fill_(float("nan"))
    pairs[first]()
    pairs[first + 1]()
    for name, known in zip(names, expected, strict=True):
        torch.testing.assert_close(layers.env[name["y"]], known, rtol=2**-6, atol=1e-2)
    assert all(torch.equal(layers.env[name], tensor) for name, tensor in others.items())


def test_products_that_fill_the_device_stay_apart(layers: Layers) -> None:
    assert not paired(layers.program, layers.regions, layers.env, layers.dying, 1)


def test_what_has_no_place_or_lies_before_stays_apart(layers: Layers) -> None:
    pairs = paired(layers.program, layers.regions, layers.env, layers.dying, MANY)
    first = min(pairs)
    one, other = (dict(_torch(layers.program, at).bindings)["y"] for at in (first, first + 1))
    unplaced = {name: tensor for name, tensor in layers.env.items() if name != one}
    assert first not in paired(layers.program, layers.regions, unplaced, layers.dying, MANY)
    turned = {**layers.env, one: layers.env[other], other: layers.env[one]}
    assert first not in paired(layers.program, layers.regions, turned, layers.dying, MANY)
    apart = {**layers.env, other: torch.empty_like(layers.env[other])}
    assert first not in paired(layers.program, layers.regions, apart, layers.dying, MANY)


def test_the_activation_of_a_pair_is_dropped_where_nobody_reads_it_later(layers: Layers) -> None:
    pairs = paired(layers.program, layers.regions, layers.env, layers.dying, MANY)
    first = min(pairs)
    name = dict(_torch(layers.program, first).bindings)["x"]
    env, dying = dict(layers.env), list(layers.dying)
    dying[first + 1] = (name,)
    paired(layers.program, layers.regions, env, dying, MANY)[first]()
    assert name not in env
