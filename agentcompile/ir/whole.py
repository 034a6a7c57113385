"""The whole-model check: the sequences that a model is run on, and the result beside the float32 model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.graph import Phase

BEYOND = 1e9
"""Value for a divergence that has no finite value, because JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A sequence whose first tokens are a prompt and whose others are fed one by one, each at its own position."""

    ids: tuple[int, ...]
    prompt: int
    """Tokens that go through the prefill; with 0 all of them go through decode steps."""
    scored: tuple[int, ...]
    """Positions whose logits are compared, ascending; of the prompt only the last position has logits."""

    @property
    def steps(self) -> int:
        """The number of tokens that go through decode steps."""
        return len(self.ids) - self.prompt


Group = tuple[Walk, ...]
"""Walks that run side by side in the slots of one batch after their prompts; one walk is a batch of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseScore:
    """The logits of one phase over all scored positions; divergences are in nats a token, with natural logarithms."""

    phase: Phase
    positions: int
    kl: float
    """Mean KL(float32 || compiled)."""
    kl_eager: float
    """Mean KL(float32 || eager), PyTorch in the model's own dtype; 0 where that is float32."""
    kl_worst: float
    """Greatest KL(float32 || compiled) at one position."""
    log_perplexity_ratio: float
    """ln(perplexity compiled / perplexity float32)."""
    half_width: float
    """Half of its 95 % interval, from the spread over positions."""
    mismatches: int
    """Positions whose greedy token differs from float32's."""
    beyond_top: int
    """Mismatches where either token is outside the other's five likeliest."""


Oracle = Literal["transformers", "module", "captured graph"]
"""What ran in float32: transformers' own model, the user's module, or the graph that was captured of a saved one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """The comparison of a set of plans with float32; `fault` is the first fault found, and empty when there is none."""

    oracle: Oracle
    seed: int
    lengths: tuple[int, ...]
    """Tokens of the prompts."""
    phases: tuple[PhaseScore, ...] = ()
    """Scores by phase; empty when the model crashed or hung."""
    fault: str = ""

    @property
    def ok(self) -> bool:
        """Whether the model may ship."""
        return not self.fault
