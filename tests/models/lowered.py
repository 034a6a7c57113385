"""Graphs as programs in which PyTorch runs every region: what the runtime's own parts are tried on."""

from __future__ import annotations

from agentcompile.ir.graph import Graph
from agentcompile.ir.program import Program
from agentcompile.ir.region import Regime
from agentcompile.ir.trial import Fallback
from agentcompile.regions.cover import cover
from agentcompile.regions.partition import partition
from agentcompile.regions.problem import Option, Problem
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.lower import lower


def in_pytorch(graph: Graph, context: int, *, batch: int = 1, tokens: int = 16, singly: bool = False) -> Program:
    """The program of `graph`, for `batch` sequences and caches of `context` slots; `singly` with no two operators in a
    region."""
    cut = partition(graph, Regime(phase=graph.phase, batch=batch, context=(1, context)), tokens=tokens)
    option = Option(cost_ns=1.0, choice=Fallback(reason="a test"))
    ids = [region.id for region in cut.regions if not singly or len(region.body.nodes) == 1]
    found = cover(Problem(graph=graph, partition=cut, options=dict.fromkeys(ids, (option,))))
    return lower(graph, schedule(graph, cut, found.parts[0]), {}, {})
