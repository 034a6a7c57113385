"""The claims that an adviser may make, and the facts that confirm or refute them.

A claim is about the region or about one of its templates. The table lists the values that a claim may take; a claim
without a row is refused. Structure settles some claims at once, trials settle others later. Claims never change what
may run: a confirmed risk excludes no candidate, and a refuted one admits none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentcompile.ir.advice import Claim, Question, Standing, Topic
from agentcompile.ir.graph import Graph
from agentcompile.ir.template import Template
from agentcompile.ir.trial import BuildFailed, Incorrect, Measured, Trial

Finding = tuple[Standing, str]
OPEN: Finding = ("unverified", "")
OPERATORS = (
    "embedding", "position_table", "rms_norm", "linear", "add", "mul", "silu", "rope", "cache_append", "attention",
    "argmax", "softmax", "gelu", "layer_norm", "sample", "transpose", "quantize",
)  # fmt: skip
"""Values of `computes`; some occur in no region, so that a claim can be wrong."""
DTYPES = ("bf16", "fp16", "fp32", "fp64")
_ACCUMULATION = {"float32": "fp32", "float64": "fp64"}
_AROUND = ("redzone", "fence", "inputs", "state")
"""Checks of the correctness suite that inspect memory which a kernel must not touch."""


@dataclass(frozen=True, slots=True)
class ClaimKind:
    """One kind of claim.

    `values` lists the allowed values (empty: the claim takes none); `settle` decides from structure alone, where that
    can decide it: a measurement does later otherwise.
    """

    says: str
    topic: Topic
    of_template: bool
    values: tuple[str, ...]
    about: str
    settle: Callable[[Claim, Question, Template | None], Finding] = lambda claim, question, template: OPEN


def _computes(claim: Claim, question: Question, _: Template | None) -> Finding:
    ops = dict.fromkeys(node.op for node in question.region.body.nodes)
    return _held(claim.value in ops, f"its operators are {', '.join(ops)}")


def _reduces(claim: Claim, question: Question, _: Template | None) -> Finding:
    found = dict.fromkeys(name for _, name, _ in reductions(question.region.body, dict(question.region.dims)))
    return _held(claim.value in found, f"its reductions run over {', '.join(found) or 'nothing'}")


def _bound(claim: Claim, question: Question, _: Template | None) -> Finding:
    cost, ceiling = question.region.cost, question.ceiling
    compute = ceiling.floor_ns(flops=cost.flops, bytes=0, residency=question.residency)
    bound = "compute" if compute >= question.floor_ns else "memory"
    return _held(claim.value == bound, f"{cost.intensity:.2f} FLOP a byte: {bound} is the nearer ceiling")


def _accumulates(claim: Claim, question: Question, template: Template | None) -> Finding:
    assert template is not None
    known = _ACCUMULATION.get(template.accumulation)
    return _held(claim.value == known, f"it accumulates in {known}") if known else OPEN


def _rounds(claim: Claim, question: Question, template: Template | None) -> Finding:
    assert template is not None
    found = [f"{name} to {dtype}" for name, dtype in template.rounds]
    held = any(dtype == claim.value for _, dtype in template.rounds)
    return _held(held, f"it rounds {', '.join(found) or 'nothing in between'}")


def _varies(claim: Claim, question: Question, template: Template | None) -> Finding:
    assert template is not None
    return _held(not template.deterministic, f"its manifest says deterministic = {template.deterministic}".lower())


def _workspace(claim: Claim, question: Question, template: Template | None) -> Finding:
    assert template is not None
    return _held(bool(template.workspaces), f"it declares {len(template.workspaces)} workspaces")


def _exceeds(claim: Claim, question: Question, _: Template | None) -> Finding:
    sizes, level = question.target.cache_bytes, int(claim.value[1]) - 1
    if level >= len(sizes):
        return OPEN
    held = question.region.cost.bytes > sizes[level]
    return _held(held, f"each occurrence moves {question.region.cost.bytes} bytes, {claim.value} has {sizes[level]}")


def _extent(claim: Claim, question: Question, _: Template | None) -> Finding:
    region = question.region
    found = []
    if any(port.role == "state" for port in region.ports):
        found.append("context")
    if any(isinstance(extent, str) for port in region.ports for extent in port.shape):
        found.append("tokens")
    return _held(claim.value in found, f"what varies from call to call: {', '.join(found) or 'nothing'}")


CLAIMS: tuple[ClaimKind, ...] = (
    ClaimKind("computes", "semantic", False, OPERATORS, "this operator is part of it", _computes),
    ClaimKind("reduces-over", "semantic", False, ("hidden", "head_dim", "context", "rows"),
              "some operator sums or selects over this extent", _reduces),
    ClaimKind("bound-by", "semantic", False, ("memory", "compute"), "the nearer of the two ceilings", _bound),
    ClaimKind("accumulates-in", "numerical", True, DTYPES, "sums are kept in this type", _accumulates),
    ClaimKind("rounds-to", "numerical", True, DTYPES, "a value in between is rounded to this type", _rounds),
    ClaimKind("varies-between-runs", "numerical", True, (), "equal inputs may give unequal outputs", _varies),
    ClaimKind("fails-validation", "numerical", True, (), "its error against float64 is too large"),
    ClaimKind("writes-outside", "bounds", True, (), "it writes beside its outputs"),
    ClaimKind("needs-workspace", "resource", True, (), "it takes scratch memory", _workspace),
    ClaimKind("does-not-build", "resource", True, (), "the compiler refuses it or its limits here"),
    ClaimKind("slower-than-pytorch", "resource", True, (),
              "not even its best candidate beats the captured operators"),
    ClaimKind("exceeds-cache", "resource", False, ("L1", "L2", "L3"),
              "the bytes of one site do not fit this level", _exceeds),
    ClaimKind("extent-varies", "dynamic-shape", False, ("context", "tokens"),
              "this extent differs from call to call", _extent),
)  # fmt: skip
"""Every kind of claim that an adviser may make, in the order of the prompt."""
ROWS: Mapping[str, ClaimKind] = {row.says: row for row in CLAIMS}


def structural(claim: Claim, question: Question) -> Claim:
    """Settle a claim from region, templates and machine, as far as they can; `claim.says` must be in `ROWS`."""
    template = next((one for one in question.templates if one.id == claim.template), None)
    standing, because = ROWS[claim.says].settle(claim, question, template)
    return replace(claim, standing=standing, because=because)


def measured(claim: Claim, trials: Sequence[Trial]) -> Claim:
    """Settle a claim from the trials of its region, as far as they can; return it unchanged if structure settled it."""
    if claim.standing != "unverified" or not claim.template:
        return claim
    own = [trial for trial in trials if trial.candidate.template == claim.template]
    standing, because = _measured(claim.says, own)
    return replace(claim, standing=standing, because=because)


def _measured(says: str, own: Sequence[Trial]) -> Finding:
    ran = [trial for trial in own if isinstance(trial.verdict, Measured)]
    wrong = [trial.verdict for trial in own if isinstance(trial.verdict, Incorrect)]
    outside = [verdict for verdict in wrong if _outside(verdict)]
    unbuilt = sum(isinstance(trial.verdict, BuildFailed) for trial in own)
    match says:
        case "fails-validation" if wrong or ran:
            return _held(len(wrong) > len(outside), f"{len(wrong)} of {len(own)} trials failed validation")
        case "writes-outside" if wrong or ran:
            return _held(bool(outside), f"{len(outside)} of {len(own)} trials failed a check of their surroundings")
        case "does-not-build" if own:
            return _held(unbuilt > 0, f"{unbuilt} of {len(own)} trials did not build")
        case "slower-than-pytorch" if ran:
            best = max(trial.verdict.measurement.speedup for trial in ran if isinstance(trial.verdict, Measured))
            return _held(best < 1, f"its best of {len(ran)} is {best:.2f} times as fast as PyTorch")
        case _:
            return OPEN


def _outside(verdict: Incorrect) -> bool:
    return any(check.name in _AROUND for check in verdict.report.checks if not check.ok)


def _held(held: bool, because: str) -> Finding:
    return ("confirmed" if held else "refuted"), because


def standing_of(claims: Sequence[Claim]) -> Standing:
    """Return the standing of a label from its semantic claims.

    It is refuted when one of them is, confirmed when there are some and all are confirmed, else unverified.
    """
    own = [claim.standing for claim in claims if claim.topic == "semantic"]
    if "refuted" in own:
        return "refuted"
    return "confirmed" if own and set(own) == {"confirmed"} else "unverified"


def reductions(body: Graph, dims: Mapping[str, int]) -> tuple[tuple[str, str, int], ...]:
    """Return (operator, name, extent) of every axis that operators of `body` reduce or select over, in their order."""
    shapes = {value.id: value.shape for value in body.values}
    found: list[tuple[str, str, int]] = []
    for node in body.nodes:
        match node.op:
            case "linear" | "rms_norm":
                extent = shapes[node.inputs[1].value][-1]
                found.append((node.op, _named(extent, dims, ("hidden", "head_dim")), _number(extent)))
            case "attention":
                found.append((node.op, "head_dim", dims.get("head_dim", 0)))
                found.append((node.op, "context", dims.get("context", 0)))
            case "argmax":
                extent = shapes[node.inputs[0].value][-1]
                found.append((node.op, _named(extent, dims, ("rows", "hidden")), _number(extent)))
            case _:
                continue
    return tuple(found)


def _named(extent: int | str, dims: Mapping[str, int], names: Sequence[str]) -> str:
    return next((name for name in names if dims.get(name) == extent), str(extent))


def _number(extent: int | str) -> int:
    return extent if isinstance(extent, int) else 0
