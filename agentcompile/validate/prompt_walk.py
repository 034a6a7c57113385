"""Walks of a prompt's kernel over its caches: chunks one after another, and chunks of every length that begin anywhere.

Before a launch the caches hold what a right kernel has appended, and nothing that may be read at and behind the chunk.
After it, everything that it appended and returned is compared with one reference of the whole prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentcompile.ops.reference import DTYPES, apply_views
from agentcompile.validate.allowance import Allowance
from agentcompile.validate.arena import POISONS
from agentcompile.validate.bound import Bounded
from agentcompile.validate.chunk import AnyChunk, Chunked
from agentcompile.validate.coverage import SMALL, chunks, starts
from agentcompile.validate.prompt import CacheAppend, PromptOutput, ReferencePrompt, lead, slices
from agentcompile.validate.rig import TestedKernel

_ALL_S = 3.0
"""The seconds that the launches at all lengths may take; those at the small ones are made anyway."""
_LOOKED = 1 << 17
"""The bytes of caches up to which they are compared whole after each launch; twice as many after every second."""
_RUN = 256
"""The number of adjacent slots that are hidden with the same value; where it is not NaN, the numbers are compared."""
_NEAR = 8  # the number of slots on both sides of those written that are compared after every launch


class PromptWalker:
    """The walks of one candidate that serves chunks of a prompt."""

    def __init__(self, of: TestedKernel, parameters: Mapping[str, Tensor], chunk: AnyChunk | None) -> None:
        self._of, self._chunk, self._tally, self._tools = of, chunk, of.tally, of.tools
        self._region = of.region if chunk is None else chunk.region
        self._parameters = parameters
        self._launches = 0

    @property
    def applies(self) -> bool:
        """Whether the region appends to caches and each of its other inputs is a row for each token."""
        return self._of.tokens > 1 and slices(self._region, self._of.tokens)

    def walk(self) -> int:
        """Run all walks; return the number of launches."""
        of, tokens = self._of, self._of.tokens
        self._chunked = Chunked(of, self._chunk)
        self._chunked.rig.load(self._parameters)
        longest = self._chunked.longest
        self._prompt = ReferencePrompt(
            self._region, of.facts, self._parameters, seed=of.seed, tokens=tokens, longest=longest
        )
        self._hide()
        paths = starts(self._prompt.slots, tokens, 0, 0.0, of.seed)
        for path in paths if self._chunk is None else (paths[0], paths[-1])[: len(paths)]:
            for begin in path:
                self._step(begin, tokens)
        if self._chunk is not None:
            spent = Allowance(_ALL_S)
            for at, (begin, count) in enumerate(chunks(self._prompt.slots, longest, of.seed)):
                if at >= SMALL and spent.share > 1.0:
                    break
                self._step(begin, count)
        self._chunked.ended("chunks of a prompt")
        return self._launches

    def _hide(self) -> None:
        """Fill every cache with what may not be read: some slots hold NaN, some a number that would show."""
        self._filled = 0
        self._hidden, self._expected = dict[str, Tensor](), dict[str, Tensor]()
        self._seen = {made.port: torch.zeros(made.known.shape[0], dtype=torch.bool) for made in self._prompt.made}
        self._found = dict[str, Tensor]()
        for store in self._prompt.stores.values():
            hidden = torch.full_like(store.cache, torch.nan)
            hidden[:, (torch.arange(store.cache.shape[1]) // _RUN + self._of.seed) % 2 == 0] = -28672.0
            self._hidden[store.port], self._expected[store.port] = hidden, hidden.clone()
            self._chunked.rig.buffer(store.port)[0].copy_(hidden)

    def _step(self, begin: int, tokens: int) -> None:
        """Launch on one chunk and compare it, if the prompt has all of its positions."""
        prompt, where = self._prompt, f"{tokens} tokens at position {begin}"
        if not prompt.has(begin, tokens):
            return
        self._fill(begin)
        table = self._region.body.table()
        for name in prompt.rows:
            ones = (1,) * lead(table[name].shape, self._of.tokens)
            rows = prompt.chunk(name, begin, tokens)
            self._chunked.load(name, rows.view(*ones, *rows.shape))
        made = self._chunked.launch(tokens, POISONS[self._launches % len(POISONS)], where)
        self._launches += 1
        for store in prompt.stores.values():
            self._entries(store, begin, tokens, where)
        for one in prompt.made:
            self._results(one, made[one.port], begin, tokens, where)

    def _fill(self, begin: int) -> None:
        """Bring the caches to what they hold before a chunk that begins here."""
        low, high = sorted((begin, self._filled))
        for store in self._prompt.stores.values():
            source = store.cache if begin > self._filled else self._hidden[store.port]
            for cache in (self._expected[store.port], self._chunked.rig.buffer(store.port)[0]):
                cache[:, low:high] = source[:, low:high]
        self._filled = begin

    def _entries(self, store: CacheAppend, begin: int, tokens: int, where: str) -> None:
        """Compare what was appended, and that nothing else changed; then hide it again."""
        cache, expected = self._chunked.rig.buffer(store.port)[0], self._expected[store.port]
        own = slice(begin, begin + tokens)
        made, right = cache[:, own].clone(), store.cache[:, own]
        if not self._tools.same_bits(made, right):
            first = int(self._prompt.row[begin])
            bounded = store.entries.map(lambda t: t[first : first + tokens].transpose(0, 1))
            self._compare(store.port, made, bounded, where)
        cache[:, own] = expected[:, own]
        nbytes, at = expected.nbytes, self._launches
        whole = at * nbytes // _LOOKED > (at - 1) * nbytes // _LOOKED
        near = slice(0, None) if whole else slice(max(0, begin - _NEAR), begin + tokens + _NEAR)
        kept = self._tools.same_bits(cache[:, near], expected[:, near])
        self._tally.claim("state", kept, f"{where}: slots of {store.port} beside its own changed")
        if not kept:
            cache.copy_(expected)

    def _results(self, one: PromptOutput, y: Tensor, begin: int, tokens: int, where: str) -> None:
        """Compare an output, unless it has the bits that another chunk's output was right with."""
        first = int(self._prompt.row[begin])
        own = slice(first, first + tokens)
        at = torch.arange(one.known.numel()).view(one.known.shape)[own].T[None, :, :, None]  # [1, heads, T, 1]
        width = one.result.value.shape[-1]
        index = at * width + torch.arange(width)
        index = apply_views(index, one.views, tokens).reshape(-1)
        found = self._found.setdefault(one.port, torch.zeros(one.result.value.numel(), dtype=y.dtype))
        if bool(self._seen[one.port][own].all()) and self._tools.same_bits(y.reshape(-1), found[index]):
            return
        wanted = one.result.map(lambda t: t.reshape(-1)[index].view(-1, width))
        known = one.known.reshape(-1)[index // width].view(-1, width)[:, 0]
        before = self._tally.ok
        self._compare(one.port, y.reshape(-1, width)[known], wanted.map(lambda t: t[known]), where)
        if self._tally.ok and before:
            self._seen[one.port][own] = True
            found[index] = y.reshape(-1)

    def _compare(self, port: str, y: Tensor, bounded: Bounded, where: str) -> None:
        dtype = self._region.port(port).dtype
        stored = bounded.wide().to(DTYPES[dtype]).double()
        self._tools.compare(self._tally, y, bounded, stored, dtype=dtype, where=f"{where}: {port}", everyday=False)
