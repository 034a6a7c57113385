"""Arms of a comparison, each a plan of the same step: how they are made, and how their timing is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.program import Program
from agentcompile.ir.region import Regime
from agentcompile.ir.template import Source
from agentcompile.ir.trial import Choice, Kernel, Part
from agentcompile.measure import Contrast, Timing, contrast
from agentcompile.regions.schedule import schedule
from agentcompile.runtime.lower import lower
from agentcompile.tuning.partitions import Cut

Arm = tuple[Part, ...]
"""The parts of one plan."""


def swap(parts: Sequence[Part], index: int, choice: Choice) -> Arm:
    """Return `parts` with `choice` for the part at `index`."""
    return tuple(replace(part, choice=choice) if i == index else part for i, part in enumerate(parts))


def lowered(cut: Cut, parts: Sequence[Part], sources: Mapping[str, Source], layouts: Mapping[str, str]) -> Program:
    """Return the program of a plan: `parts` cover `cut`, `sources` are by digest, `layouts` by tensor."""
    return lower(cut.graph, schedule(cut.graph, cut.partition, parts), sources, dict(layouts))


def labelled(arms: Sequence[Arm]) -> list[tuple[str, Arm]]:
    """Return the arms, each labelled with its index."""
    return [(str(i), arm) for i, arm in enumerate(arms)]


def asked(arms: Sequence[tuple[str, Sequence[Part]]], at: Regime, **how: Json) -> str:
    """Return a digest of what whole steps run, at which regime, and `how` they are timed: the key of a timing."""
    parts: list[Json] = [
        [label, [[part.region, list(part.sites), candidate_of(part.choice), source_of(part.choice)] for part in arm]]
        for label, arm in arms
    ]
    return digest("steps/2", parts, encode(at), how)


def gains(timing: Timing, arms: int, claim: float, comparisons: int) -> dict[int, Contrast]:
    """Return by index the comparison of every arm that ran with arm 0; empty when arm 0 did not run."""
    if 0 not in timing.live:
        return {}
    return {
        arm: contrast(timing, arm, 0, claim=claim, comparisons=comparisons)
        for arm in range(1, arms)
        if arm in timing.live
    }


def fastest(timing: Timing, arms: int, claim: float, comparisons: int) -> tuple[int, float] | None:
    """Return the arm that is FASTER than arm 0 by most, with the log ratio of its gain; None when there is none."""
    found = gains(timing, arms, claim, comparisons)
    faster = {arm: one.log_ratio for arm, one in found.items() if one.comparison == "FASTER"}
    return max(faster.items(), key=lambda item: item[1], default=None)


def order(looks: Mapping[int, float], least: float = -math.inf) -> list[int]:
    """Return the indexes in `looks` whose log ratio is above `least`, the fastest first."""
    return sorted((at for at in looks if looks[at] > least), key=lambda at: (-looks[at], at))


def candidate_of(choice: Choice) -> str:
    """Return the candidate id of a kernel; empty for a fallback."""
    return choice.candidate.id if isinstance(choice, Kernel) else ""


def source_of(choice: Choice) -> str:
    """Return the source digest of a kernel; empty for a fallback."""
    return choice.source if isinstance(choice, Kernel) else ""


def template_of(choice: Choice) -> str:
    """Return the template of a kernel; empty for a fallback."""
    return choice.candidate.template if isinstance(choice, Kernel) else ""
