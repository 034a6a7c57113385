"""Sweeps over every row, length and choice of a region, where the right answer costs next to nothing to compute.

A row of a table is itself. Attention of a zero query is the mean of the values, whose running sums give all lengths at
once. An activation along a row of the last product makes that row the argmax. The sweeps visit what the cases and the
walk are too few for: some from every part first, then all others in random order, for as long as time allows. Tokens of
a chunk and sequences of a batch look up rows, and choose, side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentcompile.ir.graph import Node
from agentcompile.ops.reference import DTYPES
from agentcompile.validate.allowance import Allowance
from agentcompile.validate.arena import POISONS
from agentcompile.validate.bound import Bounded
from agentcompile.validate.choices import Chooser, chooser_of
from agentcompile.validate.inputs import generator
from agentcompile.validate.walk import Walker

_ROWS = 4096
"""The number of launches that always look up rows of a table, the first of them one from each of that many parts."""
_POISONED = 4096
"""The number of rows that are looked up over poison."""
_ALL_S = 3.0
"""The seconds that the launches for all other rows, and for all other choices, may take."""
_READ = 3 << 30  # the bytes of caches that launches at every length may read
_MULTIPLIED = 1 << 34
"""The number of weights that the launches that are always made for a chosen winner may read; at least `_LEAST`."""
_LEAST = 24
_TOGETHER, _MANY = 64, 256  # the numbers of launches that are compared at once
_COMPARED = 1 << 24  # the elements of copied rows that are compared at once
_APART = 0.05
"""The lead that the winner's logit needs, as a share of its size: several roundings of a bf16 logit."""


class Sweeper:
    """The sweeps over the candidate of a walk, which run after the walk."""

    def __init__(self, walked: Walker) -> None:
        self.region, self.facts, self.rig = walked.region, walked.facts, walked.rig
        self.tally, self.tools, self.parameters = walked.tally, walked.tools, walked.parameters
        self._seed, self._tokens = walked.seed, walked.tokens

    def sweep(self) -> int:
        """Run all sweeps that apply; return the number of launches."""
        ops = {node.op for node in self.region.body.nodes}
        if ops in ({"embedding"}, {"position_table"}):
            return self._rows(in_order=ops == {"position_table"} and self.region.regime.batch < self._tokens)
        one = self._tokens == 1 and self.region.regime.batch == 1
        return (self._lengths() if one else 0) + self._choices()

    def _launched(self, at: int, where: str) -> dict[str, Tensor]:
        return self.rig.launch([], POISONS[at % len(POISONS)], where, checked=False).tensors

    def _ended(self, where: str) -> None:
        self.rig.redzones(where)
        self.rig.untouched(where)

    def _rows(self, *, in_order: bool) -> int:
        """Check the rows that the region copies from its tables; return the number of launches.

        With `in_order`, a launch looks up adjacent rows, as the positions of a chunk are.
        """
        found = list[tuple[str, str, Tensor]]()
        for node in self.region.body.nodes:
            index, table = (use.value for use in node.inputs)  # ids or positions, and a table
            found += [(name, index, self.parameters[table]) for name, _ in self._made(node)]
        index = found[0][1] if found else ""
        if not found or any(other != index for _, other, _ in found):
            return 0
        extent, ids = min(int(rows.shape[0]) for *_, rows in found), self.rig.buffer(index)
        if in_order and extent < ids.numel():
            return 0
        rng = generator(self._seed, "rows")
        launches = _windows(extent, ids.numel(), rng) if in_order else _scattered(extent, ids.numel(), rng)
        first = -(-_POISONED // ids.numel())
        at = 0
        for some in torch.split(launches[:first], max(1, min(_TOGETHER, self._at_once(found, ids.numel())))):
            results = []
            for row in some:
                ids.copy_(row.view(ids.shape))
                results.append(self._launched(at, f"rows {row.tolist()[:4]}"))
                at += 1
            for name, _, rows in found:
                self._copied(name, torch.stack([result[name] for result in results]), rows, some)
        at += self._other_rows(found, ids, launches[first:], _ROWS - at)
        self.rig.load({index: ids.clone()})
        self._ended("all rows")
        return at

    def _at_once(self, found: list[tuple[str, str, Tensor]], count: int) -> int:
        return _COMPARED // (count * max(rows[0].numel() for *_, rows in found))

    def _other_rows(self, found: list[tuple[str, str, Tensor]], ids: Tensor, launches: Tensor, least: int) -> int:
        """Check launches without poison, `least` and more while time allows: each row has to replace another."""
        many = max(1, min(_MANY, self._at_once(found, ids.numel())))
        made = {name: rows.new_empty((many, ids.numel(), *rows.shape[1:])) for name, _, rows in found}
        spent, count = Allowance(_ALL_S), 0
        for some in torch.split(launches, many) if len(launches) else ():
            for at, row in enumerate(some):
                ids.copy_(row.view(ids.shape))
                self.rig.relaunch()
                for name, _, _ in found:
                    made[name][at].copy_(self.rig.buffer(name).view(made[name][at].shape))
            for name, _, rows in found:
                self._copied(name, made[name][: len(some)], rows, some)
            count += len(some)
            self.tools.beat()
            if count >= least and spent.share > 1.0:
                break
        return count

    def _copied(self, name: str, made: Tensor, rows: Tensor, some: Tensor) -> None:
        """Claim that the results of launches, for the rows `some` [launches, tokens], are these rows of its table."""
        right = rows[some.view(-1)].flatten(1)
        wrong = (made.reshape(right.shape) != right).any(-1)
        first = int(some.view(-1)[wrong.to(torch.uint8).argmax()])
        self.tally.claim("rows", not bool(wrong.any()), f"{name} of row {first} is another's, or none")

    def _made(self, node: Node) -> list[tuple[str, str]]:
        return [(name, use.value) for name, use in self.region.body.outputs if use.value == node.outputs[0]]

    def _lengths(self) -> int:
        """Run a generation over all lengths whose queries are zero, so that the results are means."""
        nodes = self.region.body.nodes
        node = next((node for node in nodes if node.op == "attention"), None)
        appends = {n.outputs[0]: n for n in nodes if n.op == "cache_append"}
        library = self.facts.accumulation == "library"  # rounds inside
        if node is None or library or not {use.value for use in node.inputs[1:3]} <= set(appends):
            return 0
        keys, values = (appends[use.value] for use in node.inputs[1:3])
        query, fresh, position = self._source(node.inputs[0].value), values.inputs[1].value, node.inputs[3].value
        inputs, out = set(self.region.body.inputs), self._made(node)
        cache = self.rig.buffer(values.inputs[0].value)
        _, kv_heads, context, width = cache.shape
        nbytes = context * context * kv_heads * width * cache.element_size()
        if not out or not {query, fresh, position} <= inputs or nbytes > _READ or query == fresh:
            return 0
        rng = generator(self._seed, "lengths swept")
        wanted = torch.randn((kv_heads, context, width), generator=rng).to(cache.dtype)
        for name in inputs:
            port = self.region.port(name)
            if port.access == "append":
                self.rig.buffer(name).fill_(torch.nan)
            elif name == query:
                self.rig.buffer(name).zero_()
            elif port.role == "activation" and port.dtype in ("bf16", "fp16", "fp32"):
                self.rig.buffer(name).copy_(torch.randn(tuple(port.shape), generator=rng))  # type: ignore[arg-type]
        new, at, results = self.rig.buffer(fresh), self.rig.buffer(position), list[Tensor]()
        for n in range(context):
            new.copy_(wanted[:, n].reshape(new.shape))
            at.fill_(n)
            results.append(self._launched(n, f"length {n + 1}")[out[0][0]].view(-1, width))
        # All keys are one and the same, as nothing that they are made of changes.
        every = self.rig.buffer(keys.inputs[0].value)[0]
        kept = self.tools.same_bits(cache[0], wanted) and bool(every.isfinite().all())
        kept = kept and self.tools.same_bits(every, every[:, :1].expand(every.shape))
        self.tally.claim("state", kept, "a generation over all lengths: a slot does not hold what was appended to it")
        self._means(wanted.double(), torch.stack(results), out[0][0], int(str(dict(node.attrs).get("window", 0))))
        self.rig.load({name: self.rig.buffer(name).clone() for name in inputs - set(self.parameters)})
        self._ended("all lengths")
        return context

    def _means(self, values: Tensor, made: Tensor, port: str, window: int) -> None:
        group = made.shape[1] // values.shape[0]

        def mean(of: Tensor) -> Tensor:
            sums = torch.nn.functional.pad(of.cumsum(1), (0, 0, 1, 0))
            ends = torch.arange(1, of.shape[1] + 1)
            begins = (ends - window).clamp(min=0) if window else torch.zeros_like(ends)
            found = (sums[:, ends] - sums[:, begins]) / (ends - begins)[None, :, None]
            return found.transpose(0, 1).repeat_interleave(group, dim=1)

        dtype, value = self.region.port(port).dtype, mean(values)
        error = self.facts.coefficient * mean(values.abs())
        for begin in range(0, len(made), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            bounded = Bounded(value=value[some], accumulated=error[some])
            stored = value[some].to(DTYPES[dtype]).double()
            where = f"zero queries at lengths {begin + 1} to {begin + len(stored)}: {port}"
            self.tools.compare(self.tally, made[some], bounded, stored, dtype=dtype, where=where, everyday=False)

    def _source(self, name: str) -> str:
        """Return the input a query is computed from through operators that keep zero zero; empty when there is none."""
        producers = self.region.body.producers()
        while name in producers:
            node = producers[name]
            if node.op not in ("rope", "rms_norm", "cast"):
                return ""
            name = node.inputs[0].value
        return name

    def _choices(self) -> int:
        """Launch with activations along rows of the weights, each of which must then be chosen.

        Every row wins at least once where all these launches may read so many weights, else one row from each of as
        many equal parts as may, and more while time allows. Each sequence of a batch has a row of its own to choose.
        """
        chooser = chooser_of(self.region)
        node = next((node for node in self.region.body.nodes if node.op == "argmax"), None)
        if chooser is None or node is None or not (out := self._made(node)):
            return 0
        x, w = self.rig.buffer(chooser.x), self.parameters[chooser.w]
        side = x.numel() // chooser.hidden  # the sequences that choose side by side
        if self._tokens > self.region.regime.batch or w.shape[0] < 2:
            return 0
        rng, least = generator(self._seed, "choices"), max(_LEAST, _MULTIPLIED // w.numel())
        first = _from_each_part(w.shape[0], min(w.shape[0], least * side), rng)
        first = first[torch.randperm(len(first), generator=rng)]
        order = _passes(torch.cat((first, _others(w.shape[0], first, rng))), side)
        least = min(least, -(-w.shape[0] // side))
        gain = self.parameters[chooser.gain].float() + chooser.offset if chooser.gain else torch.ones(chooser.hidden)
        wide = w.float()
        spent, count = Allowance(_ALL_S), 0
        for launches in torch.split(order, max(1, _TOGETHER // side)):
            some = launches.reshape(-1)
            given = (wide[some] / torch.where(gain.abs() < 0.05, 0.05, gain)).to(x.dtype)
            chosen = []
            for at, rows in enumerate(launches):
                x.copy_(given[at * side : (at + 1) * side].view(x.shape))
                chosen.append(self._launched(at, f"rows {rows.tolist()[:4]}")[out[0][0]].view(-1))
            self._sure(chooser, (given.float() * gain) @ wide.T, some, torch.cat(chosen))
            count += len(launches)
            if count >= least and spent.share > 1.0:
                break
        self.rig.load({chooser.x: x.clone()})
        self._ended("all choices")
        return count

    def _sure(self, chooser: Chooser, logits: Tensor, some: Tensor, chosen: Tensor) -> None:
        """Claim that those of the rows `some` that surely win were chosen; `logits` are float32, up to a factor."""
        if chooser.bias:
            logits = logits + self.parameters[chooser.bias].float()
        best = logits.topk(2, dim=-1)
        sure = (best.indices[:, 0] == some) & (best.values[:, 0] - best.values[:, 1] > _APART * best.values[:, 0])
        wrong = sure & (chosen != some)
        first = int(wrong.to(torch.uint8).argmax())
        where = f"an activation along row {int(some[first])}: chose {int(chosen[first])}"
        self.tally.claim("choices", not bool(wrong.any()), where)


def _scattered(extent: int, count: int, rng: torch.Generator) -> Tensor:
    """Return all rows of a table in launches of `count`, int64 [launches, count], from every part of it first."""
    first = _from_each_part(extent, min(extent, _POISONED), rng)
    first = first[torch.randperm(len(first), generator=rng)]
    every = torch.cat((first, _others(extent, first, rng)))
    more = torch.randint(0, extent, (-len(every) % count,), generator=rng)
    return torch.cat((every, more)).view(-1, count)


def _windows(extent: int, count: int, rng: torch.Generator) -> Tensor:
    """Return the windows of `count` adjacent rows of a table, int64 [launches, count], in random order.

    Those that cover the table with little overlap are first.
    """
    begins = torch.cat((torch.arange(0, extent - count + 1, count), torch.tensor([extent - count])))
    begins = begins[torch.randperm(len(begins), generator=rng)]
    begins = torch.cat((begins, _others(extent - count + 1, begins, rng)))
    return begins[:, None] + torch.arange(count)


def _passes(rows: Tensor, side: int) -> Tensor:
    """Return launches of `side` rows each, [launches, side]: all of `rows` once for every place among the `side`."""
    padded = rows[torch.arange(len(rows) + -len(rows) % side) % len(rows)]
    return torch.cat([padded.roll(place).view(-1, side) for place in range(side)])


def _from_each_part(extent: int, count: int, rng: torch.Generator) -> Tensor:
    """Return one row of each of `count` equal parts of a table of `extent` rows, int64, in their order."""
    begins = torch.arange(count + 1) * extent // count
    return begins[:-1] + (torch.rand(count, generator=rng) * (begins[1:] - begins[:-1])).long()


def _others(extent: int, seen: Tensor, rng: torch.Generator) -> Tensor:
    """Return the rows of a table of `extent` rows that are not in `seen`, int64, in random order."""
    left = torch.ones(extent, dtype=torch.bool)
    left[seen] = False
    rest = left.nonzero().view(-1)
    return rest[torch.randperm(len(rest), generator=rng)]
