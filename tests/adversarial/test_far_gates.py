"""Kernels whose activation is right for everyday gates and wrong far out, also behind a norm that is rounded."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ops import reference
from agentcompile.validate import DeclaredArithmetic, validate
from agentcompile.validate.bound import Bounded, round_to
from tests.kernels.float32 import Run, float32
from tests.kernels.regions_for import region_for
from tests.kernels.remembered import Remembered

SILU = reference.OPERATORS["silu"]
Rounds = tuple[tuple[str, str], ...]
REMEMBERED = Remembered()


def beyond(limit: float) -> reference.Operator:
    """Silu without the clamp of its exponential: nothing is left of what lies further out."""
    return lambda x: torch.where(x.abs() > limit, torch.zeros_like(x), SILU(x))


def steep(x: Tensor) -> Tensor:
    """Silu whose exponential is off by more the larger its argument is, as where a constant has the wrong sign."""
    return x * torch.sigmoid(x * (1 + 6.1e-4))


def failed(region: Region, run: Run, *, rounds: Rounds = (), seed: int = 5) -> set[str]:
    facts = DeclaredArithmetic(rounds=rounds)
    tools = REMEMBERED.tools(region, facts, seed)
    report = validate(region, facts, run, seed=seed, repeats=2, depth="accept", tools=tools)
    return {check.name for check in report.checks if not check.ok}


def bent(right: Run, silu: reference.Operator, monkeypatch: pytest.MonkeyPatch) -> Run:
    def wrong(buffers: Mapping[str, Tensor]) -> None:
        with monkeypatch.context() as patched:
            patched.setitem(reference.OPERATORS, "silu", silu)
            right(buffers)

    return wrong


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("silu-mul", "bf16"),
        ("silu-mul", "fp32"),
        ("gateup-silu-mul", "bf16"),
        ("gateup-silu-mul", "fp32"),
        ("rmsnorm-gateup-silu-mul", "bf16"),
        ("rmsnorm-gateup-silu-mul", "fp32"),
    ],
)
def test_an_activation_that_ends_too_early_is_refused(kind: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    region = region_for(kind, dtype)
    right = float32(region)
    assert failed(region, right) == set()
    assert "element" in failed(region, bent(right, beyond(175.0), monkeypatch))


@pytest.mark.parametrize("silu", [beyond(175.0), steep])
def test_no_rounding_of_a_norm_hides_what_its_activation_lacks(
    silu: reference.Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = region_for("rmsnorm-gateup-silu-mul", "bf16", hidden=256, rows=768)
    rounds = _norm_in_bf16(region)
    right = float32(region, rounds)
    assert failed(region, right, rounds=rounds) == set()
    assert "element" in failed(region, bent(right, silu, monkeypatch), rounds=rounds)


@pytest.mark.parametrize("hidden", [8, 33, 330])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_a_right_kernel_may_round_its_norm_or_not(hidden: int, rounded: bool, flip: bool) -> None:
    region = region_for("rmsnorm-gateup-silu-mul", "bf16", hidden=hidden, rows=2 * hidden)
    rounds = _norm_in_bf16(region)
    for seed in range(4):
        assert failed(region, float32(region, rounds if rounded else (), flip), rounds=rounds, seed=seed) == set()


def test_only_numbers_of_a_type_up_to_their_error_round_to_themselves() -> None:
    value = torch.tensor([1.0, 1.0 + 1e-6, 1.0 + 1e-4, 1.0], dtype=torch.float64)
    error = torch.tensor([1e-5, 1e-5, 1e-5, 1e-3], dtype=torch.float64)
    held = round_to(Bounded(value=value, accumulated=error), "bf16", sharp=True)
    assert held.rounded is not None
    assert (held.rounded > 0).tolist() == [False, False, True, True]


def _norm_in_bf16(region: Region) -> Rounds:
    return tuple((node.outputs[0], "bf16") for node in region.body.nodes if node.op == "rms_norm")
