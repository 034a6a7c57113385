"""The protocol that every backend implements, and the rules by which a backend tunes the whole step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentcompile.ir.attempt import WrittenLanguage
from agentcompile.ir.target import Target

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRules:
    """The rules for trying alternatives inside the whole step."""

    passes: int
    """The most passes over the regions; later ones try alternatives whose region or a neighbour of it changed."""
    least_share: float
    """Regions whose share of the step's roofline floor is below this fraction are skipped."""
    claim: float
    """The smallest relative gain for which the step admits an alternative."""
    rounds: int
    """The number of paired rounds in one comparison."""
    whole_space: bool
    """Whether every point that builds is an alternative, sifted by short measurements; else the next best are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRules:
    """The shares of a time budget after which a stage begins nothing new, and the seconds that its work takes."""

    searched: float
    """Share after which no new candidate of a region is evaluated by itself."""
    confirmed: float
    """Share after which finalists get no more rounds than an interval needs, in one process."""
    tuned: float
    """Share after which no alternative is tried in the step; the rest is for timing the plan beside PyTorch."""
    finished: float
    """Share after which the plan is timed beside PyTorch in one process, with no more rounds than an interval needs."""
    region_s: float
    """Seconds to build, validate and time one candidate of a region on a quiet machine, with its share of confirmation,
    which about half of the regions need, and of steps; on a GPU with that of acceptance, too."""
    start_s: float
    """Seconds until a process holds a model's weights, on a quiet machine; 0 where shares contain them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRules:
    """How much the float64 reference of a validation computes, and how much of it at a time."""

    widened: int
    """The weights that are widened to float64 at a time."""
    prompt_work: float
    """The scores, times their width, that attention over a prompt may cost."""
    walk_work: float
    """The same for a walk over a cache, before its launches become fewer."""
    walk_launches: int
    """The most launches of a walk, where nothing else limits them."""


class Backend(Protocol):
    """The operations and facts of one kind of device; the defaults are for one without graphs and streams."""

    kind: str
    """The name of the device kind, ``cpu`` or ``cuda``."""
    unit: str
    """The noun for what `Target.threads` counts on this device."""
    first: str
    """PyTorch's name of the first such device."""
    languages: tuple[WrittenLanguage, ...]
    """The languages in which kernels for it are written; the first is the usual one."""
    step: StepRules
    """The rules for tuning the whole step."""
    time: TimeRules
    """The rules for sharing out a time budget."""
    reference: ReferenceRules
    """The rules for the reference of a validation."""
    context_ends: tuple[int, ...]
    """The context lengths, in tokens, at which one decode plan of a single sequence ends and the next begins."""
    serves_batches: bool
    """Whether the device runs decode steps of several sequences."""
    any_chunk: bool
    """Whether a prefill kernel is given the number of tokens of its chunk; else it is made for one number of them."""
    queued: bool
    """Whether steps are queued: a kernel advances the position, and PyTorch between kernels needs no round trip."""
    own_memory: bool
    """Whether the device has its own memory, and caches that launches of other kernels evict."""
    tuned_defaults: bool
    """Whether templates' defaults were tuned on such devices; else vector width and caches order candidates."""
    needs_driver: bool
    """Whether the device needs a driver and its libraries to be installed."""
    poisonable: bool
    """Whether a faulting kernel leaves the device unusable for the process that ran it."""

    def lacks(self, arch: tuple[str, ...], target: Target) -> str:
        """Return in words what a template that names `arch` needs and `target` lacks; empty when nothing is missing."""

    def torch_threads(self, target: Target) -> int:
        """Return the number of threads that PyTorch uses in a worker."""

    def validations_at_once(self, target: Target, cores: int) -> int:
        """Return the number of workers that may validate at the same time on `cores` cores."""

    def free_bytes(self, device: str) -> int:
        """Return the free memory in bytes."""

    def blocks_at_once(self, device: str) -> int:
        """Return how many large thread blocks run at once; 0 on a device that has no thread blocks."""

    def zeroed(self, nbytes: int, device: str) -> torch.Tensor:
        """Return zeros, uint8 [at least `nbytes`], in the memory that holds weights and activations."""

    def empty(self, nbytes: int, device: str, align: int) -> torch.Tensor:
        """Return uninitialised memory for timing, uint8 [`nbytes`], whose address is a multiple of `align`."""

    def graph_pool(self) -> Any:
        """Return a memory pool for captured graphs; None on a device without graphs."""
        return None

    def event(self) -> Any:
        """Return an event that a stream can record; None on a device without streams."""
        return None

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        return

    def release_memory(self) -> None:
        """Return the memory that PyTorch caches to the device."""
        return
