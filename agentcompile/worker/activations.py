"""Activations and outputs of timed launches: no two launches of a sample read the same numbers.

A launch's activations are a window of one long random buffer; the next launch's window begins one cache line further
on. So contents and addresses change with every launch, while a sample touches hardly more memory than if they did not.
Every sample is drawn anew: a kernel that caches results, by content or by address, never sees the same input again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from agentcompile.ir.graph import concrete
from agentcompile.ir.region import Port, Region
from agentcompile.ops.reference import DTYPES

LINE_BYTES = 64
WINDOWS = 4096
"""Launches of a sample that read different windows; a sample of more has launches of less than 50 ns."""
_APART_BYTES = 1 << 16  # the bytes that all copies of a region's outputs may take, so that they stay in their cache
_MOST_OUTPUTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLaunch:
    """One launch of a sample whose outputs still exist when the sample ends."""

    launch: int
    window: int
    output: int


class Windows:
    """The activations of a region's timed launches, by port."""

    def __init__(self, region: Region, ports: Iterable[Port], *, seed: int, device: str) -> None:
        self._region = region
        self._generator = torch.Generator(device).manual_seed(seed)
        self._ports = tuple(ports)
        self._buffers: dict[str, torch.Tensor] = {}
        for port in self._ports:
            dtype = DTYPES[port.dtype]
            step = LINE_BYTES // dtype.itemsize
            loose = torch.zeros(port.numel + (WINDOWS + 1) * step, dtype=dtype, device=device)
            begin = -loose.data_ptr() % LINE_BYTES // dtype.itemsize
            self._buffers[port.name] = loose[begin:][: port.numel + WINDOWS * step]
        self._views: list[dict[str, torch.Tensor]] = []
        self.redraw(WINDOWS)

    def redraw(self, count: int) -> None:
        """Fill the first `count` windows with new random numbers."""
        for port in self._ports:
            buffer = self._buffers[port.name]
            used = buffer[: port.numel + min(count, WINDOWS) * (LINE_BYTES // buffer.element_size())]
            self._fill(port, used)

    def place(self, name: str) -> tuple[int, int]:
        """Return the address of a port's first window, and the bytes from one window to the next."""
        return self._buffers[name].data_ptr(), self._step(name)

    def _step(self, name: str) -> int:
        """Return the bytes between windows; a chunk's positions follow one another, so that all windows have the same.

        Otherwise they would be a part of two chunks.
        """
        return 0 if self._region.regime.phase == "prefill" and name == "positions" else LINE_BYTES

    def at(self, window: int) -> dict[str, torch.Tensor]:
        """Return the tensors of one window, by port."""
        while len(self._views) <= window:
            self._views.append({port.name: self._view(port, len(self._views)) for port in self._ports})
        return self._views[window]

    def _view(self, port: Port, window: int) -> torch.Tensor:
        buffer = self._buffers[port.name]
        begin = window * (self._step(port.name) // buffer.element_size())
        return buffer[begin : begin + port.numel].view(concrete(port.shape))

    def _fill(self, port: Port, used: torch.Tensor) -> None:
        """Fill with numbers as a step has them: normal values, ids inside the table, the regime's last position."""
        if used.is_floating_point():
            used.copy_(torch.randn(used.numel(), generator=self._generator, device=used.device))
        elif port.family == "positions":
            self._stand(port, used)
        else:
            tables = [concrete(one.shape)[0] for one in self._region.ports if one.role == "weight" and one.shape]
            rows = dict(self._region.dims).get("vocab") or min(tables, default=1)
            used.random_(0, rows, generator=self._generator)

    def _stand(self, port: Port, used: torch.Tensor) -> None:
        """Fill with the last position where attention reads a cache, as its cost depends on it; else with any."""
        last = self._region.regime.context[1] - 1
        if self._region.regime.phase == "prefill":  # a slot for every token of the chunk
            first = max(last + 1 - port.numel, 0)
            used.copy_((torch.arange(used.numel(), device=used.device) % port.numel) + first)
        elif {"attention", "cache_append"} & {node.op for node in self._region.body.nodes}:
            used.fill_(last)
        else:
            used.random_(0, last + 1, generator=self._generator)


class OutputBuffers:
    """Buffers for the outputs of several launches of a sample, by port."""

    def __init__(self, ports: Sequence[Port], *, seed: int, device: str) -> None:
        self._random = random.Random(seed)
        self._ports = {port.name: port for port in ports}
        sizes = {port.name: port.numel * DTYPES[port.dtype].itemsize for port in ports}
        self.count = max(1, min(_MOST_OUTPUTS, _APART_BYTES // max(sum(sizes.values()), 1)))
        self._steps = {name: -(-size // LINE_BYTES) * LINE_BYTES for name, size in sizes.items()}
        self._blocks = {name: _block(step * self.count, device) for name, step in self._steps.items()}

    def place(self, name: str) -> tuple[int, int]:
        """Return the address of a port's first tensor, and the bytes to the next."""
        return self._blocks[name].data_ptr(), self._steps[name]

    def at(self, output: int) -> dict[str, torch.Tensor]:
        """Return the tensors of one launch, by port."""
        found = {}
        for name, port in self._ports.items():
            dtype, begin = DTYPES[port.dtype], output * self._steps[name]
            found[name] = self._blocks[name][begin : begin + port.numel * dtype.itemsize].view(dtype)
            found[name] = found[name].view(concrete(port.shape))
        return found

    def assign(self, batch: int) -> tuple[list[int], tuple[HeldLaunch, ...]]:
        """Return the output buffer of each launch of a sample, and the launches whose outputs are not overwritten.

        Those are the last and some random ones, at addresses that launches before them used as well, so that no kernel
        can know which they are.
        """
        ends = [batch - 1, *(self._random.randrange(batch) for _ in range(1, self.count))]
        chosen = []
        for launch in range(batch):
            open_ = [output for output, end in enumerate(ends) if end >= launch]
            due = [output for output in open_ if ends[output] == launch]
            chosen.append(due[0] if due else self._random.choice(open_))
        kept: dict[int, int] = {output: launch for launch, output in enumerate(chosen)}
        seen = (HeldLaunch(launch=launch, window=launch % WINDOWS, output=output) for output, launch in kept.items())
        return chosen, tuple(sorted(seen, key=lambda one: one.launch))


def _block(nbytes: int, device: str) -> torch.Tensor:
    loose = torch.zeros(nbytes + LINE_BYTES, dtype=torch.uint8, device=device)
    return loose[-loose.data_ptr() % LINE_BYTES :][:nbytes]
