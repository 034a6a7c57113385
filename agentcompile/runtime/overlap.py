"""The launches of a step that may start before their predecessors have ended, given what each reads before it waits.

With programmatic dependent launch a kernel starts as soon as its predecessor lets it, which may be long before that
kernel, or those before it, have written anything; only what it reads after its wait is certain to be there. A launch
that is not overlapped starts when everything before it has ended, so whatever was written until then may be read early.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentcompile.ir.region import Region
from agentcompile.ir.template import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAccess:
    """The buffers that one call of a step reads early and writes, by name."""

    early: frozenset[str]
    """The buffers that it reads before it waits."""
    writes: frozenset[str]
    waits: bool
    """Whether it takes part in dependent launch; a call that does not starts after everything before it."""


def overlapping(calls: Sequence[CallAccess], immutable: Iterable[str]) -> list[bool]:
    """Return for every call, in order, whether it may overlap its predecessors.

    Steps follow one another, and the host writes between them: at the start of a step only what is `immutable` (weights
    and constants) is certain.
    """
    fixed, unknown, written = frozenset(immutable), True, set[str]()
    found = []
    for call in calls:
        early = call.early - fixed
        overlaps = call.waits and not (early if unknown else early & written)
        if not overlaps:
            unknown, written = False, set()
        written |= call.writes
        found.append(overlaps)
    return found


def accesses_of(region: Region, source: Source, bound: Mapping[str, str]) -> list[CallAccess]:
    """Return what every launch of `source` reads early and may write; `bound` has each port's buffer."""
    written = written_by(region, bound) | {bound[name] for name, *_ in source.workspaces}
    return [
        CallAccess(
            early=frozenset(bound[port] for port in launch.early),
            writes=written & {bound.get(argument, "") for argument in launch.arguments},
            waits=launch.pdl,
        )
        for launch in source.launches
    ]


def written_by(region: Region, bound: Mapping[str, str]) -> frozenset[str]:
    """Return the buffers that some operator of a region writes."""
    return frozenset(bound[port.name] for port in region.ports if port.role == "output" or port.access != "read")
