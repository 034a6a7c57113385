"""The input and output of a cover: options by region, plans over graphs, parts and layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentcompile.ir.graph import Graph
from agentcompile.ir.trial import Choice, Layouts, Part
from agentcompile.regions.partition import Partition

ROW_MAJOR = "row-major"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to run a region at one site. A port family that `layouts` does not name is wanted row-major."""

    layouts: tuple[tuple[str, str], ...] = ()
    cost_ns: float
    choice: Choice

    def layout(self, family: str) -> str:
        """Return the layout in which this option wants a port family."""
        return dict(self.layouts).get(family, ROW_MAJOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One plan to find. A region without options takes no part."""

    graph: Graph
    partition: Partition
    options: Mapping[str, Sequence[Option]]
    """The options of each region, by region id."""
    weight: float = 1.0
    """The number of times this plan's step counts in the cost; above 0."""

    def __post_init__(self) -> None:
        """Check that the weight is above 0; otherwise every cover would cost the same."""
        assert self.weight > 0, f"a plan that counts {self.weight} times has no best cover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The parts of every plan, in order of their first site, and the layouts on which the plans agree."""

    parts: tuple[tuple[Part, ...], ...]
    layouts: Layouts
    exact: bool
    """Whether no cheaper cover and assignment of layouts exist."""
    cost_ns: float
    """The cost of all plans, each multiplied by its weight."""
