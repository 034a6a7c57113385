"""A candidate's buffers and one launch on them: poison before; redzones, neighbouring slots and inputs after."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from agentcompile.ir.region import Region
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.validate.arena import Fence, GuardedArena, Poison, fingerprint, poison
from agentcompile.validate.bound import Append
from agentcompile.validate.cases import Case
from agentcompile.validate.compare import compare
from agentcompile.validate.inputs import extent
from agentcompile.validate.propagate import Drawn
from agentcompile.validate.tally import Tally
from agentcompile.validate.tolerance import DeclaredArithmetic

Run = Callable[[Mapping[str, Tensor]], None]
Serial = Callable[[Mapping[str, Tensor], bool], None]
"""A function that launches with one rank after another; True starts with the last rank."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The type of plain bits of an element, by its bytes."""


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal bit for bit, NaNs included."""
    kind = BITS[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """The measuring functions of the suite; `selftest` proves that a fault in any of them is noticed."""

    compare: Callable[..., None] = compare
    poison: Callable[[Tensor, Poison], None] = poison
    fingerprint: Callable[[Tensor], str] = fingerprint
    same_bits: Callable[[Tensor, Tensor], bool] = same_bits
    broken: Callable[[GuardedArena], list[str]] = GuardedArena.broken
    recall: Callable[[Case, Callable[[Case], Drawn]], Drawn] = lambda case, draw: draw(case)
    """Returns a case as numbers: drawn now, or before for the same suite; whoever launches works on copies."""
    beat: Callable[[], None] = lambda: None
    """Called after each launch, to tell whoever waits that the suite goes on."""


@dataclass(kw_only=True)
class TestedKernel:
    """A candidate under test, with all that its tests share."""

    region: Region
    facts: DeclaredArithmetic
    run: Run
    tally: Tally
    tools: Instruments
    seed: int
    tokens: int
    serial: Serial | None = None


class LaunchOrders:
    """The way of each of many launches: on threads, or one rank after another, from either end.

    A rank that reads what another one writes in the same launch is nearly always right on threads, and wrong in turn.
    Some kernels do so at some lengths only.
    """

    def __init__(self, of: TestedKernel) -> None:
        self._serial, self._rng = of.serial, random.Random(of.seed)
        self._threads = not of.facts.deterministic

    def backwards(self) -> bool | None:
        """Draw a way: None is on threads, True is one rank after another from the last one on."""
        turn = self._rng.randrange(4)
        return None if self._threads or turn < 2 else turn == 2

    def draw(self) -> Run | None:
        """Return a function that launches in a way that is drawn; None is on threads."""
        backwards, serial = self.backwards(), self._serial
        return None if backwards is None or serial is None else lambda buffers: serial(buffers, backwards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The results of one launch: copies of every output and of the appended slots, by port."""

    tensors: dict[str, Tensor]
    pattern: Poison

    @property
    def nbytes(self) -> int:
        """The size of all copies in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


class Rig:
    """Buffers by port and workspace name, loaded with inputs and launched on."""

    def __init__(self, of: TestedKernel, *, fenced: Fence = "", spaces: Rig | None = None) -> None:
        """Allocate the buffers; the workspaces are those of `spaces` when it is given."""
        region, facts = of.region, of.facts
        self._facts, self._run, self._tally, self._tools = facts, of.run, of.tally, of.tools
        self._arena = GuardedArena(seed=of.seed)
        self._layouts: dict[str, str] = {}
        self._outputs = [port for port in region.ports if port.role == "output"]
        self._inputs = [port for port in region.ports if port.role != "output"]
        self._prints: dict[str, str] = {}
        wanted = dict(facts.layouts)
        for port in region.ports:
            shape = extent(port.shape, of.tokens)
            layout = wanted.get(port.family, "row-major") if port.role == "weight" else "row-major"
            if layout != "row-major":
                self._layouts[port.name] = layout
                shape = (LAYOUTS[layout].numel(shape),)
            self._arena.add(port.name, shape, port.dtype, fenced=fenced)
        for name, dtype, count, zeroed in facts.workspaces if spaces is None else ():
            tensor = self._arena.add(name, (count,), dtype, fenced=fenced)
            if zeroed:
                tensor.zero_()
        self._buffers = self._arena.tensors()
        if spaces is not None:
            self._buffers |= {name: spaces.buffer(name) for name, *_ in facts.workspaces}

    def mirror(self, other: Rig) -> None:
        """Copy every input from another rig's buffers, in their packed form."""
        for port in self._inputs:
            self._buffers[port.name].copy_(other._buffers[port.name])

    def buffer(self, name: str) -> Tensor:
        """Return the buffer of a port or workspace."""
        return self._buffers[name]

    def load(self, inputs: Mapping[str, Tensor]) -> None:
        """Copy inputs, by port, to their buffers; weights are packed in the candidate's layouts."""
        for port in self._inputs:
            if port.name in inputs:
                tensor, layout = inputs[port.name], self._layouts.get(port.name)
                self._buffers[port.name].copy_(LAYOUTS[layout].pack(tensor) if layout else tensor)
                if port.access == "read":
                    self._prints[port.name] = self._tools.fingerprint(self._buffers[port.name])

    def launch(
        self,
        appends: list[Append],
        pattern: Poison,
        where: str,
        *,
        inputs: Mapping[str, Tensor] | None = None,
        run: Run | None = None,
        checked: bool = True,
    ) -> Result:
        """Poison what the candidate must write or must not read, launch, and check what it must not touch.

        With `inputs`, a state's slots beside the appended ones are compared too; `run` launches in another way. Without
        `checked`, the caller calls `redzones` after some launches, because a damaged redzone stays damaged.
        """
        for port in self._outputs:
            self._tools.poison(self._buffers[port.name], pattern)
        for name, _, _, zeroed in self._facts.workspaces:
            if not zeroed:
                self._tools.poison(self._buffers[name], "zero" if pattern == "high" else pattern)
        for append in appends:
            for b, (first, _) in enumerate(append.spans):
                self._tools.poison(self._buffers[append.port][b, :, first:], pattern)
        (run or self._run)(self._buffers)
        if checked:
            self.redzones(where)
        if inputs is not None:
            self._beside(appends, pattern, where, inputs)
        found = {port.name: self._buffers[port.name].clone() for port in self._outputs}
        found |= {append.port: append.entries(self._buffers[append.port]) for append in appends}
        self._tools.beat()
        return Result(tensors=found, pattern=pattern)

    def relaunch(self) -> None:
        """Launch on what the buffers hold, with no poison and no check: the caller tells results apart by inputs."""
        self._run(self._buffers)

    def redzones(self, where: str) -> None:
        """Check that no redzone changed since the last check, and that zeroed workspaces are left all zeros again."""
        broken = self._tools.broken(self._arena)
        self._tally.claim("redzone", not broken, f"{where}: written outside {', '.join(broken)}")
        left = [name for name, _, _, zeroed in self._facts.workspaces if zeroed and bool(self._buffers[name].any())]
        self._tally.claim("workspace", not left, f"{where}: {', '.join(left)} starts as zeros and is not zeros again")

    def _beside(self, appends: list[Append], pattern: Poison, where: str, inputs: Mapping[str, Tensor]) -> None:
        for append in appends:
            for b, (first, end) in enumerate(append.spans):
                state, before = self._buffers[append.port][b], inputs[append.port][b]
                rest = torch.empty_like(state[:, end:])
                self._tools.poison(rest, pattern)
                kept = self._tools.same_bits(state[:, end:], rest)
                kept = kept and self._tools.same_bits(state[:, :first], before[:, :first])
                cache = f"{append.port}[{b}]" if len(append.spans) > 1 else append.port
                self._tally.claim("state", kept, f"{where}: slots of {cache} beside {first}..{end - 1} changed")

    def untouched(self, where: str) -> None:
        """Check that no input was written since it was loaded."""
        now = {name: self._tools.fingerprint(self._buffers[name]) for name in self._prints}
        changed = [name for name, print in self._prints.items() if now[name] != print]
        self._tally.claim("inputs", not changed, f"{where}: {', '.join(changed)} was written")

    def all_same(self, name: str, first: Result, others: Mapping[str, Result]) -> None:
        """Check as `same` does for several launches by their place; while all are equal, they are compared at once."""
        alike = all(
            self._tools.same_bits(tensor.expand(len(others), *tensor.shape), torch.stack(list(found)))
            for port, tensor in first.tensors.items()
            for found in [[other.tensors[port] for other in others.values()]]
        )
        if alike:
            self._tally.claim(name, True, "")
            return
        for where, other in others.items():
            self.same(name, first, other, where)

    def same(self, name: str, first: Result, other: Result, where: str) -> None:
        """Check that two launches on the same inputs left the same bits."""
        changed = [
            port for port, tensor in first.tensors.items() if not self._tools.same_bits(tensor, other.tensors[port])
        ]
        self._tally.claim(name, not changed, f"{where}: {', '.join(changed)} differs")


def other_ways(facts: DeclaredArithmetic, run: Run, tokens: int) -> Iterator[tuple[str, str, Run]]:
    """Yield the ways in which buffers may lie otherwise: the check, in words, and a function that launches so.

    Each leaves the bits of a plain launch.
    """
    for output, source in facts.in_place:
        yield "in-place", f"{output} in {source}", partial(in_place, run, output, source)
    if facts.pitched:
        yield "pitched", "side by side", partial(side_by_side, run, facts.pitched, tokens)
    for output, space in facts.token_major:
        yield "token-major", f"{output} token by token", partial(token_major, run, output, space)


def token_major(run: Run, output: str, space: str, buffers: Mapping[str, Tensor]) -> None:
    """Launch with an output [1, heads, T, D] that lies as [T, heads, D], then put it into its own buffer."""
    own = buffers[output]
    lies = torch.full_like(own.transpose(1, 2), torch.nan, memory_format=torch.contiguous_format)
    buffers[space].fill_(1)
    run({**buffers, output: lies})
    buffers[space].zero_()
    own.copy_(lies.transpose(1, 2))


def in_place(run: Run, output: str, source: str, buffers: Mapping[str, Tensor]) -> None:
    """Launch with one buffer as output and input, then put the result and the input into their own buffers."""
    before = buffers[source].clone()
    run({**buffers, output: buffers[source].view(buffers[output].shape)})
    buffers[output].copy_(buffers[source].view(buffers[output].shape))
    buffers[source].copy_(before)


def side_by_side(run: Run, pitched: Sequence[tuple[str, str]], tokens: int, buffers: Mapping[str, Tensor]) -> None:
    """Launch with the inputs of each pitch as columns of one matrix, with NaN columns between them."""
    views, spaces = dict(buffers), {space for _, space in pitched}
    for space in spaces:
        dense = {name: buffers[name].view(tokens, -1) for name, told in pitched if told == space}
        gap = min(tensor.shape[1] for tensor in dense.values())
        width = sum(tensor.shape[1] + gap for tensor in dense.values())
        first = next(iter(dense.values()))
        wide = torch.full((tokens, width), torch.nan, dtype=first.dtype, device=first.device)
        begin = 0
        for name, tensor in dense.items():
            views[name] = wide[:, begin : begin + tensor.shape[1]].copy_(tensor)
            begin += tensor.shape[1] + gap
        buffers[space].fill_(width)
    run(views)
    for space in spaces:
        buffers[space].zero_()
