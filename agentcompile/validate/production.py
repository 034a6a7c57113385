"""A candidate in buffers laid out as by the runtime, where no kernel can see that it is being tested.

There is no redzone and no poison. Weights and states lie beside others of their kind, activations and scratch are in
one arena among numbers that other launches left, and outputs hold what the launch before wrote. A kernel that computes
only when it detects a test leaves results of other inputs here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentcompile.ir.region import Region
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.validate.bound import Append
from agentcompile.validate.inputs import extent
from agentcompile.validate.rig import Result, Run
from agentcompile.validate.tolerance import DeclaredArithmetic

USUAL = 0.375
"""The value that replaces NaN, with which a test marks slots of a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The description of a buffer that a candidate needs."""

    name: str
    role: Literal["resident", "input", "output", "scratch", "number"]
    """The use of the buffer. Resident: weights, constants and states. A number is a token, a position or an index."""
    shape: tuple[int, ...]
    dtype: str
    zeroed: bool = False


House = Callable[[Sequence[Wanted]], Mapping[str, Tensor]]
"""A function that lays buffers out as the runtime does."""
Late = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], None]
"""A function that launches on the buffers of the first mapping behind a kernel that lets its successors start at once.
Long after that the kernel fills some buffers, by name, from the second mapping, as when launches of a step overlap.
"""


class Quarters:
    """The buffers of one candidate as in a model, by port and workspace name."""

    def __init__(self, region: Region, facts: DeclaredArithmetic, run: Run, house: House, *, tokens: int) -> None:
        self._facts, self._run = facts, run
        layouts = dict(facts.layouts)
        self._layouts: dict[str, str] = {}
        wanted: list[Wanted] = []
        for port in region.ports:
            shape = extent(port.shape, tokens)
            layout = layouts.get(port.family, "row-major") if port.role == "weight" else "row-major"
            if layout != "row-major":
                self._layouts[port.name] = layout
                shape = (LAYOUTS[layout].numel(shape),)
            role: Literal["resident", "input", "output", "number"] = "output" if port.role == "output" else "input"
            if port.role in ("weight", "state", "constant"):
                role = "resident"
            elif port.dtype in ("int64", "int32"):
                role = "number"
            wanted.append(Wanted(name=port.name, role=role, shape=shape, dtype=port.dtype))
        for name, dtype, count, zeroed in facts.workspaces:
            wanted.append(Wanted(name=name, role="scratch", shape=(count,), dtype=dtype, zeroed=zeroed))
        self.buffers = dict(house(wanted))
        self._roles = {one.name: one.role for one in wanted}
        self._outputs = [port.name for port in region.ports if port.role == "output"]
        self._states = [port.name for port in region.ports if port.role == "state"]

    def load(self, inputs: Mapping[str, Tensor]) -> None:
        """Copy inputs, by port, to their buffers; cache slots that a test marked with NaN get the number `USUAL`."""
        for name, tensor in inputs.items():
            if name in self._states:
                self.buffers[name].copy_(torch.where(tensor.isnan(), USUAL, tensor))
            elif name in self.buffers:
                layout = self._layouts.get(name)
                self.buffers[name].copy_(LAYOUTS[layout].pack(tensor) if layout else tensor)

    def launch(self, appends: Sequence[Append]) -> Result:
        """Launch on the present content and return copies of what was written."""
        self._run(self.buffers)
        return self._found(appends)

    def _found(self, appends: Sequence[Append]) -> Result:
        found = {name: self.buffers[name].clone() for name in self._outputs}
        found |= {append.port: append.entries(self.buffers[append.port]) for append in appends}
        return Result(tensors=found, pattern="low")

    def launch_early(self, late: Late, inputs: Mapping[str, Tensor], appends: Sequence[Append]) -> Result:
        """Launch before the loaded activations and numbers are written; until then their buffers hold zeros."""
        later = {}
        for name in inputs:
            if self._roles.get(name) in ("input", "number"):
                later[name] = self.buffers[name].clone(memory_format=torch.contiguous_format)
                self.buffers[name].zero_()
        late(self.buffers, later)
        return self._found(appends)

    def litter(self, generator: torch.Generator, turn: int) -> None:
        """Fill every scratch buffer without guaranteed content with what other launches might leave."""
        for name, _, _, zeroed in self._facts.workspaces:
            if zeroed:
                continue
            tensor = self.buffers[name]
            if not tensor.is_floating_point():
                tensor.random_(-(1 << 30), 1 << 30, generator=generator)
            elif turn % 3 == 0:
                tensor.fill_(torch.nan)
            else:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * (1.0 if turn % 3 == 1 else 1e30))

    def clear(self) -> None:
        """Zero the buffers that start as zeros, as when another model is loaded in the same process."""
        for name, _, _, zeroed in self._facts.workspaces:
            if zeroed:
                self.buffers[name].zero_()
