"""Neighbours' products as one: which of them, and what they make. On the host; how fast it is, a GPU says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from agentcompile.checkpoint import Checkpoint
from agentcompile.ir.graph import concrete
from agentcompile.ir.program import NativeCall, Program, TorchCall
from agentcompile.ir.template import Launch
from agentcompile.ops.reference import DTYPES
from agentcompile.runtime.arena import Arena
from agentcompile.runtime.memory import Memory
from agentcompile.runtime.merging import merged
from agentcompile.runtime.sites import Action, torch_site
from tests.models import captures, tiny
from tests.models.planned import plan_of

CONTEXT, TOKENS = 256, 16
MANY = 132


class Merged(NamedTuple):
    actions: dict[int, Action]
    env: dict[str, torch.Tensor]


class Layers:
    """A chunk of a tiny model whose activations all have a place."""

    def __init__(self, path: Path) -> None:
        found = captures.captured(path, CONTEXT)
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
                self.env[buffer.name] = arena.view(buffer.offset, concrete(buffer.shape), DTYPES[buffer.dtype])
            elif buffer.zeroed:
                self.env[buffer.name] = torch.zeros(concrete(buffer.shape), dtype=DTYPES[buffer.dtype])
        self.dying: list[tuple[str, ...]] = [() for _ in self.program.calls]
        self.rooms: list[torch.Tensor] = []

    def weight(self, at: int) -> str:
        return dict(_torch(self.program, at).bindings)["w"].split(".")[-2]

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.rooms.append(torch.full(shape, torch.nan, dtype=dtype))
        return self.rooms[-1]

    def merged(self, blocks: int = MANY, **other: torch.Tensor | None) -> Merged:
        """What runs instead of what, and the tensors then; some of these may be `other` ones, or have no place."""
        env = {name: tensor for name, tensor in {**self.env, **other}.items() if tensor is not None}
        found = merged(self.program, self.regions, env, self.dying, blocks, self.room)
        return Merged(found, env)

    def groups(self, found: Merged) -> list[list[str]]:
        """The weights of what runs as one, in order."""
        groups: list[list[str]] = []
        for at in sorted(found.actions):
            together = groups and at - 1 in found.actions and self.activation(at) == self.activation(at - 1)
            groups = groups if together else [*groups, []]
            groups[-1].append(self.weight(at))
        return groups

    def first(self, found: Merged, weight: str) -> int:
        return next(at for at in sorted(found.actions) if self.weight(at) == weight)

    def activation(self, at: int) -> str:
        return dict(_torch(self.program, at).bindings)["x"]


def _torch(program: Program, at: int) -> TorchCall:
    call = program.calls[at]
    assert isinstance(call, TorchCall)
    return call


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def layers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layers:
    return Layers(tiny.write(request.param, tmp_path_factory.mktemp(request.param)))


def test_queries_keys_and_values_are_one_product_and_gate_and_up_a_batch(layers: Layers) -> None:
    groups = layers.groups(layers.merged())
    # In the first layer the angles are made between queries and keys; gate and up of the last are for one token.
    assert groups == [["k_proj", "v_proj"], ["gate_proj", "up_proj"], ["q_proj", "k_proj", "v_proj"]]


@pytest.mark.parametrize("wanted", ["q_proj", "gate_proj"])
def test_they_make_what_the_products_make_by_themselves(layers: Layers, wanted: str) -> None:
    found = layers.merged()
    first = layers.first(found, wanted)
    count = 3 if wanted == "q_proj" else 2
    names = [dict(_torch(layers.program, at).bindings) for at in range(first, first + count)]
    x = layers.env[names[0]["x"]]
    x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))
    for at in range(first, first + count):
        call = _torch(layers.program, at)
        torch_site(call, layers.regions[call.region], layers.buffers, layers.env, layers.memory, direct=True)()
    expected = [layers.env[name["y"]].clone() for name in names]
    others = {name: tensor.clone() for name, tensor in layers.env.items() if name not in {n["y"] for n in names}}
    for name in names:
        found.env[name["y"]].fill_(float("nan"))
    for at in range(first, first + count):
        found.actions[at]()
    for name, known in zip(names, expected, strict=True):
        torch.testing.assert_close(found.env[name["y"]], known, rtol=2**-6, atol=1e-2)
    assert all(torch.equal(layers.env[name], tensor) for name, tensor in others.items())


def test_their_reader_is_told_how_far_a_token_is_from_the_next(layers: Layers) -> None:
    found = layers.merged()
    told = 0
    for call in layers.program.calls:
        if isinstance(call, NativeCall) and call.launch.pitched:
            of = dict(zip(call.launch.arguments, call.pointers, strict=True))
            for name, space in call.launch.pitched:
                tensor, pitch = found.env[of[name]], int(found.env[of[space]])
                assert tensor.shape == layers.env[of[name]].shape
                assert tensor.stride()[-2:] == (pitch or tensor.shape[-1], 1)
                told += pitch > 0
    assert told == 3


def test_what_has_another_reader_or_lies_apart_is_no_column(layers: Layers) -> None:
    first = layers.first(layers.merged(), "q_proj")
    names = [dict(_torch(layers.program, at).bindings) for at in range(first, first + 3)]
    reader = next(at for at, call in enumerate(layers.program.calls) if at >= first + 3 and names[0]["y"] in call.uses)
    call = layers.program.calls[reader]
    assert isinstance(call, NativeCall)
    dense = replace(call, launch=replace(call.launch, pitched=call.launch.pitched[:2]))
    calls = list(layers.program.calls)
    for changed in ([*calls[:reader], dense, *calls[reader + 1 :]], [*calls, replace(calls[reader])]):
        program = replace(layers.program, calls=tuple(changed))
        dying: list[tuple[str, ...]] = [() for _ in changed]
        found = merged(program, layers.regions, dict(layers.env), dying, MANY, layers.room)
        assert first not in found
        assert {first + 1, first + 2} <= found.keys()  # keys and values are of one size
    apart = layers.merged(**{names[0]["w"]: layers.env[names[0]["w"]].clone()})
    assert first not in apart.actions


def test_launches_of_one_kernel_that_share_the_width_read_the_results_together(layers: Layers) -> None:
    first = layers.first(layers.merged(), "q_proj")
    q = dict(_torch(layers.program, first).bindings)["y"]
    at = next(at for at, call in enumerate(layers.program.calls) if at >= first + 3 and q in call.uses)
    reader = layers.program.calls[at]
    assert isinstance(reader, NativeCall)
    of_q = [name for name, pointer in zip(reader.launch.arguments, reader.pointers, strict=True) if pointer == q]

    def part(dropped: list[str]) -> NativeCall:
        kept = [i for i, name in enumerate(reader.launch.arguments) if name not in dropped]
        pitched = tuple(pair for pair in reader.launch.pitched if pair[0] not in dropped)
        launch = replace(reader.launch, pitched=pitched, arguments=tuple(reader.launch.arguments[i] for i in kept))
        return replace(reader, launch=launch, pointers=tuple(reader.pointers[i] for i in kept))

    two = [part(of_q), part(["k", "v", "k_cache", "v_cache"])]
    calls = [*layers.program.calls[:at], *two, *layers.program.calls[at + 1 :]]
    space = dict(zip(reader.launch.arguments, reader.pointers, strict=True))[reader.launch.pitched[0][1]]

    def widths(changed: list[NativeCall | TorchCall]) -> tuple[int, bool]:
        env, dying = dict(layers.env), [() for _ in changed]
        env[space] = torch.zeros_like(env[space])
        found = merged(replace(layers.program, calls=tuple(changed)), layers.regions, env, dying, MANY, layers.room)
        return int(env[space]), first in found

    width, together = widths([*calls])
    assert together
    assert width > 0
    # A kernel makes the queries, densely: then keys and values may not be columns of a matrix of their own.
    kernel = NativeCall(
        source="", launch=Launch(entry="made", arguments=("y",), grid=(), block=()), pointers=(q,), region=""
    )
    assert widths([*calls[:first], kernel, *calls[first + 1 :]]) == (0, False)


def test_products_that_fill_the_device_stay_apart(layers: Layers) -> None:
    assert layers.groups(layers.merged(0)) == []
    # One block at a time: the results are a tile or two, of a wave each.
    assert layers.groups(layers.merged(1)) == [["k_proj", "v_proj"], ["gate_proj", "up_proj"], ["k_proj", "v_proj"]]


def test_what_has_no_place_or_lies_before_stays_apart(layers: Layers) -> None:
    found = layers.merged()
    first = layers.first(found, "gate_proj")
    one, other = (dict(_torch(layers.program, at).bindings)["y"] for at in (first, first + 1))
    assert first not in layers.merged(**{one: None}).actions
    assert first not in layers.merged(**{one: layers.env[other], other: layers.env[one]}).actions
    assert first not in layers.merged(**{other: torch.empty_like(layers.env[other])}).actions


@pytest.mark.parametrize("wanted", ["q_proj", "gate_proj"])
def test_their_activation_is_dropped_where_nobody_reads_it_later(layers: Layers, wanted: str) -> None:
    found = layers.merged()
    first = layers.first(found, wanted)
    env, dying = dict(layers.env), list(layers.dying)
    dying[first + 1] = (layers.activation(first),)
    merged(layers.program, layers.regions, env, dying, MANY, layers.room)[first]()
    assert layers.activation(first) not in env
