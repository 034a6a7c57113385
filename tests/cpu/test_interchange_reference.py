"""The reference code of exported definitions computes what the regions' own reference does, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agentcompile.capture.batched import batched
from agentcompile.capture.chunked import at_tokens
from agentcompile.interchange.code import identifiers, program
from agentcompile.ir.graph import Graph
from agentcompile.ir.region import Regime, Region
from agentcompile.ops import reference
from agentcompile.regions.kinds import SIGNATURES
from agentcompile.regions.partition import partition
from agentcompile.validate.cases import cases
from agentcompile.validate.inputs import Generator
from tests.unit.graphs import Builder, Shape, decoder

CONTEXT = 64
BATCH, TOKENS = 3, 5
GRAPHS: dict[str, tuple[Callable[[], Graph], int]] = {
    "a step": (lambda: decoder(Shape()), 1),
    "a step without norms of queries and keys, in float32": (lambda: decoder(Shape(qk_norm=False, dtype="fp32")), 1),
    "a step of several sequences": (lambda: batched(decoder(Shape()), BATCH), BATCH),
    "a chunk of any length": (lambda: decoder(Shape(), "prefill"), TOKENS),
    "a chunk of one length": (lambda: at_tokens(decoder(Shape(), "prefill"), TOKENS), TOKENS),
}
"""Graphs, and how many tokens each stands for."""


def drawn(region: Region, tokens: int) -> dict[str, torch.Tensor]:
    """Inputs of a region by port."""
    generator = Generator(region, seed=7, tokens=tokens)
    return generator.draw(cases(region, "search")[0], generator.parameters(0))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def check(region: Region, tokens: int) -> None:
    inputs = drawn(region, tokens)
    mine = {name: tensor.clone() for name, tensor in inputs.items()}
    expected = reference.run(region.body, inputs)
    space: dict[str, Any] = {}
    exec(compile(program(region), region.name, "exec"), space)
    names = identifiers(region)
    with torch.no_grad():
        found = space["run"](**{names[name]: tensor for name, tensor in mine.items()})
    outputs = [port.name for port in region.ports if port.role == "output"]
    for name, tensor in zip(outputs, found if isinstance(found, tuple) else (found,), strict=True):
        assert torch.equal(tensor, expected[name]), f"{region.name}: {name}"
    for name, tensor in inputs.items():
        same = torch.equal(bits(mine[name]), bits(tensor))  # slots that nobody may read hold NaN
        assert same, f"{region.name}: {name} was written otherwise"


@pytest.mark.parametrize("name", GRAPHS)
def test_every_region_of_a_decoder_computes_the_same(name: str) -> None:
    make, tokens = GRAPHS[name]
    graph = make()
    batch = tokens if graph.phase == "decode" else 1
    regions = partition(graph, Regime(phase=graph.phase, batch=batch, context=(1, CONTEXT)), tokens=tokens).regions
    for region in regions:
        check(region, tokens if graph.phase == "prefill" else 1)
    assert {"embedding", "attention", "rms_norm", "linear", "rope", "cache_append"} <= {
        node.op for region in regions for node in region.body.nodes
    }


@pytest.mark.parametrize(
    "op", [op for op, names in SIGNATURES.items() if names in (("x",), ("a", "b")) and op != "cast"]
)
def test_every_elementwise_operator_computes_the_same(op: str) -> None:
    build = Builder("decode", "fp32")
    inputs = [build.input(name, (1, 1, 48), "activation") for name in SIGNATURES[op]]
    argmax = op == "argmax"
    out = build.op(op, *inputs, shape=(1, 1) if argmax else (1, 1, 48), dtype="int64" if argmax else None)
    (region,) = partition(build.graph(y=out), Regime(phase="decode")).regions
    check(region, 1)


def test_a_cast_computes_the_same() -> None:
    build = Builder("decode", "fp32")
    out = build.op("cast", build.input("x", (1, 1, 48), "activation"), shape=(1, 1, 48), dtype="bf16", to="bf16")
    (region,) = partition(build.graph(y=out), Regime(phase="decode")).regions
    check(region, 1)
