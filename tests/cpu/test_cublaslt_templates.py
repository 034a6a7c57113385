"""Where cuBLASLt is offered: wherever PyTorch's own products are, on CUDA devices alone, and for prompts."""

from __future__ import annotations

import pytest

from agentcompile import check
from agentcompile.ir.graph import DType
from agentcompile.ir.template import Template
from agentcompile.runtime.cublaslt import ASKED
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG, FAMILIES, gpu, legal, problems
from tests.unit.fakes import target

OURS = [template for template in CATALOG.templates if template.call == "cublaslt.linear"]
IDS = [template.id for template in OURS]


def rows_of(template: Template) -> tuple[int, ...]:
    return (48, 16, 16) if template.region in FAMILIES else (48,)


def test_every_kind_that_pytorch_multiplies_for_has_one() -> None:
    others = {template.region for template in CATALOG.templates if template.call == "torch.linear"}
    assert {template.region for template in OURS} == others
    assert all(template.accumulation == "library" for template in OURS)


@pytest.mark.parametrize("id", IDS)
def test_a_cpu_is_offered_none_of_it(id: str) -> None:
    template = CATALOG.get(id)
    assert not check.meant_for(template, target())
    made = region(template.region, Extents(rows=rows_of(template)))
    assert problems(made, template, template.defaults, target())[0].rule == "device"


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_step_on_a_gpu_may_run_every_rank(id: str, dtype: DType, batch: int, arch: str) -> None:
    template = CATALOG.get(id)
    made = region(template.region, Extents(rows=rows_of(template), dtype=dtype, batch=batch))
    points = [dict(point.params)["ALGO"] for point in legal(made, template, gpu(arch))]
    assert points == list(range(ASKED))


def test_rows_that_are_no_whole_loads_are_left_to_others() -> None:
    template = CATALOG.get("linear/cublaslt")
    assert legal(region("linear", Extents(hidden=100)), template, gpu("sm_90a")) == []
    assert legal(region("linear", Extents(rows=(50,))), template, gpu("sm_90a")) == []
