"""Regions: convex sets of operators with an explicit interface, their sites, and their cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.digest import Json, digest
from agentcompile.ir.graph import ITEM_BYTES, Dim, DType, Graph, Phase, concrete
from agentcompile.ir.target import Ceiling, Residency

ANY = (1, 1)
"""Context of a region that holds no state, which is the same at every length."""
PortRole = Literal["activation", "weight", "state", "output"]
Access = Literal["read", "write", "append"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A phase, batch size and context range; trials and choices are keyed by it, beside the region."""

    phase: Phase
    batch: int = 1
    context: tuple[int, int] = ANY
    """First and last cache length that it serves, in tokens, both included."""

    @property
    def name(self) -> str:
        """The name for people: ``decode b1 c1-2048``; without the context where it does not matter."""
        name = f"{self.phase} b{self.batch}"
        return name if self.context == ANY else f"{name} c{self.context[0]}-{self.context[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One argument of a region: a dense buffer, named by the kind; the ports of a horizontal family are w.0, w.1, …."""

    name: str
    role: PortRole
    access: Access
    shape: tuple[Dim, ...]
    dtype: DType

    @property
    def numel(self) -> int:
        """The number of elements, with 1 for a symbolic extent."""
        return math.prod(concrete(self.shape))

    @property
    def family(self) -> str:
        """The name without its number: the ports ``w.0`` and ``w.1`` belong to ``w``."""
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One occurrence of a region in the graph."""

    nodes: tuple[str, ...]
    bindings: tuple[tuple[str, str], ...]
    """Port name to the graph's value id, for every port; a value id bound to several ports appears at each."""
    path: str = ""
    """Module path of the first operator, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The work of one site at the regime's worst context; FLOPs count a multiply-add as two."""

    flops: int
    weight_bytes: int
    state_bytes: int
    activation_bytes: int

    @property
    def bytes(self) -> int:
        """The fewest bytes that one site can move: every input read once, every output written once."""
        return self.weight_bytes + self.state_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """The arithmetic intensity, in FLOP per byte."""
        return self.flops / max(self.bytes, 1)


def longest_chunk(dims: Sequence[tuple[str, int]], ports: Sequence[Port]) -> int:
    """Return the tokens of a region's longest chunk: those that it is measured at, or what its cache or table holds."""
    extents = dict(dims)
    slots = [port.shape[2] for port in ports if port.role == "state" and len(port.shape) == 4]
    held = [size for size in (extents.get("context"), *slots) if isinstance(size, int)]
    return min([extents["tokens"], *held])


@dataclass(frozen=True, kw_only=True)
class Region:
    """A kind's operators at one shape, tuned once for all its sites; `body` is its reference and its fallback.

    In `body`, the value ids are port names for ports and the kind's own names for interior values, so that a template's
    `rounds` can name them. The class has no slots, so that its identity can be cached.
    """

    kind: str
    regime: Regime
    body: Graph
    ports: tuple[Port, ...]
    dims: tuple[tuple[str, int], ...]
    """The kind's named extents (`hidden`, `rows`, …), which constraints and kernels read."""
    constants: tuple[tuple[str, float], ...] = ()
    """The kind's named scalars (`eps`, `scale`), given to kernels as float literals."""
    stated: bool = False
    """Whether the kind declares the views through which its operators read their ports, for its kernels to know."""
    sites: tuple[Site, ...] = ()
    cost: Cost

    @functools.cached_property
    def id(self) -> str:
        """The identity of kind, regime and program; sites and paths are left out."""
        r = self.regime
        regime: Json = [r.phase, r.batch, list(r.context)]
        dims: Json = [[name, extent] for name, extent in self.dims]
        return digest("region/1", self.kind, regime, self.body.digest(), dims)

    @property
    def name(self) -> str:
        """The name for people and the command line: the kind and the start of the id."""
        return f"{self.kind}@{self.id[:6]}"

    @property
    def longest_chunk(self) -> int:
        """The tokens of the longest chunk: those that the region is measured at, or what its cache or table holds."""
        return longest_chunk(self.dims, self.ports)

    @property
    def dense(self) -> bool:
        """Whether every operator reads its ports whole and in order.

        Otherwise, slices and permutations that the kind does not declare can only run in PyTorch.
        """
        return all(view.op == "reshape" for node in self.body.nodes for use in node.inputs for view in use.views)

    @property
    def swept(self) -> bool:
        """Whether a launch reads its weights and states whole, and not only a few rows of them.

        A launch that gathers a few rows finds them in cache when it is timed, however large the tables are.
        """
        rotated = [port for port in self.ports if port.role in ("weight", "state")]
        held = sum(ITEM_BYTES[port.dtype] * port.numel for port in rotated)
        return 2 * (self.cost.weight_bytes + self.cost.state_bytes) >= held

    def floor_ns(self, ceiling: Ceiling, residency: Residency) -> float:
        """Return the roofline floor of one site in nanoseconds.

        Weights and states are read from where `residency` says, activations from cache. A region that is not `swept`
        reads everything from cache.
        """
        cost = self.cost
        near = ceiling.floor_ns(flops=cost.flops, bytes=cost.bytes, residency="cache")
        far = cost.weight_bytes + cost.state_bytes
        return max(near, ceiling.floor_ns(flops=0, bytes=far, residency=residency)) if self.swept else near

    def port(self, name: str) -> Port:
        """Return the port called `name`; KeyError when there is none."""
        return {port.name: port for port in self.ports}[name]

    def family(self, name: str) -> tuple[Port, ...]:
        """Return the ports of a family in order: ``w`` gives (w.0, w.1, …) or (w,)."""
        return tuple(port for port in self.ports if port.family == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """An operator that no region may cross or contain, and the reason."""

    node: str
    op: str
    reason: Literal["side-effect", "alias", "dtype", "dynamic-shape", "in-place", "unknown-operator"]
    detail: str
    path: str = ""
