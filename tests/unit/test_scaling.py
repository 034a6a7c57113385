"""Activations times powers of two: which results follow them, and which kernels are refused for not doing so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ops import reference
from agentcompile.validate import rig as rigs
from agentcompile.validate import scaling
from agentcompile.validate.cases import Case
from agentcompile.validate.inputs import Generator
from agentcompile.validate.tally import Tally
from agentcompile.validate.tolerance import DeclaredArithmetic
from tests.kernels.regions_for import region_for

Change = Callable[[str, Tensor], Tensor]
FOLLOWED = ("linear", "linear-residual", "linear-merged", "add", "sub", "mul", "relu", "silu-mul")
SEED = 5


def launches(
    region: Region, change: Change = lambda _, tensor: tensor, *, deterministic: bool = True
) -> tuple[int, Tally]:
    """Validate PyTorch's own kernel of a region, whose inputs `change` may replace, by scaling alone."""

    def run(buffers: Mapping[str, Tensor]) -> None:
        for name, made in reference.run(region.body, {n: change(n, buffers[n]) for n in region.body.inputs}).items():
            buffers[name].copy_(made.view(buffers[name].shape))

    tally, generator = Tally(), Generator(region, seed=SEED)
    kernel = rigs.TestedKernel(
        region=region,
        facts=DeclaredArithmetic(deterministic=deterministic),
        run=run,
        tally=tally,
        tools=rigs.Instruments(),
        seed=SEED,
        tokens=1,
    )
    rig, parameters = rigs.Rig(kernel), generator.parameters(0)
    rig.load(parameters)
    drawn = parameters | generator.draw(Case(style="normal"), parameters)
    return scaling.scaled(kernel, rig, lambda: drawn), tally


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kind", FOLLOWED)
def test_results_that_follow_their_inputs_do_to_the_bit(kind: str, dtype: DType) -> None:
    count, tally = launches(region_for(kind, dtype))
    assert count >= (2 if dtype == "fp16" else 3)
    assert tally.checks["scaled"].ok, tally.checks["scaled"].detail


@pytest.mark.parametrize("kind", ["rmsnorm-linear", "rmsnorm", "silu", "rope-attention-decode", "embedding"])
def test_results_that_do_not_follow_are_not_looked_at(kind: str) -> None:
    assert launches(region_for(kind))[0] == 0


def test_a_kernel_whose_sums_differ_from_launch_to_launch_is_not_looked_at() -> None:
    assert launches(region_for("linear"), deterministic=False)[0] == 0


@pytest.mark.parametrize("kind", ["linear-residual", "add", "silu-mul"])
@pytest.mark.parametrize("bound", [1e4, 3e38 / 2**20])
def test_a_kernel_that_clamps_what_is_large_is_refused(kind: str, bound: float) -> None:
    _, tally = launches(region_for(kind), lambda _, x: x.clamp(-bound, bound) if x.is_floating_point() else x)
    assert not tally.checks["scaled"].ok
    assert "times 2^" in tally.checks["scaled"].detail


@pytest.mark.parametrize("kind", ["linear", "add"])
def test_a_kernel_that_takes_what_is_small_for_zero_is_refused(kind: str) -> None:
    _, tally = launches(region_for(kind), lambda _, x: torch.where(x.abs() < 1e-9, 0.0, x))
    assert "times 2^-40" in tally.checks["scaled"].detail


def test_an_index_stays_the_same_however_large_the_activations_are() -> None:
    region = region_for("linear-argmax")
    assert launches(region)[1].checks["scaled"].ok
    assert not launches(region, lambda name, x: x.clamp(-1e3, 1e3) if name == "x" else x)[1].checks["scaled"].ok
