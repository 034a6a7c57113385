"""The protocol of a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentcompile.ir.target import Target

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """How alternatives are tried inside the whole step."""

    passes: int
    """How often the regions are gone through at most. What was tried is tried again only when it or a neighbour
    changed."""
    least_share: float
    """Share of the step's floor below which a region's alternatives are not tried."""
    claim: float
    """Relative: the smallest gain for which the step takes an alternative."""
    rounds: int
    """Paired rounds of a comparison."""
    whole_space: bool
    """Whether every point that builds is an alternative, and short looks pick the few that are timed; else those are
    the next best of the isolated comparison."""


class Backend(Protocol):
    """One kind of device."""

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""

    @property
    def unit(self) -> str:
        """What `Target.threads` counts."""

    @property
    def step(self) -> StepRules:
        """How the step is tuned."""

    @property
    def context_ends(self) -> tuple[int, ...]:
        """Where one decode plan of a single sequence ends and the next begins, in tokens of context."""

    @property
    def serves_batches(self) -> bool:
        """Whether there are steps of several sequences."""

    @property
    def prompt_kernels(self) -> bool:
        """Whether prompts run kernels of templates, which are searched and timed as those of decode steps are."""

    @property
    def queued(self) -> bool:
        """Whether a step is queued on the device, so that a kernel of its own moves the position on, and PyTorch's
        operators between kernels cost no way back to the host."""

    @property
    def own_memory(self) -> bool:
        """Whether the device has memory of its own, and caches that launches of other kernels empty."""

    @property
    def tuned_defaults(self) -> bool:
        """Whether templates' defaults were tuned on such devices, so that candidates are ordered by how far they are
        from them; else by what the machine's vectors and caches say."""

    @property
    def needs_driver(self) -> bool:
        """Whether a driver and its libraries must be there."""

    @property
    def poisonable(self) -> bool:
        """Whether a fault of a kernel leaves the device useless to its process."""

    def lacks(self, arch: tuple[str, ...], target: Target) -> str:
        """What a template that names `arch` needs and the target has not; empty when nothing is missing."""

    def torch_threads(self, target: Target) -> int:
        """Threads of PyTorch in a worker."""

    def validations_at_once(self, target: Target, cores: int) -> int:
        """Workers that validate beside one another."""

    def free_bytes(self, device: str) -> int:
        """Memory that is free."""

    def blocks_at_once(self, device: str) -> int:
        """Large blocks of threads that run at once; 0 where there are none."""

    def zeroed(self, nbytes: int, device: str) -> torch.Tensor:
        """Zeros, uint8 [at least `nbytes`], where weights and activations live."""

    def empty(self, nbytes: int, device: str, align: int) -> torch.Tensor:
        """Memory for timing, uint8 [`nbytes`], that begins at a multiple of `align`."""

    def graph_pool(self) -> Any:
        """A pool of memory for captured graphs; None where there are none."""

    def event(self) -> Any:
        """An event that a stream may record; None where there are no streams."""

    def synchronize(self) -> None:
        """Wait for all that is queued."""

    def release_memory(self) -> None:
        """Give memory that PyTorch keeps back to the device."""
