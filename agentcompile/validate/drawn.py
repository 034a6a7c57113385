"""The numbers drawn for a case."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from agentcompile.validate.bound import Propagation
from agentcompile.validate.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A case with its inputs, the reference with its bounds, and the model's own result."""

    case: Case
    inputs: dict[str, Tensor]
    out: Propagation
    eager: dict[str, Tensor]
    """Outputs by name and states, after the model ran in its own arithmetic; empty for a light case."""
