"""What a node of an exported program stands for while it is read: a view of a storage, or positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from agentcompile.capture.layout import Layout


@dataclass(frozen=True, slots=True)
class Handle:
    """A view of a storage: its content may be rebound by an in-place operator."""

    storage: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Pos:
    """A node that depends on positions (or nothing) alone."""

    node: fx.Node
    moves: bool
    """Whether the positions enter; otherwise it is a constant."""
