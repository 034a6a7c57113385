"""A small generation: a kernel fills one cache from its first slot to its last, and everything is compared.

Every launch appends at the next position of a list and attends to all slots before it. Afterwards only its own slot may
have changed. In the end every appended slot and every output is compared with the reference. The reference of all
launches is one batch, so it adds little to the cost of a launch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agentcompile.backends import backend_of
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.arena import POISONS
from agentcompile.validate.attended import Past, Told, attended
from agentcompile.validate.bound import Bounded
from agentcompile.validate.coverage import starts
from agentcompile.validate.propagate import owners
from agentcompile.validate.rig import LaunchOrders, Result, Rig, TestedKernel
from agentcompile.validate.tolerance import ROUNDING_SLACK, TINY, rounding
from agentcompile.validate.walk_inputs import Feed

_READ = 12 << 30  # the bytes of keys that the launches of a walk may read on a CPU, likewise
_KEPT = 192 << 20  # the bytes of float64 activations of a walk, with their errors
_FEWEST = 264  # the fewest launches of a walk, if there are as many slots
_LOOKED = 1 << 17
"""The bytes of caches up to which they are compared whole after each launch; twice as many after every second."""
_RUN = 256
"""The number of adjacent slots that are hidden with the same value; where it is not NaN, the numbers are compared."""
_NEAR = 8  # the number of slots on both sides of those written that are compared after every launch
_TOGETHER = 64  # the number of launches whose outputs are compared at once, so that a failure tells roughly where it is


class Walker:
    """The walks of one candidate through its caches; `parameters` are loaded."""

    def __init__(self, of: TestedKernel, rig: Rig, parameters: Mapping[str, Tensor]) -> None:
        self.region, self.facts, self.tally, self.tools = of.region, of.facts, of.tally, of.tools
        self.seed, self.tokens, self.rig, self.parameters = of.seed, of.tokens, rig, parameters
        self.orders = LaunchOrders(of)

    @property
    def span(self) -> int:
        """The number of slots that a sequence gains in one launch."""
        return max(1, self.tokens // self.region.regime.batch)

    def walk(self) -> int:
        """Run all walks of a region; return the number of launches, 0 when the region appends nothing."""
        appends = [node for node in self.region.body.nodes if node.op == "cache_append"]
        if not appends:
            return 0
        table = self.region.body.table()
        batch, kv_heads, context, width = (int(str(dim)) for dim in table[appends[0].inputs[0].value].shape)
        heads = [table[n.inputs[0].value].shape[1] for n in self.region.body.nodes if n.op == "attention"]
        wide = max([kv_heads, *(int(str(count)) for count in heads)])
        item = DTYPES[table[appends[0].inputs[0].value].dtype].itemsize
        backend = backend_of(torch.get_default_device().type)
        work = backend.reference.walk_work / (batch * wide * width)
        read = _READ / (batch * kv_heads * width * item) if not backend.own_memory else work
        kept = _KEPT / (batch * (wide + 2 * kv_heads) * width * 32)
        most = max(_FEWEST, int(min(backend.reference.walk_launches, kept)))
        count = 0
        for path in starts(context, self.span, most, min(work, read), self.seed):
            # A single query head is zero at every other length only, so a second walk covers the other lengths.
            for again in range(2 if wide == 1 and self.span == 1 else 1):
                count += self._along(path, batch, self.seed + again)
        return count

    def _along(self, path: tuple[int, ...], batch: int, seed: int) -> int:
        lags = [(batch - 1 - b) * 5 for b in range(batch)]  # sequences are at different positions
        order = torch.arange(len(path))[:, None] - torch.tensor(lags)
        firsts = torch.tensor(path)[order.clamp(min=0)]
        feed = Feed(self.region, self.facts, self.parameters, firsts, seed=seed, tokens=self.tokens)
        owner = owners(self.region.body)
        ports = [owner.get(node.outputs[0], node.outputs[0]) for node in feed.appends]
        expected = {port: self._hidden(feed.base[port]) for port in ports}
        for port in ports:
            self.rig.buffer(port).copy_(expected[port])
        written: dict[str, list[Tensor]] = {port: [] for port in ports}
        results: list[Result] = []
        filled = [0] * batch
        nbytes = sum(tensor.nbytes for tensor in expected.values())
        for n, begin in enumerate(firsts.tolist()):
            where = f"a walk at length {max(begin) + self.span}"
            for b, at in enumerate(begin):
                for port in ports if at > filled[b] else ():
                    for cache in (expected[port], self.rig.buffer(port)):
                        cache[b, :, filled[b] : at] = feed.base[port][b, :, filled[b] : at]
                filled[b] = at + self.span
            self.rig.load({name: tensor[n] for name, tensor in feed.moving.items()})
            results.append(self.rig.launch([], POISONS[n % len(POISONS)], where, run=self.orders.draw(), checked=False))
            whole = (n + 1) * nbytes // _LOOKED > n * nbytes // _LOOKED or n + 1 == len(firsts)
            for port in ports:
                cache = self.rig.buffer(port)
                new = torch.stack([cache[b, :, at : at + self.span] for b, at in enumerate(begin)])
                written[port].append(new)
                for b, at in enumerate(begin):
                    expected[port][b, :, at : at + self.span] = new[b]
                self._beside(port, expected[port], cache, begin, whole, where)
        self.rig.redzones("a walk")
        self.rig.untouched("a walk")
        entries = {port: torch.stack(found) for port, found in written.items()}
        for port, reference in zip(ports, feed.news, strict=True):
            self._compare(port, entries[port], reference, firsts, False, port)
        self._outputs(feed, ports, expected, entries, results)
        return len(firsts)

    def _hidden(self, like: Tensor) -> Tensor:
        """Return a cache of which no slot may be read: some slots hold NaN, some a number that would show."""
        cache = torch.full_like(like, torch.nan)
        cache[:, :, (torch.arange(like.shape[2]) // _RUN + self.seed) % 2 == 0] = -28672.0
        return cache

    def _beside(self, port: str, expected: Tensor, cache: Tensor, begin: list[int], whole: bool, where: str) -> None:
        spans = [(max(0, at - _NEAR), at + self.span + _NEAR) for at in begin]
        kept = (
            self.tools.same_bits(cache, expected)
            if whole
            else all(self.tools.same_bits(cache[b, :, i:j], expected[b, :, i:j]) for b, (i, j) in enumerate(spans))
        )
        self.tally.claim("state", kept, f"{where}: slots of {port} beside its own changed")
        if not kept:
            cache.copy_(expected)

    def _outputs(
        self,
        feed: Feed,
        ports: list[str],
        caches: Mapping[str, Tensor],
        entries: Mapping[str, Tensor],
        results: list[Result],
    ) -> None:
        node, q = feed.attention, feed.queries
        of = {append.outputs[0]: at for at, append in enumerate(feed.appends)}
        if node is None or q is None or not {use.value for use in node.inputs[1:3]} <= of.keys():
            return
        found = [name for name, use in self.region.body.outputs if use.value == node.outputs[0]]
        made = q.value[..., 0, :]  # [N, B, heads, D]
        if not found or results[0].tensors[found[0]].numel() != made[0].numel():
            return
        given = torch.stack([result.tensors[found[0]].reshape(made[0].shape) for result in results])
        told, library = dict(node.attrs), self.facts.accumulation == "library"
        scale, window = float(str(told["scale"])), int(str(told.get("window", 0)))
        inside = self.region.port(found[0]).dtype if library else self.facts.weights_of(node.outputs[0])
        how = Told(scale=scale, window=window, coefficient=self.facts.coefficient, inside=inside)
        sides = []
        for use in node.inputs[1:3]:
            port, new = ports[of[use.value]], feed.news[of[use.value]]
            sides.append(self._side(caches[port], entries[port], new, feed.starts, self.region.port(port).dtype))
        group = made.shape[2] // sides[0][0].shape[1]
        for b in range(made.shape[1]):
            parts = []
            for head in range(sides[0][0].shape[1]):
                keys, values = (
                    (cache[b, head], own.map(lambda t, b=b, head=head: t[:, b, head, 0]))  # type: ignore[misc]
                    for cache, own in sides
                )
                past = Past(keys=keys[0], values=values[0], own_key=keys[1], own_value=values[1])
                its = q.map(lambda t, b=b, head=head: t[:, b, head * group : (head + 1) * group, 0])  # type: ignore[misc]
                parts.append(attended(its, past, feed.starts[:, b], how))
            bounded = _beside(parts)
            at, y = feed.starts[:, b : b + 1], given[:, b]
            zero = torch.zeros(y.shape[:2], dtype=torch.bool) if feed.zero is None else feed.zero
            self._compare(found[0], y, bounded, at, not library, found[0], zero)
            self._compare(found[0], y, bounded, at, False, found[0], ~zero)

    def _side(self, cache: Tensor, entries: Tensor, new: Bounded, firsts: Tensor, dtype: str) -> tuple[Tensor, Bounded]:
        """Return a cache [B, kv_heads, slots, D] as a right kernel would have filled it, and what each launch appends.

        The kernel's own entries are used where they are right, so that their roundings do not count as errors of the
        outputs.
        """
        wide = cache.double()
        step = rounding(new.wide().abs(), dtype)
        right = (entries.double() - new.wide()).abs() <= ROUNDING_SLACK * step + new.error() + TINY
        kept = torch.where(right, entries.double(), new.wide().to(entries.dtype).double())
        # A sequence that waits for others rewrites its first slot with every launch: the last entry stays.
        stays = torch.ones_like(firsts, dtype=torch.bool)
        stays[:-1] = firsts[1:] != firsts[:-1]
        for b in range(cache.shape[0]):
            wide[b, :, firsts[stays[:, b], b]] = kept[stays[:, b], b, :, 0].transpose(0, 1)
        wide[~wide.isfinite()] = 0.0  # slots that no launch wrote
        # A kernel may attend to what it appends before or after its store has rounded it.
        copied = (new.error() == 0) & (new.wide() == new.wide().to(cache.dtype).double())
        slack = torch.where(copied, 0.0, step)
        rounded = slack if new.rounded is None else slack + new.rounded
        return wide, Bounded(new.wide(), new.accumulated, rounded, new.variance)

    def _compare(
        self,
        port: str,
        y: Tensor,
        bounded: Bounded,
        firsts: Tensor,
        everyday: bool,
        what: str,
        mask: Tensor | None = None,
    ) -> None:
        dtype = self.region.port(port).dtype
        for begin in range(0, len(y), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)

            def pick(tensor: Tensor, some: slice = some) -> Tensor:
                return tensor[some] if mask is None else tensor[some][mask[some]]

            mine = bounded.map(lambda t, pick=pick: pick(t.expand(bounded.value.shape)))  # type: ignore[misc]
            if mine.value.numel():
                low, high = int(firsts[some].min()), int(firsts[some].max())
                stored = mine.wide().to(DTYPES[dtype]).double()
                where = f"a walk over lengths {low + self.span} to {high + self.span}: {what}"
                self.tools.compare(self.tally, pick(y), mine, stored, dtype=dtype, where=where, everyday=everyday)


def _beside(parts: list[Bounded]) -> Bounded:
    every = zip(*((part.value, *part.parts) for part in parts), strict=True)
    return Bounded(*(torch.cat([t for t in each if t is not None], dim=1) for each in every))
