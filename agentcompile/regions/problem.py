"""What a cover is asked for and what it answers: options by region, plans over graphs, parts and layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentcompile.ir.graph import Graph
from agentcompile.ir.trial import Choice, Layouts, Part
from agentcompile.regions.partition import Partition

ROW_MAJOR = "row-major"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run a region at one site. A port family that `layouts` leaves out is wanted row-major."""

    layouts: tuple[tuple[str, str], ...] = ()
    cost_ns: float
    choice: Choice

    def layout(self, family: str) -> str:
        """The layout this option wants a port family in."""
        return dict(self.layouts).get(family, ROW_MAJOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One plan to find. A region that has no options takes no part."""

    graph: Graph
    partition: Partition
    options: Mapping[str, Sequence[Option]]
    """By region id."""
    weight: float = 1.0
    """How many times this plan's step counts in the cost; above 0."""

    def __post_init__(self) -> None:
        """Refuse weights that would make every cover equal."""
        assert self.weight > 0, f"a plan that counts {self.weight} times has no best cover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The parts of every plan, in order of their first site, and the layouts they agree on."""

    parts: tuple[tuple[Part, ...], ...]
    layouts: Layouts
    exact: bool
    """Whether no cheaper cover and assignment of layouts exist."""
    cost_ns: float
    """Summed over the plans, each times its weight."""
