"""A kernel that serves chunks of any number of tokens, and its buffers at one number of them.

A chunk of fewer tokens than the longest lies in the first elements of the same buffers, dense, so that whatever is
behind it there must be neither read nor written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agentcompile.ir.graph import Dim
from agentcompile.ir.region import Region
from agentcompile.validate.arena import Poison
from agentcompile.validate.inputs import extent
from agentcompile.validate.rig import LaunchOrders, Result, Rig, TestedKernel

_BEHIND = 1.75  # a number that changes every result


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyChunk:
    """A region whose number of tokens is open, the most of them, and a function that launches for a number of them."""

    region: Region
    longest: int
    run: Callable[[Mapping[str, Tensor], int], None]
    serial: Callable[[Mapping[str, Tensor], int, bool], None] | None = None
    """A function that launches with one rank after another; True starts with the last rank."""


class Chunked:
    """The buffers of one candidate at the longest chunk, for launches on any number of tokens."""

    def __init__(self, of: TestedKernel, chunk: AnyChunk | None) -> None:
        """Allocate them for `chunk`, or for the number of tokens of a kernel that serves no other."""
        self._chunk = chunk or _of_one_length(of)
        self.region, self.longest = self._chunk.region, self._chunk.longest
        self._tally, self._tools = of.tally, of.tools
        self._orders, self._given = LaunchOrders(of), dict[str, int]()
        self.rig = Rig(
            TestedKernel(
                region=self.region,
                facts=of.facts,
                run=of.run,
                tally=of.tally,
                tools=of.tools,
                seed=of.seed,
                tokens=self.longest,
            )
        )

    def load(self, name: str, tensor: Tensor) -> None:
        """Copy an input of fewer tokens to the front of its buffer."""
        self.rig.buffer(name).view(-1)[: tensor.numel()] = tensor.reshape(-1)
        self._given[name] = tensor.numel()

    def launch(self, tokens: int, pattern: Poison, where: str) -> dict[str, Tensor]:
        """Launch on a number of tokens and return copies of the outputs.

        Nothing may be written behind them, and no input that was loaded may change.
        """
        backwards, given = self._orders.backwards(), self._behind(pattern)

        def run(buffers: Mapping[str, Tensor]) -> None:
            sized = {
                port.name: _first(buffers[port.name], port.shape, tokens)
                for port in self.region.ports
                if any(isinstance(dim, str) for dim in port.shape)
            }
            self._launch({**buffers, **sized}, tokens, backwards)

        result = self.rig.launch([], pattern, where, run=run, checked=False)
        now = {name: self.rig.buffer(name).view(-1) for name in given}
        changed = [name for name, before in given.items() if not self._tools.same_bits(now[name], before)]
        self._tally.claim("inputs", not changed, f"{where}: {', '.join(changed)} was written")
        return {
            port.name: self._front(result, port.name, port.shape, tokens, where)
            for port in self.region.ports
            if port.role == "output"
        }

    def _behind(self, pattern: Poison) -> dict[str, Tensor]:
        """Fill inputs behind their last token, and return copies of them.

        They hold zeros where they are integers, and else NaN, but a number where outputs are poisoned with NaN: a
        result of NaN would not show there.
        """
        for name, count in self._given.items():
            behind = self.rig.buffer(name).view(-1)[count:]
            behind.fill_((_BEHIND if pattern == "nan" else torch.nan) if behind.is_floating_point() else 0)
        return {name: self.rig.buffer(name).view(-1).clone() for name in self._given}

    def _launch(self, buffers: Mapping[str, Tensor], tokens: int, backwards: bool | None) -> None:
        if backwards is None or self._chunk.serial is None:
            self._chunk.run(buffers, tokens)
        else:
            self._chunk.serial(buffers, tokens, backwards)

    def _front(self, result: Result, name: str, shape: tuple[Dim, ...], tokens: int, where: str) -> Tensor:
        made = _first(result.tensors[name], shape, tokens)
        behind = result.tensors[name].view(-1)[made.numel() :]
        untouched = torch.empty_like(behind)
        self._tools.poison(untouched, result.pattern)
        kept = self._tools.same_bits(behind, untouched)
        self._tally.claim("poison", kept, f"{where}: {name} was written behind its last token")
        return made

    def ended(self, where: str) -> None:
        """Check the redzones, and that no weight was written."""
        self.rig.redzones(where)
        self.rig.untouched(where)


def _of_one_length(of: TestedKernel) -> AnyChunk:
    serial = of.serial
    return AnyChunk(
        region=of.region,
        longest=of.tokens,
        run=lambda buffers, _: of.run(buffers),
        serial=None if serial is None else lambda buffers, _, backwards: serial(buffers, backwards),
    )


def _first(buffer: Tensor, shape: tuple[Dim, ...], tokens: int) -> Tensor:
    sized = extent(shape, tokens)
    return buffer.view(-1)[: math.prod(sized)].view(sized)
