"""What is drawn for special cases: a choice of token meets NaNs of either sign."""

from __future__ import annotations

import pytest
import torch

from agentcompile.ir.graph import DType
from agentcompile.validate.cases import cases
from agentcompile.validate.inputs import Generator
from tests.kernels.regions_for import region_for


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp16"])
def test_an_argmax_meets_nans_of_either_sign(dtype: DType) -> None:
    drawn = Generator(region_for("rmsnorm-linear-argmax", dtype=dtype), seed=0)
    broken = next(case for case in cases(drawn.region, "search") if case.style == "nan")
    x = drawn.draw(broken, drawn.parameters(0))["x"]
    signs = torch.signbit(x[x.isnan()]).double()
    assert 0.2 < float(signs.mean()) < 0.8
    assert bool((~x.isnan()).any())
