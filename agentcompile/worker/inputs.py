"""The shared inputs of a timed comparison: rotated weights and states, and activations new for every launch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from agentcompile.backends import backend_of
from agentcompile.ir.graph import concrete
from agentcompile.ir.region import Port
from agentcompile.ir.target import Target
from agentcompile.measure.residency import Need, Slots, rotation_bytes
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.ops.reference import DTYPES
from agentcompile.worker.activations import OutputBuffers, Windows
from agentcompile.worker.protocol import Implementation, Time


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
        _pad(self.slots, rotated, request)
        activations = [port for port in request.region.ports if port.role not in ("weight", "state", "output")]
        self.windows = Windows(request.region, activations, seed=request.seed + 1, device=device)
        outputs = [port for port in request.region.ports if port.role == "output"]
        self.outputs = OutputBuffers(outputs, seed=request.seed + 2, device=device)
        self._next = 0
        last = target.cache_bytes[-1] if target.cache_bytes else 0
        flushed = backend_of(device).own_memory and request.residency == "dram"
        others = request.policy.cache_multiple * last if flushed else 0
        self._others = torch.zeros(others // 8, dtype=torch.int64, device=device)

    def cool(self) -> None:
        """Queue reads of other memory that evict the slots from a GPU's cache, unless they are meant to be there."""
        if self._others.numel():
            self._others.max()

    def take(self, batch: int) -> int:
        """Reserve the next `batch` slots for one interval, whichever arm it belongs to; return the first."""
        first = self._next
        self._next = (first + batch) % self.slots.count
        return first

    def place(self, name: str) -> tuple[int, int, int, int]:
        """Return a port's first address, and the bytes from one slot, window and output to the next."""
        if name in self.rotated:
            return self.slots.tensor(0, name).data_ptr(), self.slots.slot_bytes, 0, 0
        if self._ports[name].role == "output":
            first, step = self.outputs.place(name)
            return first, 0, 0, step
        first, step = self.windows.place(name)
        return first, 0, step, 0

    def buffers(
        self, slot: int, layouts: Mapping[str, str], window: int = 0, output: int = 0
    ) -> dict[str, torch.Tensor]:
        """Return every port's tensor with the weights of `slot`: flat when a layout packs it, else shaped."""
        views = {**self.windows.at(window), **self.outputs.at(output)}
        for name in self.rotated:
            port = self._ports[name]
            layout, shape = LAYOUTS[layouts.get(port.family, "row-major")], concrete(port.shape)
            flat = self.slots.tensor(slot, name, layout.numel(shape))
            views[name] = flat.view(shape) if layouts.get(port.family, "row-major") == "row-major" else flat
        return views

    def read(self, slot: int) -> dict[str, torch.Tensor]:
        """Return the rotated ports as a PyTorch call reads them, row-major."""
        views = self.buffers(slot, {})
        return {name: views[name] for name in self.rotated}

    def dense(self, layouts: Mapping[str, str]) -> dict[str, torch.Tensor]:
        """Return the weights that a kernel reads in these layouts, unpacked to row-major: the values it sees."""
        views, found = self.buffers(0, layouts), {}
        for port in self.region.ports:
            if port.role == "weight":
                layout = layouts.get(port.family, "row-major")
                host = views[port.name].cpu() if layout != "row-major" else views[port.name]
                found[port.name] = LAYOUTS[layout].unpack(host, concrete(port.shape)).to(views[port.name].device)
        return found


def _need(port: Port, request: Time) -> Need:
    """Return the room for the largest layout of an arm, and the numbers: a matrix as initialised, a vector near 1."""
    layouts = {"row-major"}
    for arm in request.arms:
        if isinstance(arm, Implementation):
            layouts.add(dict(arm.layouts).get(port.family, "row-major"))
    shape = concrete(port.shape)
    numel = max(LAYOUTS[name].numel(shape) for name in layouts)
    vector = sum(dim > 1 for dim in shape) < 2
    scale, offset = (0.1, 1.0) if vector and port.role == "weight" else (0.05, 0.0)
    read = min(request.region.regime.context[1] / shape[2], 1.0) if port.role == "state" and len(shape) == 4 else 1.0
    return Need(name=port.name, numel=numel, dtype=DTYPES[port.dtype], scale=scale, offset=offset, read=read)


def _pad(slots: Slots, ports: list[Port], request: Time) -> None:
    """Zero a layout's padding in every slot: kernels rely on it, and all of them read the same bytes."""
    layouts = {
        (family, name) for arm in request.arms if isinstance(arm, Implementation) for family, name in arm.layouts
    }
    for port in ports:
        shape = concrete(port.shape)
        for family, name in sorted(layouts):
            if port.family == family and LAYOUTS[name].numel(shape) != port.numel:
                padding = LAYOUTS[name].pack(torch.ones(shape, dtype=DTYPES[port.dtype])) == 0
                for slot in range(slots.count):
                    tensor = slots.tensor(slot, port.name, padding.numel())
                    tensor.masked_fill_(padding.to(tensor.device), 0)
