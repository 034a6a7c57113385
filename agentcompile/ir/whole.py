"""The whole model as the last gate: what it is fed, and what it was found to be beside the float32 model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.graph import Phase

BEYOND = 1e9
"""Stands for a divergence that has no finite value: JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A sequence whose first tokens are a prompt and whose others are fed one by one, each at its own position."""

    ids: tuple[int, ...]
    prompt: int
    """Tokens that go through the prefill; with 0 all of them go through decode steps."""
    scored: tuple[int, ...]
    """Positions whose logits are compared, ascending; of the prompt only its last has any."""

    @property
    def steps(self) -> int:
        """Tokens that go through decode steps."""
        return len(self.ids) - self.prompt


Group = tuple[Walk, ...]
"""Walks that are taken side by side in the seats of one step, after their prompts; of one walk: a step of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseScore:
    """The logits of one phase over all scored positions; divergences in nats a token, natural logarithms."""

    phase: Phase
    positions: int
    kl: float
    """Mean KL(float32 || compiled)."""
    kl_eager: float
    """Mean KL(float32 || eager), PyTorch in the model's own dtype; 0 where that is float32."""
    kl_worst: float
    """The greatest at one position."""
    log_perplexity_ratio: float
    """ln(perplexity compiled / perplexity float32)."""
    half_width: float
    """Half its 95 % interval, by the spread over positions."""
    mismatches: int
    """Positions whose greedy token differs from float32's."""
    beyond_top: int
    """Mismatches where either token is outside the other's five likeliest."""


Oracle = Literal["transformers", "module", "captured graph"]
"""What ran in float32: transformers' own model, the user's module, or the graph that was captured of a saved one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """A set of plans held against float32; `fault` says what is wrong first, and is empty when nothing is."""

    oracle: Oracle
    seed: int
    lengths: tuple[int, ...]
    """Tokens of the prompts."""
    phases: tuple[PhaseScore, ...] = ()
    """Empty when the model crashed or hung."""
    fault: str = ""

    @property
    def ok(self) -> bool:
        """Whether the model may ship."""
        return not self.fault
