"""The rungs in order, each the one before it and one thing more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.ir.trial import Rule

from ..harness.trial import OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class RungSpec:
    """What a rung is, before anything is timed."""

    name: str
    """Of its arm."""
    change: str
    """The one thing that it does and the rung before it does not: who owns a gain that no region can be given."""
    about: Mapping[str, str]
    """What runs, by kind of device."""
    rule: Mapping[str, Rule]
    """By kind of device the rule of choice of the lock that it runs; none where it runs none."""


def _both(text: str) -> dict[str, str]:
    return {"cpu": text, "cuda": text}


def _locked(rule: Rule) -> dict[str, Rule]:
    return {"cpu": rule, "cuda": rule}


RUNGS: tuple[RungSpec, ...] = (
    RungSpec(
        name="eager",
        change="where it begins",
        about=_both("generate of transformers as it comes: a cache that grows, sdpa attention"),
        rule={},
    ),
    RungSpec(
        name="static-cache",
        change="a static cache, in a loop without what generate does around a step",
        about=_both(
            "a decoder written by hand, run eagerly: a cache of fixed size with a mask over all of it, a projection "
            "each for q, k, v, gate and up, a plain Python loop"
        ),
        rule={},
    ),
    RungSpec(
        name="merged-projections",
        change="q, k and v in one product, gate and up in another",
        about=_both("the same decoder and loop with q, k and v in one product, and gate and up in one"),
        rule={},
    ),
    RungSpec(
        name="no-python",
        change="the step without a Python model",
        about={
            "cpu": "agentcompile's runtime with no kernel at all (choose = pytorch): every operator of the captured "
            "graph is one PyTorch call on buffers that stay, so that no module and no cache is handled in Python; the "
            "dispatch of each operator remains, and q, k, v, gate and up are apart again, as captured",
            "cuda": "the decoder of the rung before, its step captured once as a CUDA graph that hands token and "
            "position on to itself",
        },
        rule={"cpu": "pytorch"},
    ),
    RungSpec(
        name="first-templates",
        change="templates, the heuristic's first that pass every check",
        about=_both(
            "a lock whose regions run the first candidate of the heuristic's order that builds and passes the whole "
            "correctness suite; nothing was timed, the cover is by the roofline (choose = first)"
        ),
        rule=_locked("first"),
    ),
    RungSpec(
        name="searched-templates",
        change="adviser and search: the fastest candidates alone",
        about=_both(
            "a lock of what measured fastest region by region beside PyTorch, covered by those times; nothing was "
            "tried in the step (choose = isolated)"
        ),
        rule=_locked("isolated"),
    ),
    RungSpec(
        name=OURS,
        change="admission in the step",
        about=_both("the normal compile: the same trials, then rivals in the whole step (choose = admitted)"),
        rule=_locked("admitted"),
    ),
)
"""From the lowest to the highest."""
