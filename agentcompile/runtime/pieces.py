"""A long prefill chunk whose widest activations exist for only some of its tokens at a time.

Attention gains from a chunk that is as long as the prompt; the activations inside an MLP would then take more memory
than everything else in the chunk. Its operators treat every token by itself, so they run on one piece of the rows after
another, and the activations between them exist for one piece only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from agentcompile.ir.graph import concrete
from agentcompile.ir.program import Buffer, NativeCall, Program, TorchCall
from agentcompile.ir.region import Region
from agentcompile.runtime.lower import rearranged, renamed
from agentcompile.runtime.rowwise import ROWWISE

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""The numbers of tokens for which prefill programs are made."""
PADDED = 2048
"""The longest length that a shorter chunk is padded to.

Of a longer chunk, the part that fills whole programs runs first: padding would take as long as what it pads.
"""
PIECES = (2048, 1024)
"""Tokens for which a longer chunk's widest activations are made at a time: the first that memory allows is used."""
_Call = NativeCall | TorchCall


def in_pieces(whole: Program, piece: Program, regions: Mapping[str, Region]) -> Program:
    """Return `whole` with the calls around its widest activations replaced by those of `piece`, once per piece.

    Both programs are one plan at two lengths; `regions` are those of `whole` by id. Returns `whole` unchanged where
    there are no such calls, the lengths do not divide, or the plans differ.
    """
    tokens, rows = tokens_of(whole), tokens_of(piece)
    same = len(whole.calls) == len(piece.calls) and tokens > rows and tokens % rows == 0
    if not same:
        return whole
    pair = _Pair(whole, piece, tokens, rows)
    apart = [pair.apart(at, regions) for at in range(len(whole.calls))]
    spans = [span for run in _runs(apart) if (span := pair.around_widest(run)) is not None]
    if not spans:
        return whole
    buffers = {buffer.name: buffer for buffer in whole.buffers}
    calls: list[_Call] = []
    done = 0
    inside = {span: pair.inner(span) for span in spans}
    buffers |= {name: pair.narrow[name] for inner in inside.values() for name in inner}
    narrow = frozenset().union(*inside.values())
    # A buffer may share another's bytes only where both have the same length.
    buffers |= {
        name: replace(buffer, whole="", start=0)
        for name, buffer in buffers.items()
        if buffer.whole and (name in narrow) != (buffer.whole in narrow)
    }
    for span, inner in inside.items():
        calls += whole.calls[done : span.start]
        for number in range(tokens // rows):
            for call in piece.calls[span.start : span.stop]:
                outer = (name for name in pair.activations(call) if name not in inner)
                parts = {name: pair.part(buffers[name], number) for name in outer}
                buffers |= {part.name: part for part in parts.values()}
                calls.append(waiting(renamed(call, {name: part.name for name, part in parts.items()})))
        done = span.stop
        if done < len(whole.calls):
            calls.append(waiting(whole.calls[done]))
            done += 1
    calls += whole.calls[done:]
    return rearranged(whole, calls, buffers, (*whole.regions, *piece.regions))


class _Pair:
    """One plan lowered at two lengths, `tokens` and `rows`."""

    def __init__(self, whole: Program, piece: Program, tokens: int, rows: int) -> None:
        self._whole, self._piece, self._tokens, self._rows = whole, piece, tokens, rows
        self._wide = {buffer.name: buffer for buffer in whole.buffers}
        self.narrow = {buffer.name: buffer for buffer in piece.buffers}
        self._used: dict[str, list[int]] = {}
        for at, call in enumerate(whole.calls):
            for name in call.uses:
                self._used.setdefault(name, []).append(at)

    def apart(self, at: int, regions: Mapping[str, Region]) -> bool:
        one, other = self._whole.calls[at], self._piece.calls[at]
        region = regions.get(one.region)
        return (
            region is not None
            and one.kind == other.kind
            and one.uses == other.uses
            and all(node.op in ROWWISE and not any(use.views for use in node.inputs) for node in region.body.nodes)
            and not any(use.views for _, use in region.body.outputs)
            and all(self._by_rows(name) for name in one.uses if name)
        )

    def _by_rows(self, name: str) -> bool:
        """Return whether a buffer is the same at both lengths, or has one row per token."""
        wide, narrow = self._wide[name], self.narrow.get(name)
        if wide.role in ("weight", "constant"):
            return True
        if wide.role != "activation" or narrow is None or len(wide.shape) != 3:
            return False
        batch, tokens, width = wide.shape
        return (batch, tokens) == (1, self._tokens) and narrow.shape == (1, self._rows, width)

    def around_widest(self, run: range) -> range | None:
        """Return the calls of `run` from the first to the last use of the widest activation internal to it."""
        inner = self.inner(run)
        widest = max((self._wide[name].nbytes for name in inner), default=0)
        touching = [at for name in inner if self._wide[name].nbytes == widest for at in self._used[name]]
        return range(min(touching), max(touching) + 1) if touching else None

    def inner(self, run: range) -> frozenset[str]:
        """Return the activations that the calls of `run` make and no other call reads."""
        found = {name for at in run for name in self._whole.calls[at].uses if name}
        return frozenset(
            name
            for name in found
            if self._wide[name].role == "activation"
            and name != self._whole.logits
            and all(at in run for at in self._used[name])
        )

    def activations(self, call: _Call) -> Iterator[str]:
        return (name for name in call.uses if name and self.narrow[name].role == "activation")

    def part(self, wide: Buffer, number: int) -> Buffer:
        narrow = self.narrow[wide.name]
        start = wide.start + number * narrow.nbytes
        return replace(narrow, name=f"{wide.name}[{number}]", whole=wide.whole or wide.name, start=start)


def tokens_of(program: Program) -> int:
    """Return the number of tokens of the chunk that a program runs."""
    found = next(buffer for buffer in program.buffers if buffer.name == program.token)
    return math.prod(concrete(found.shape))


def _runs(apart: Sequence[bool]) -> Iterator[range]:
    for may, group in itertools.groupby(range(len(apart)), key=lambda at: apart[at]):
        if may:
            members = list(group)
            yield range(members[0], members[-1] + 1)


def waiting(call: _Call) -> _Call:
    """Return the call waiting for all before it: its early reads were found for another order."""
    return replace(call, overlaps=False) if isinstance(call, NativeCall) else call


def served(capacity: int) -> tuple[int, ...]:
    """Return the lengths below `capacity`, and `capacity`, to which a chunk longer than them is padded."""
    return tuple(sorted({*(length for length in LENGTHS if length < capacity), capacity}))
