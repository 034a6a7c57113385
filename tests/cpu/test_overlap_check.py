"""The suite launches a candidate while what it reads is still to be written, where launches of a step overlap."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from agentcompile.validate import DeclaredArithmetic, validate
from agentcompile.validate.production import Late
from agentcompile.worker.housing import house
from tests.kernels.float32 import Run, float32
from tests.kernels.regions_for import KINDS, region_for


def waiting(run: Run) -> Late:
    """A kernel that reads behind its wait."""

    def late(buffers: Mapping[str, Tensor], later: Mapping[str, Tensor]) -> None:
        for name, tensor in later.items():
            buffers[name].copy_(tensor)
        run(buffers)

    return late


def hasty(run: Run) -> Late:
    """A kernel that reads before it waits."""

    def late(buffers: Mapping[str, Tensor], later: Mapping[str, Tensor]) -> None:
        run(buffers)
        for name, tensor in later.items():
            buffers[name].copy_(tensor)

    return late


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_that_reads_before_it_waits_is_refused_for_every_kind(kind: str) -> None:
    torch.set_num_threads(1)
    region = region_for(kind)
    run = float32(region)

    def failed(late: Late) -> set[str]:
        report = validate(
            region, DeclaredArithmetic(), run, seed=3, repeats=2, depth="search", house=house(), late=late
        )
        assert "overlap" in {check.name for check in report.checks}
        return {check.name for check in report.checks if not check.ok}

    assert failed(waiting(run)) == set()
    assert failed(hasty(run)) == {"overlap"}
