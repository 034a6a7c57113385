"""The values of a region that are exact on sparse small integers, so that a correct kernel returns them bit for bit.

When a dtype cannot hold an exact sum, only one rounding remains, and a sum half way between two numbers goes to the
even one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentcompile.ir.graph import Graph, Node
from agentcompile.ir.region import Region
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.bound import Bounded, Propagation
from agentcompile.validate.propagate import Drawn
from agentcompile.validate.tally import Tally
from agentcompile.validate.tolerance import ROUNDOFF, DeclaredArithmetic

_EXACT_SUM = 2.0**23  # the limit up to which sums of integers are exact in float32, in every order


def compare(
    region: Region, facts: DeclaredArithmetic, drawn: Drawn, found: Mapping[str, Tensor], tally: Tally, tokens: int
) -> None:
    """Compare the outputs in `found`, by port, with exact results: integers, or integers after one rounding."""
    halves, name = drawn.case.style == "halves", drawn.case.style
    reasons, uses = inexact(region.body, drawn.out, facts), dict(region.body.outputs)
    for port in region.ports:
        if port.role != "output" or (halves and port.dtype not in ROUNDOFF):
            continue
        use, y = uses[port.name], found[port.name]
        expected = drawn.out.seen(use, tokens).value.reshape(y.shape)
        stored = expected.to(DTYPES[port.dtype])
        reason = reasons.get(use.value, "")
        if not reason and halves and facts.accumulation == "library":
            reason = "PyTorch rounds partial sums"
        if not reason and not halves and not torch.equal(stored.double(), expected.double()):
            reason = f"{port.dtype} cannot hold the result"
        if reason and name not in tally.checks:
            tally.add(name, 0.0, 0.0, f"skipped for {port.name}: {reason}")
        elif not reason:
            wrong = int((y.double() != stored.double()).sum())
            what, how = ("results", "are not rounded to nearest, halves to even") if halves else ("integers", "differ")
            tally.add(name, float(wrong), 0.0, f"{drawn.case.name}: {wrong} {what} of {port.name} {how}")


def inexact(graph: Graph, out: Propagation, facts: DeclaredArithmetic) -> dict[str, str]:
    """Return why values need not be exact, by value id; exact values are absent. `out` is of an integer case."""
    found: dict[str, str] = {}
    held = dict(facts.rounds)
    for node in graph.nodes:
        reason = next((found[use.value] for use in node.inputs if use.value in found), "")
        if node.op == "rms_norm" and not bool(out.values[node.inputs[0].value].value.any()):
            reason = ""
        elif node.op == "attention":
            reason = _attention(node, out, found)
        elif not reason:
            reason = _whole(node, out) if node.op in _KEEP else f"{node.op} does not keep integers"
        if not reason and node.op == "linear":
            error = out.values[node.outputs[0]].error()
            reason = "its sums are too large" if float(error.max()) > facts.coefficient * _EXACT_SUM else ""
        made = {name: out.values[name].value for name in node.outputs if name in held}
        narrow = [name for name, v in made.items() if not torch.equal(v.to(DTYPES[held[name]]).double(), v.double())]
        if not reason and narrow:
            reason = f"{narrow[0]} is held in {held[narrow[0]]}, which cannot"
        if reason:
            found |= dict.fromkeys(node.outputs, reason)
    return found


def _whole(node: Node, out: Propagation) -> str:
    value = out.values[node.outputs[0]].value
    if not value.is_floating_point() or bool((value.double() == value.double().round()).all()):
        return ""
    return f"{node.op} left the integers"


def _attention(node: Node, out: Propagation, found: dict[str, str]) -> str:
    """Return why attention is not exact: it is for zero queries over a power of two of slots, divisible values."""
    query, positions = out.values[node.inputs[0].value], out.values[node.inputs[3].value]
    slots = positions.value.reshape(-1) + 1
    if bool(query.value.any()):
        return "softmax of scores that differ"
    if bool((slots & (slots - 1)).any()):
        return "softmax over a number of slots that is no power of two"
    values = node.inputs[2].value
    new: Bounded | None = out.appends[values].new if values in out.appends else None
    if new is not None and new.accumulated is not None:
        return "the new values are not exact"
    return found.get(values, "")


_KEEP = ("linear", "add", "sub", "mul", "relu", "rope", "embedding", "position_table", "cast", "argmax", "cache_append")
