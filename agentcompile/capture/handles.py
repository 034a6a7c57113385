"""What a node of an exported program denotes while it is imported: a view of a storage, or positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from agentcompile.capture.layout import Layout


@dataclass(frozen=True, slots=True)
class Handle:
    """A view of a storage, whose content an in-place operator may replace."""

    storage: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Pos:
    """A node whose value depends on positions only, or on nothing."""

    node: fx.Node
    moves: bool
    """Whether the value depends on the positions; otherwise it is a constant."""
