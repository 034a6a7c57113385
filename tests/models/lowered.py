"""Graphs as programs in which PyTorch runs every region: what the runtime's own parts are tried on."""

from __future__ import annotations

import math

from agentcompile.ir.graph import ITEM_BYTES, Graph, concrete
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


def clashes(program: Program, *, tokens: int = 1, room: int = 1) -> list[tuple[str, str]]:
    """Activations of which one is written where the other still lies; what is part of another counts as that one.

    A program for any number of tokens runs on `tokens` of them, in an arena with room for `room`.
    """
    named = {buffer.name: buffer for buffer in program.buffers}
    spans = {
        name: range(
            one.offset * room, one.offset * room + ITEM_BYTES[one.dtype] * math.prod(concrete(one.shape, tokens))
        )
        for name, one in named.items()
    }
    lives: dict[str, list[int]] = {program.logits: [len(program.calls)]}
    for index, call in enumerate(program.calls):
        for name in call.uses:
            if name and named[name].role == "activation":
                lives.setdefault(named[name].whole or name, []).append(index)
    found = []
    for one, mine in lives.items():
        assert spans[one].stop <= program.arena_bytes * room
        for other, its in lives.items():
            a, b = spans[one], spans[other]
            together = min(mine) <= max(its) and min(its) <= max(mine)
            if one < other and together and a.start < b.stop and b.start < a.stop:
                found.append((one, other))
    for buffer in program.buffers:
        if buffer.whole:
            assert buffer.start + buffer.nbytes <= named[buffer.whole].nbytes, buffer.name
            assert buffer.offset == named[buffer.whole].offset + buffer.start, buffer.name
    return found
