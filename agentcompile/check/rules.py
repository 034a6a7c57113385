"""The static rules, in the order in which they run; a rule reads a `RuleInput` and yields findings for people.

Errors stop a candidate, warnings are risks that break ties between equal winners, and notes inform. A rule that needs
no parameters is in `TEMPLATE_RULES`, so that a template that cannot serve a region at all is refused once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from agentcompile.backends import BACKENDS, backend_of
from agentcompile.check.script import strays
from agentcompile.check.text import mentions
from agentcompile.ir.evaluate import EvaluationError, evaluate, explain
from agentcompile.ir.expr import parse
from agentcompile.ir.graph import ITEM_BYTES, Dim
from agentcompile.ir.region import Region
from agentcompile.ir.scope import region_dtype, scope
from agentcompile.ir.target import Target, most_shared_bytes
from agentcompile.ir.template import Params, Template
from agentcompile.ir.trial import Finding

LayoutFits = Callable[[str, tuple[Dim, ...], str], bool]
"""Whether the layout of that name can hold a tensor of that shape and dtype, by the layout table."""
WORKSPACE_LIMIT_BYTES = 64 << 20
"""Most bytes of a candidate's workspaces together; more would compete with the weights for memory and cache."""
SOURCE_LIMIT = 1 << 20
"""Most characters of a kernel with its shared texts; a compiler on more of it exceeds any time limit."""
THREADS_PER_BLOCK = 1024
MOST_BOX_ROWS = 256
"""Of a tensor map, in the driver's interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInput:
    """The input of a rule; `params` is empty for the rules of a template."""

    region: Region
    template: Template
    params: Params = ()
    target: Target
    layout_fits: LayoutFits


Rule = Callable[[RuleInput], Iterator[Finding]]


def _found(rule: str, text: str, severity: Literal["error", "warning", "note"] = "error") -> Finding:
    return Finding(rule=rule, severity=severity, text=text)


def applicable(region: Region, template: Template, target: Target, *, layout_fits: LayoutFits) -> tuple[Finding, ...]:
    """Return every finding on whether `template` can serve `region` on `target` at all, whatever its parameters."""
    subject = RuleInput(region=region, template=template, target=target, layout_fits=layout_fits)
    return _findings(TEMPLATE_RULES, subject)


def check(
    region: Region, template: Template, params: Params, target: Target, *, layout_fits: LayoutFits
) -> tuple[Finding, ...]:
    """Return every finding on one candidate and its template; it may be built when `errors` of them is empty."""
    subject = RuleInput(region=region, template=template, params=params, target=target, layout_fits=layout_fits)
    return _findings((*TEMPLATE_RULES, *POINT_RULES), subject)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that stop a candidate."""
    return tuple(finding for finding in findings if finding.severity == "error")


def _findings(rules: Iterable[Rule], subject: RuleInput) -> tuple[Finding, ...]:
    return tuple(finding for rule in rules for finding in rule(subject))


def kind(s: RuleInput) -> Iterator[Finding]:
    """Check that the template is written for this kind of region."""
    if s.template.region != s.region.kind:
        yield _found("kind", f"{s.template.id} serves {s.template.region}, the region is {s.region.kind}")


def _runs_on(template: Template) -> str:
    """Return the kind of device that a template runs on; empty for any.

    A library call runs anywhere, unless it names the CUDA architectures that it runs on.
    """
    kinds = (kind for kind, backend in BACKENDS.items() if template.language in backend.languages)
    return next(kinds, "cuda" if template.arch else "")


def meant_for(template: Template, target: Target) -> bool:
    """Return whether a template is written for this kind of device; others are skipped without a finding."""
    return _runs_on(template) in ("", target.kind)


def device(s: RuleInput) -> Iterator[Finding]:
    """Check that the language, or the called library, runs on this kind of device."""
    if not meant_for(s.template, s.target):
        what = s.template.call or s.template.language
        yield _found("device", f"{what} runs on {_runs_on(s.template)}, the target is {s.target.kind}")


def phase(s: RuleInput) -> Iterator[Finding]:
    """Check that the template serves the regime's phase."""
    if s.region.regime.phase not in s.template.phases:
        yield _found("phase", f"it serves {', '.join(s.template.phases)}, the regime is {s.region.regime.phase}")


def tokens(s: RuleInput) -> Iterator[Finding]:
    """Check that the template serves as many sequences as the step holds."""
    batch, (least, most) = s.region.regime.batch, s.template.tokens
    if s.region.regime.phase == "decode" and not least <= batch <= most:
        yield _found("tokens", f"it serves {least} to {most} sequences at once, the step holds {batch}")


def dtype(s: RuleInput) -> Iterator[Finding]:
    """Check that the template serves the region's dtype, and that the ports of each family have the same dtype."""
    held = region_dtype(s.region)
    if held not in s.template.dtypes:
        yield _found("dtype", f"it serves {', '.join(s.template.dtypes)}, the region's weights are {held}")
    for family in dict.fromkeys(port.family for port in s.region.ports):
        dtypes = dict.fromkeys(port.dtype for port in s.region.family(family))
        if len(dtypes) > 1:
            yield _found("dtype", f"the ports of {family} have different dtypes: {', '.join(dtypes)}")


def extents(s: RuleInput) -> Iterator[Finding]:
    """Check that the number of tokens is fixed, and open for a kernel that is given it: else PyTorch runs the chunk."""
    open_ended = [port.name for port in s.region.ports if any(isinstance(dim, str) for dim in port.shape)]
    if open_ended and s.template.language != "library" and not s.template.any_chunk:
        yield _found("extents", f"{', '.join(open_ended)}: the number of tokens is open, a kernel needs one")
    if s.template.any_chunk and not open_ended:
        yield _found("extents", "its kernels are given the number of tokens, which is fixed here")


def isa(s: RuleInput) -> Iterator[Finding]:
    """Check that the machine has what the template needs: all extensions on a CPU, one of the architectures on CUDA."""
    if missing := backend_of(s.target.kind).lacks(s.template.arch, s.target):
        yield _found("isa", missing)


def ports(s: RuleInput) -> Iterator[Finding]:
    """Check that launches pass every port family of the region; a port that no kernel uses is a bug or a cheat."""
    if s.template.language == "library":
        return
    passed = {name for launch in s.template.launches for name in launch.arguments}
    for family in dict.fromkeys(port.family for port in s.region.ports):
        if family not in passed:
            role = s.region.family(family)[0].role
            yield _found("ports", f"no launch passes {family} ({role})")


def views(s: RuleInput) -> Iterator[Finding]:
    """Check that a kernel gets dense buffers, read in order or through views that the kind of region declares."""
    if s.template.language != "library" and not s.region.dense and not s.region.stated:
        bent = {u.value: v.op for n in s.region.body.nodes for u in n.inputs for v in u.views if v.op != "reshape"}
        seen = ", ".join(f"{name} through {op}" for name, op in bent.items())
        yield _found("views", f"the region reads {seen}, which no kernel of {s.region.kind} is told")


def layout(s: RuleInput) -> Iterator[Finding]:
    """Check that the declared layouts can hold the tensors, that is, that their blocks divide the shapes."""
    for family, name in s.template.layouts:
        for port in s.region.family(family):
            if not s.layout_fits(name, port.shape, port.dtype):
                shape = "x".join(str(dim) for dim in port.shape)
                yield _found("layout", f"{name} cannot hold {port.name} [{shape}] in {port.dtype}")


def source(s: RuleInput) -> Iterator[Finding]:
    """Check that the text is short enough to compile in seconds, and mentions nothing that a kernel has no use for.

    The second check is a lint and not a security barrier (`check.text`).
    """
    texts = {s.template.source_name: s.template.source, **dict(s.template.includes)}
    size = sum(len(text) for text in texts.values())
    if size > SOURCE_LIMIT:
        yield _found("source", f"{size} characters of source, more than {SOURCE_LIMIT}")
        return
    if s.template.language == "triton":
        yield from (_found("source", text) for text in strays(texts))
    elif s.template.language in ("cpp", "cuda"):
        shared, host = dict(s.template.includes), s.template.language == "cpp"
        for name, text in texts.items():
            yield from (_found("source", what) for what in mentions(name, text, shared, host=host))


def parameters(s: RuleInput) -> Iterator[Finding]:
    """Check that every parameter has a value of its domain, and that there is no other parameter."""
    given = dict(s.params)
    for param in s.template.params:
        if param.name not in given:
            yield _found("parameters", f"{param.name} is missing")
        elif given[param.name] not in param.domain:
            shown = ", ".join(str(value) for value in param.domain)
            yield _found("parameters", f"{param.name}={given[param.name]} is not one of {shown}")
    for name in given:
        if name not in {param.name for param in s.template.params}:
            yield _found("parameters", f"there is no parameter {name}")


def constraints(s: RuleInput) -> Iterator[Finding]:
    """Check that every `requires` holds."""
    names = scope(s.region, s.target, s.params)
    for text in s.template.requires:
        expr = parse(text)
        try:
            holds = bool(evaluate(expr, names))
        except EvaluationError:
            holds = False
        if not holds:
            yield _found("constraints", explain(expr, names))


def workspaces(s: RuleInput) -> Iterator[Finding]:
    """Check that the workspaces have a size and together stay below the limit; warn above the last-level cache."""
    names, total = scope(s.region, s.target, s.params), 0
    for space in s.template.workspaces:
        expr = parse(space.count)
        try:
            count = int(evaluate(expr, names))
        except EvaluationError:
            yield _found("workspaces", f"{space.name}: {explain(expr, names)}")
            continue
        if count < 0:
            yield _found("workspaces", f"{space.name}: {count} elements: {explain(expr, names)}")
        total += max(count, 0) * ITEM_BYTES[space.dtype]
    if total > WORKSPACE_LIMIT_BYTES:
        yield _found("workspaces", f"{total} bytes of workspace, more than {WORKSPACE_LIMIT_BYTES}")
    elif s.target.cache_bytes and total > s.target.cache_bytes[-1]:
        yield _found("workspaces", f"{total} bytes of workspace do not fit the last-level cache", "warning")


def geometry(s: RuleInput) -> Iterator[Finding]:
    """Check that each CUDA launch has a legal grid and block, and that its shared memory fits the architecture."""
    if s.template.language not in ("cuda", "triton"):
        return
    names, most = scope(s.region, s.target, s.params), most_shared_bytes(s.target.arch)
    for launch in s.template.launches:
        texts = {"grid": launch.grid, "block": launch.block, "shared_bytes": (launch.shared_bytes,)}
        texts["cluster"] = launch.cluster
        try:
            found = {key: [int(evaluate(parse(text), names)) for text in of] for key, of in texts.items()}
        except EvaluationError as error:
            yield _found("geometry", f"{launch.entry}: {error}")
            continue
        grid, block, (shared,) = found["grid"], found["block"], found["shared_bytes"]
        if not grid or not block or len(grid) > 3 or len(block) > 3:
            yield _found("geometry", f"{launch.entry}: a grid and a block have one to three extents")
            continue
        if min(*grid, *block, 1) < 1 or grid[0] >= 1 << 31 or max(grid[1:], default=1) >= 1 << 16:
            yield _found("geometry", f"{launch.entry}: a grid of {grid} in blocks of {block} cannot be started")
        if len(found["cluster"]) > 3 or min(found["cluster"], default=1) < 1:
            yield _found("geometry", f"{launch.entry}: a cluster of {found['cluster']} cannot be started")
        if math.prod(block) > THREADS_PER_BLOCK:
            yield _found(
                "geometry", f"{launch.entry}: {math.prod(block)} threads a block, more than {THREADS_PER_BLOCK}"
            )
        if s.template.language == "triton" and not _whole_warps(block):
            yield _found("geometry", f"{launch.entry}: {block} threads a block, not 32 times a power of two in a line")
        if not 0 <= shared <= most:
            yield _found("geometry", f"{launch.entry}: {shared} bytes of shared memory, {s.target.arch} has {most}")


def boxes(s: RuleInput) -> Iterator[Finding]:
    """Check that tensor maps are of matrices of 16-bit elements in rows of whole words, in boxes that can be copied."""
    names = scope(s.region, s.target, s.params)
    for one in (one for launch in s.template.launches for one in launch.maps):
        for port in s.region.family(one.of):
            if ITEM_BYTES[port.dtype] != 2 or len(port.shape) < 2:
                yield _found(
                    "boxes", f"{port.name}: a tensor map is of a matrix of 16-bit elements, not of {port.dtype}"
                )
            elif not isinstance(port.shape[-1], int) or port.shape[-1] % 8:
                yield _found("boxes", f"{port.name}: rows of {port.shape[-1]} elements, not of whole words of 16 bytes")
        try:
            rows = int(evaluate(parse(one.box), names))
        except EvaluationError as error:
            yield _found("boxes", f"{one.of}: {error}")
            continue
        if not 1 <= rows <= MOST_BOX_ROWS:
            yield _found("boxes", f"{one.of}: a box of {rows} rows, it has 1 to {MOST_BOX_ROWS}")


def _whole_warps(block: list[int]) -> bool:
    warps, rest = divmod(block[0], 32)
    return len(block) == 1 and rest == 0 and warps.bit_count() == 1


def determinism(s: RuleInput) -> Iterator[Finding]:
    """Warn about a kernel whose result may differ between runs: a risk, but legal."""
    if not s.template.deterministic:
        yield _found("determinism", "results may differ between runs", "warning")


def rounding(s: RuleInput) -> Iterator[Finding]:
    """Note intermediate values that are rounded to a narrower type than the reference's."""
    for value, narrow in s.template.rounds:
        yield _found("rounding", f"{value} is rounded to {narrow}", "note")


TEMPLATE_RULES: tuple[Rule, ...] = (
    kind, device, phase, tokens, dtype, extents, views, isa, ports, layout, source, determinism, rounding,
)  # fmt: skip
POINT_RULES: tuple[Rule, ...] = (parameters, constraints, geometry, boxes, workspaces)
