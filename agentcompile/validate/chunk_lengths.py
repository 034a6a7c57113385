"""Chunks of every length for kernels whose tokens are independent of one another: one reference serves them all.

Adjacent tokens of the longest chunk have the same results in any shorter one that begins anywhere. Where only the last
token has a result, it is that of the same row wherever the row is; so few rows, in a random order, make up the longest
chunk.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from agentcompile.ir.graph import TOKENS, Graph, Use
from agentcompile.ir.region import Port
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.allowance import Allowance
from agentcompile.validate.arena import POISONS
from agentcompile.validate.bound import Bounded
from agentcompile.validate.cases import context_of
from agentcompile.validate.chunk import AnyChunk, Chunked
from agentcompile.validate.coverage import CHUNK_LENGTHS, SMALL, lengths
from agentcompile.validate.inputs import generator
from agentcompile.validate.mixed import PERIOD, mixed, rows_of
from agentcompile.validate.propagate import propagate
from agentcompile.validate.rig import TestedKernel
from agentcompile.validate.rules import RULES

_ALL_S = 3.0
"""The seconds that the launches at all lengths may take; those at the small ones are made anyway."""
_ROWS = PERIOD  # the number of different rows where only the last token has a result


class ChunkLengths:
    """The launches of one candidate at every length; `parameters` are those of the first draw."""

    def __init__(self, of: TestedKernel, parameters: Mapping[str, Tensor], chunk: AnyChunk) -> None:
        self._of, self._chunk, self._parameters = of, chunk, parameters
        self._tally, self._tools, self._rng = of.tally, of.tools, random.Random(of.seed)
        body = chunk.region.body
        self._last = any(_of_last(use) for use in _uses(body))
        self._body = _of_all(body) if self._last else body
        self._outputs = [port for port in chunk.region.ports if port.role == "output"]

    @property
    def applies(self) -> bool:
        """Whether every operator has a rule and works on each token alone, and every output has a row for each token.

        The exception is a region of which only the last token has a result.
        """
        alone = {node.op for node in self._body.nodes} <= RULES.keys() - {"attention", "cache_append"}
        rows = all((TOKENS in port.shape) != self._last for port in self._outputs)
        return alone and rows and self._chunk.longest > 1

    def launch(self) -> int:
        """Launch at every length and compare; return the number of launches."""
        chunk, of = self._chunk, self._of
        chunked = Chunked(of, chunk)
        chunked.rig.load(self._parameters)
        count = min(_ROWS, chunk.longest) if self._last else chunk.longest
        length = self._rng.randint(count, max(count, context_of(chunk.region)))
        drawn = mixed(chunk.region, self._parameters, seed=of.seed, tokens=count, length=length)
        rows = {name: (drawn[name], dim) for name, dim in rows_of(chunk.region).items()}
        out = propagate(self._body, drawn, of.facts, tokens=count)
        uses = dict(self._body.outputs)
        wanted = {port.name: out.seen(uses[port.name], count) for port in self._outputs}
        order = self._order(count)
        for port in chunk.region.ports:
            if port.role == "activation" and port.name not in rows:
                chunked.load(port.name, drawn[port.name])
        longest: dict[str, Tensor] = {}
        spent = Allowance(_ALL_S)
        for at, tokens in enumerate(self._lengths()):
            if at > SMALL and spent.share > 1.0:
                break
            begin = self._rng.randint(0, chunk.longest - tokens)
            for name, (tensor, dim) in rows.items():
                chunked.load(name, tensor.index_select(dim, order[begin : begin + tokens]))
            where = f"{tokens} tokens"
            made = chunked.launch(tokens, POISONS[at % len(POISONS)], where)
            for port in self._outputs:
                self._result(port, made[port.name], wanted[port.name], order[begin : begin + tokens], longest, where)
        chunked.ended("chunks of every length")
        return at + 1

    def _lengths(self) -> list[int]:
        """Return the lengths: the longest, the small ones, then all others in random order."""
        most = self._chunk.longest
        found = [n for n in lengths(most, CHUNK_LENGTHS, self._of.seed) if n < most]
        self._rng.shuffle(found)
        return [most, *sorted(found, key=lambda n: n > SMALL)]

    def _order(self, count: int) -> Tensor:
        """Return which of the `count` rows each token of the longest chunk is; neighbours differ."""
        if not self._last:
            return torch.arange(count)
        rng = generator(self._of.seed, "rows of tokens")
        steps = torch.randint(1, max(2, count), (self._chunk.longest,), generator=rng)
        return steps.cumsum(0) % count

    def _result(
        self, port: Port, y: Tensor, wanted: Bounded, rows: Tensor, longest: dict[str, Tensor], where: str
    ) -> None:
        """Compare an output, unless it has the bits of the longest chunk's, whose every element was compared."""
        dim = _dimension(port, wanted)
        if self._last:
            rows = rows[-1:]
        known = None if self._last or not self._tally.ok else longest.get(port.name)
        if known is not None and self._tools.same_bits(y, known.narrow(dim, int(rows[0]), len(rows))):
            return
        bounded = wanted.map(lambda t: t.expand(wanted.value.shape).index_select(dim, rows).reshape(y.shape))
        stored = bounded.wide().to(DTYPES[port.dtype]).double()
        self._tools.compare(
            self._tally, y, bounded, stored, dtype=port.dtype, where=f"{where}: {port.name}", everyday=False
        )
        longest.setdefault(port.name, y)


def _dimension(port: Port, wanted: Bounded) -> int:
    """Return the dimension of an output's reference that counts tokens; of the last token's, the one beside a row."""
    return port.shape.index(TOKENS) if TOKENS in port.shape else wanted.value.dim() - 2


def _uses(body: Graph) -> list[Use]:
    return [*(use for node in body.nodes for use in node.inputs), *(use for _, use in body.outputs)]


def _of_last(use: Use) -> bool:
    return any(view.op == "slice" and view.args[1:] == (-1, TOKENS) for view in use.views)


def _of_all(body: Graph) -> Graph:
    """Return the operators for every token of a chunk where `body` has them for the last one."""

    def every(use: Use) -> Use:
        kept = (view for view in use.views if not (view.op == "slice" and view.args[1:] == (-1, TOKENS)))
        return replace(use, views=tuple(kept))

    return replace(
        body,
        nodes=tuple(replace(node, inputs=tuple(map(every, node.inputs))) for node in body.nodes),
        outputs=tuple((name, every(use)) for name, use in body.outputs),
    )
