"""What the arms of a timed comparison share: rotated weights and states, and one copy of activations and outputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from agentcompile.ir.graph import concrete
from agentcompile.ir.region import Port, Region
from agentcompile.ir.target import Target
from agentcompile.layouts import LAYOUTS
from agentcompile.measure.residency import Need, Slots, rotation_bytes
from agentcompile.worker.protocol import Implementation, Time

_TORCH = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64,
    "int64": torch.int64, "int32": torch.int32, "bool": torch.bool,
}  # fmt: skip


class Inputs:
    """The buffers of a region on one device, by port; a batch walks through the slots of the rotated ones."""

    def __init__(self, request: Time, target: Target, device: str = "cpu") -> None:
        self.region = request.region
        self._ports = {port.name: port for port in request.region.ports}
        rotated = [port for port in request.region.ports if port.role in ("weight", "state")]
        needs = tuple(_need(port, request) for port in rotated)
        self.rotated = {port.name for port in rotated}
        covers = rotation_bytes(request.residency, target, request.policy)
        self.slots = Slots(needs, covers_bytes=covers, seed=request.seed, device=device)
        generator = torch.Generator().manual_seed(request.seed + 1)
        self.fixed = {
            port.name: _activation(port, request.region, generator).to(device)
            for port in request.region.ports
            if port.name not in self.rotated
        }
        self._next = 0
        last = target.cache_bytes[-1] if target.cache_bytes else 0
        others = request.policy.cache_multiple * last if device != "cpu" and request.residency == "dram" else 0
        self._others = torch.zeros(others // 8, dtype=torch.int64, device=device)

    def cool(self) -> None:
        """Queue reads of other memory until nothing of the slots is left in a GPU's cache, if they are not meant to be
        there."""
        if self._others.numel():
            self._others.max()

    def take(self, batch: int) -> int:
        """Reserve the next `batch` slots for one interval, whichever arm it belongs to; returns the first."""
        first = self._next
        self._next = (first + batch) % self.slots.count
        return first

    def buffers(self, slot: int, layouts: Mapping[str, str]) -> dict[str, torch.Tensor]:
        """Every port's tensor with the weights of `slot`: flat when a layout packs it, shaped when row-major."""
        views = dict(self.fixed)
        for name in self.rotated:
            port = self._ports[name]
            layout, shape = LAYOUTS[layouts.get(port.family, "row-major")], concrete(port.shape)
            flat = self.slots.tensor(slot, name, layout.numel(shape))
            views[name] = flat.view(shape) if layouts.get(port.family, "row-major") == "row-major" else flat
        return views

    def read(self, slot: int) -> dict[str, torch.Tensor]:
        """The ports that a PyTorch call reads, row-major."""
        views = self.buffers(slot, {})
        return {port.name: views[port.name] for port in self.region.ports if port.role != "output"}


def _need(port: Port, request: Time) -> Need:
    """Room for the largest layout that an arm wants; a matrix like an initialised one, a vector near one."""
    layouts = {"row-major"}
    for arm in request.arms:
        if isinstance(arm, Implementation):
            layouts.add(dict(arm.layouts).get(port.family, "row-major"))
    shape = concrete(port.shape)
    numel = max(LAYOUTS[name].numel(shape) for name in layouts)
    vector = sum(dim > 1 for dim in shape) < 2
    scale, offset = (0.1, 1.0) if vector and port.role == "weight" else (0.05, 0.0)
    read = min(request.region.regime.context[1] / shape[2], 1.0) if port.role == "state" and len(shape) == 4 else 1.0
    return Need(name=port.name, numel=numel, dtype=_TORCH[port.dtype], scale=scale, offset=offset, read=read)


def _activation(port: Port, region: Region, generator: torch.Generator) -> torch.Tensor:
    """Inputs as a step has them: normal values, ids inside the table, and of the regime's positions the last ones."""
    shape, dtype = concrete(port.shape), _TORCH[port.dtype]
    if port.role == "output":
        return torch.zeros(shape, dtype=dtype)
    if not dtype.is_floating_point:
        if port.family == "positions":
            last = region.regime.context[1] - 1
            if region.regime.phase == "prefill":  # a slot for every token of the chunk
                return torch.arange(max(last + 1 - port.numel, 0), max(last + 1, port.numel), dtype=dtype).view(shape)
            return torch.full(shape, last, dtype=dtype)
        rows = dict(region.dims).get("vocab") or _fewest_rows(region)
        return torch.randint(0, rows, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def _fewest_rows(region: Region) -> int:
    return min((concrete(port.shape)[0] for port in region.ports if port.role == "weight" and port.shape), default=1)
