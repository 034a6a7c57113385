"""A prefill plan of a GPU with kernels wherever templates serve, made with no device."""

from __future__ import annotations

from collections.abc import Iterator

from agentcompile import check
from agentcompile.capture import Captured
from agentcompile.ir.region import Regime, Region
from agentcompile.ir.scope import region_dtype
from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import Choice, Fallback, Kernel
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import fits
from agentcompile.planning.chunks import Chunks
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import partition
from agentcompile.regions.problem import Option, Problem
from agentcompile.tuning.partitions import graph_of
from tests.templates.suite import CATALOG, gpu

GPU = gpu("sm_90a")


def template_for(region: Region) -> Template | None:
    """The first CUDA template whose default serves the region."""
    for template in CATALOG.serving(region.kind, region_dtype(region)):
        if template.language == "cuda" and not check.errors(
            check.check(region, template, template.defaults, GPU, layout_fits=fits)
        ):
            return template
    return None


def choice_for(region: Region) -> Choice:
    template = template_for(region)
    if template is None:
        return Fallback(reason="no template")
    candidate = Candidate(
        region=region.id,
        regime=region.regime,
        template=template.id,
        template_digest=template.digest,
        params=template.defaults,
        target=GPU.digest,
    )
    source = specialise(template, region, template.defaults, GPU)
    return Kernel(candidate=candidate, source=source.digest, speedup=2.0, half_width=0.0)


def plan_of(captured: Captured, context: int, *, products: bool = True) -> Chunks:
    """A prefill plan, for caches of `context` slots, that runs a kernel wherever a template serves.

    Without `products`, all matrix products are left to PyTorch.
    """
    regime = Regime(phase="prefill", context=(1, context))
    graph, tokens = graph_of(captured, regime, "cuda")
    cut = partition(graph, regime, tokens=tokens)
    options = {region.id: tuple(_options(region, products=products)) for region in cut.regions}
    found = cover(Problem(graph=graph, partition=cut, options={id: some for id, some in options.items() if some}))
    return Chunks(
        graph=captured.prefill,
        cut=cut,
        parts=found.parts[0],
        templates={template.digest: template for template in CATALOG.templates},
        target=GPU,
        layouts=(),
    )


def _options(region: Region, *, products: bool) -> Iterator[Option]:
    kernel = choice_for(region)
    multiplies = any(node.op == "linear" for node in region.body.nodes)
    if isinstance(kernel, Kernel) and (products or not multiplies):
        yield Option(cost_ns=1.0, choice=kernel)
    if len(region.body.nodes) == 1:
        yield Option(cost_ns=10.0, choice=Fallback(reason="PyTorch"))
