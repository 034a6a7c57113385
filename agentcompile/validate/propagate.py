"""Evaluates a graph in float64 and applies each operator's rule for the error that its results may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from agentcompile.ir.graph import Graph
from agentcompile.ops.reference import keywords
from agentcompile.validate.bound import Bounded, Context, Propagation, round_to
from agentcompile.validate.cases import Case
from agentcompile.validate.rules import RULES, numeric
from agentcompile.validate.tolerance import KEEN, DeclaredArithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A case with its inputs, the reference with its bounds, and the model's own result."""

    case: Case
    inputs: dict[str, Tensor]
    out: Propagation
    eager: dict[str, Tensor]
    """Outputs by name and states, after the model ran in its own arithmetic; empty for a light case."""


def owners(graph: Graph) -> dict[str, str]:
    """Return the id of the owning value for every value that lives in another value's buffer."""
    table = graph.table()
    found: dict[str, str] = {}
    for value in graph.values:
        owner = value
        while owner.alias:
            owner = table[owner.alias]
        if owner is not value:
            found[value.id] = owner.id
    return found


def propagate(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    facts: DeclaredArithmetic,
    *,
    tokens: int = 1,
    sharp: bool = False,
    keen: bool = False,
) -> Propagation:
    """Evaluate `graph` in float64 with errors. Inputs are by value id and stay unchanged, states included.

    `sharp` is for inputs that make values held in a narrower dtype exact numbers of it. `keen` is for inputs that leave
    reductions no order that matters: a template that accumulates in float32 must then be right to `KEEN`. Operators
    without a rule use the numeric one, and a note says so.
    """
    table, out = graph.table(), Propagation()
    owner = owners(graph)
    dtypes = {value.id: value.dtype for value in graph.values}
    declared, library = dict(facts.rounds), facts.accumulation == "library"
    last, keen = {use.value for _, use in graph.outputs}, keen and facts.accumulation == "float32"
    for name in graph.inputs:
        out.values[name] = Bounded(value=inputs[name])
    for node in graph.nodes:
        # An argmax gets unrounded logits: the check of its choice adds their rounding.
        sight = out.seen if node.op == "argmax" else out.read
        operands = tuple(sight(use, tokens) for use in node.inputs)
        context = Context(
            node=node,
            coefficient=KEEN if keen else facts.coefficient,
            out=out,
            owner=owner,
            dtypes=dtypes,
            told=keywords(graph, node),
            keen=keen,
            library=library,
            weights=facts.weights_of(node.outputs[0]),
        )
        rule = RULES.get(node.op)
        results = (rule(context, operands),) if rule is not None else numeric(context, graph)
        for name, result in zip(node.outputs, results, strict=True):
            held = declared.get(name, table[name].dtype if library else "")
            narrow = round_to(result, held, sharp=sharp) if held else result
            if name in last and held == table[name].dtype:
                out.values[name], out.stored[name] = result, narrow
            else:
                out.values[name] = narrow
    return out
