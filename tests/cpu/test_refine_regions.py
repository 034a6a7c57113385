"""A region of a real model, opened by name: its contract, its bar, its gates, and promotion to a template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Written
from agentcompile.ir.trial import Measured, Rejected
from agentcompile.refine.evaluating import admissible
from agentcompile.refine.promote import default_user_templates, promote
from agentcompile.refine.provenance import provenance_in
from agentcompile.refine.regions import opened
from agentcompile.tuning.prepared import templates_for
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT

WRITTEN = Written(
    manifest="""\
region = "add"
language = "cpp"
about = "elements dealt to threads in turn"
dtypes = ["fp32"]

[[launch]]
entry = "sum"
arguments = ["a", "b", "y"]
""",
    kernel="""\
extern "C" void sum(const sum_args& a, int rank, int size) {
    for (long i = rank; i < numel; i += size) a.y[i] = a.a[i] + a.b[i];
}
""",
)


@pytest.mark.alone
def test_a_region_of_a_model_is_opened_evaluated_and_promoted(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    options = flows.options(warm, checkpoint("tiny-qwen3", "fp32"), CONTEXT)
    with opened(options, "add", confirms=False, fenced=False) as region:
        assert region.contract.kind == "add"
        assert region.contract.region == region.task.region.id
        assert 0 < region.contract.incumbent_ns <= region.contract.reference_ns
        evaluated = region.evaluator.evaluate(WRITTEN)
        assert isinstance(evaluated.verdict, Measured), evaluated
        about = region.provenance(WRITTEN, evaluated, node="3", models=(("code", "a model"),))
        refused = region.evaluator.evaluate(Written(manifest="", kernel=""))
        assert isinstance(refused.verdict, Rejected)
        assert not admissible(refused)
        with pytest.raises(AgentCompileError, match="cannot be promoted"):
            region.provenance(WRITTEN, refused, node="4", models=())
    home = flows.options(tmp_path, options.model, CONTEXT)  # type: ignore[arg-type]
    folder = promote(WRITTEN, about, default_user_templates(home), kind="add", language="cpp")
    found = provenance_in(folder)
    assert found is not None
    assert found.times_ns["kernel"] == round(evaluated.ns)
    assert f"add/{folder.name}" in templates_for(home).ids


def test_a_region_that_is_not_there_is_refused_with_the_kinds_that_are(
    warm: Path, checkpoint: Callable[[str, str], Path]
) -> None:
    options = flows.options(warm, checkpoint("tiny-qwen3", "fp32"), CONTEXT)
    with pytest.raises(AgentCompileError, match="no region is called that") as caught, opened(options, "nonsense"):
        pass
    assert "rmsnorm-linear" in caught.value.hint
