"""Kernels whose activation is right for everyday gates and wrong far out, also behind a norm."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from agentcompile import reference
from agentcompile.ir.graph import DType
from agentcompile.validate import Facts, validate
from tests.kernels.float32 import Run, float32
from tests.kernels.regions_for import region_for

SILU = reference.OPERATORS["silu"]


def beyond(limit: float) -> reference.Operator:
    """Silu without the clamp of its exponential: nothing is left of what lies further out."""
    return lambda x: torch.where(x.abs() > limit, torch.zeros_like(x), SILU(x))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("silu-mul", "bf16"),
        ("silu-mul", "fp32"),
        ("gateup-silu-mul", "bf16"),
        ("gateup-silu-mul", "fp32"),
        ("rmsnorm-gateup-silu-mul", "fp32"),
    ],
)
def test_an_activation_that_ends_too_early_is_refused(kind: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    region = region_for(kind, dtype)
    right = float32(region)

    def wrong(buffers: Mapping[str, Tensor]) -> None:
        with monkeypatch.context() as patched:
            patched.setitem(reference.OPERATORS, "silu", beyond(175.0))
            right(buffers)

    def failed(run: Run) -> set[str]:
        report = validate(region, Facts(), run, seed=5, repeats=2, depth="accept")
        return {check.name for check in report.checks if not check.ok}

    assert failed(right) == set()
    assert "element" in failed(wrong)
