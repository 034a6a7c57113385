"""The interface of a region kind as templates see it: ports, extents and interior values, without its matcher.

The table of kinds makes these; the catalog checks manifests against them and knows no pattern language.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentcompile.ir.region import Access, PortRole

TASK = "task-"
"""What the kind of a task begins with: it stands for one file, and is no kind of region of any model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """One port family of a kind: ``w`` stands for the ports w.0, w.1, … when it is `many`."""

    family: str
    role: PortRole
    access: Access
    many: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFacts:
    """A kind's interface; `dims` and `constants` are the names that its regions define, `tokens` is one of the dims."""

    name: str
    ports: tuple[PortFacts, ...]
    dims: tuple[str, ...]
    constants: tuple[str, ...] = ()
    interior: tuple[str, ...] = ()
    """Values between its operators, which `rounds` may name."""
    weights: tuple[str, ...] = ()
    """The softmax weights inside its attentions, such as ``y.weights`` of ``y``, which `rounds` may name too."""

    def port(self, family: str) -> PortFacts | None:
        """Return the port family of that name, or None."""
        return next((port for port in self.ports if port.family == family), None)
