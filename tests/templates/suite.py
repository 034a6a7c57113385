"""What the tests of templates share: the catalog, a region at odd sizes, and one candidate under the whole suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentcompile import check
from agentcompile.build import Binary, compile
from agentcompile.build.toolchain import Toolchain
from agentcompile.catalog import load
from agentcompile.ir.graph import DType
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Depth, Params, Source, Template
from agentcompile.ir.trial import Finding
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS, fits
from agentcompile.regions.kinds import facts, hot_kinds
from agentcompile.space import Space
from agentcompile.system.store import Store
from agentcompile.validate import DeclaredArithmetic, validate
from agentcompile.validate.production import House, Late
from agentcompile.validate.rig import Run
from tests.kernels.remembered import Remembered
from tests.templates.shapes import CHUNK, CHUNK_KINDS, Extents, region

CATALOG = load([Path(__file__).parents[2] / "templates"], kinds=facts(), layouts=tuple(LAYOUTS))
FAMILIES = ("linear-merged", "rmsnorm-linear")
"""Kinds of several matrices on one input."""
BIASED = ("linear", "linear-merged", "rmsnorm-linear", "linear-residual", "linear-argmax", "rmsnorm-linear-argmax")

HOT = [
    template
    for template in CATALOG.templates
    if template.language == "cuda" and template.region in hot_kinds() and "sm_90" in template.arch
]
"""Those of a GPU that most of a step's time goes to."""
EARLY_ARCHS = ("sm_90", "sm_100")
"""Whose machine code is read for what it asks for before it waits."""


def gpu(arch: str) -> Target:
    """A device of an H200's size."""
    return Target(
        kind="cuda", device="test", arch=arch, isa=(), threads=132, cache_bytes=(228 << 10, 50 << 20), line_bytes=128
    )


def chunk_of(template: Template, most: int = CHUNK) -> int:
    """Tokens of a chunk for a template: none where it serves decode steps, at `most` for other kinds that both have."""
    if "decode" in template.phases:
        return 0
    return CHUNK if template.region in CHUNK_KINDS else most


def odd(kind: str, dtype: DType, hidden: int, head_dim: int, batch: int = 1, tokens: int = 0) -> Region:
    """Tails of vectors, of tiles and of shares, a window, a bias, an offset."""
    rows = (47, 3, 17) if kind in FAMILIES else (47,)
    extents = Extents(
        hidden=hidden,
        rows=rows,
        bias=kind in BIASED,
        q_heads=3,
        kv_heads=1,
        head_dim=head_dim,
        context=37,
        window=19,
        offset=1.0,
        dtype=dtype,
        batch=batch,
        tokens=tokens,
    )
    return region(kind, extents)


def roomy(template: Template) -> Region:
    """As wide as a model's own layers, in the template's first dtype, for the fewest sequences that it serves."""
    rows = (2048, 1024, 1024) if template.region in FAMILIES else (4096,)
    extents = Extents(
        hidden=2048,
        rows=rows,
        q_heads=16,
        kv_heads=8,
        head_dim=128,
        context=1024,
        dtype=template.dtypes[0],
        batch=template.tokens[0],
    )
    return region(template.region, extents)


def problems(made: Region, template: Template, params: Params, target: Target) -> tuple[Finding, ...]:
    """Why a point may not be built; empty when it may."""
    return check.errors(check.check(made, template, params, target, layout_fits=fits))


def legal(made: Region, template: Template, target: Target) -> list[Candidate]:
    """The points of a template's space that may be built."""
    return list(_legal(made, template, target))


def serves(template: Template, made: Region, target: Target) -> bool:
    """Whether any point of a template's space may be built."""
    return next(_legal(made, template, target), None) is not None


def _legal(made: Region, template: Template, target: Target) -> Iterator[Candidate]:
    points = Space(made, [template], target)
    return (point for point in points if not problems(made, template, point.params, target))


def build(
    template: Template, made: Region, params: Params, target: Target, store: Store, toolchain: Toolchain
) -> tuple[Source, Binary]:
    """A candidate's source and binary."""
    source = specialise(template, made, params, target)
    binary = compile(source, store, toolchain=toolchain, limit_s=60)
    assert isinstance(binary, Binary), binary
    return source, binary


def failed(
    template: Template,
    made: Region,
    source: Source,
    run: Run,
    *,
    fences: bool = True,
    house: House | None = None,
    late: Late | None = None,
    remembered: Remembered | None = None,
    depth: Depth = "search",
) -> list[str]:
    """Failed checks of the correctness suite, as text; on cases that are drawn once where others are `remembered`."""
    declared = DeclaredArithmetic(
        rounds=template.rounds,
        accumulation=template.accumulation,
        deterministic=template.deterministic,
        layouts=template.layouts,
        workspaces=source.workspaces,
        in_place=tuple(pair for launch in source.launches for pair in launch.in_place),
        token_major=tuple(pair for launch in source.launches for pair in launch.token_major),
    )
    tools = (remembered or Remembered()).tools(made, declared, seed=7)
    report = validate(
        made, declared, run, seed=7, repeats=3, depth=depth, fences=fences, house=house, late=late, tools=tools
    )
    return [f"{c.name}: {c.measured:.3g} > {c.allowed:.3g} {c.detail}" for c in report.checks if not c.ok]
